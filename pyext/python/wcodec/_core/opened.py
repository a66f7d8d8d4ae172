"""Open files as the native module has them: they are opened, and a tensor is found in them by its name."""

from __future__ import annotations

import os

from .. import _native
from .errors import InputError, TensorNotFoundError
from .options import is_unicode, path_of, shown


def open_native(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, trusted: bool = False
) -> _native.Container:
    """Opens a file, or a container that is in memory."""
    if isinstance(source, bytes | bytearray | memoryview):
        return _native.Container.from_bytes(bytes(source), bool(trusted))
    return _native.Container.open(path_of(source), bool(trusted))


def place_of(native: _native.Container, name: object) -> int:
    """The place of a tensor, or of the one that it is tied to, in the order of the file.

    :raises TensorNotFoundError: if there is none of that name.
    """
    try:
        if isinstance(name, str) and is_unicode(name):
            return native.place(name)
    except InputError:
        pass
    path = native.path()
    raise missing(name, native, None if path is None else path_of(path))


def missing(name: object, native: _native.Container | None, path: str | None) -> TensorNotFoundError:
    """The error of a name that is not there.

    :param native: the file, in which another name may have been meant; ``None`` where it is closed.
    """
    near = None
    if native is not None and isinstance(name, str) and is_unicode(name):
        near = native.near(name)
    advice = f"did you mean {near!r}?" if near else "list(container) names them all"
    tensor = name if isinstance(name, str) else shown(name)
    return TensorNotFoundError(f"no tensor {shown(name)} ({advice})", file=path, tensor=tensor, code="I421")
