"""The exceptions of the package, sorted by who has to act."""

from __future__ import annotations

import errno as _errno
import os
from typing import Any

from .._native import safe


class WcodecError(Exception):
    """Base of everything that wcodec raises on its own account.

    The text names the place and says what to do, in one line that a terminal obeys nothing of. ``file``, ``tensor`` and
    ``offset`` (bytes from the file's start) hold the place for programs, names as they are, each ``None`` where it is
    unknown or does not apply. ``code`` is the identifier of the cause, such as ``F101``, which stays the same in all
    versions and stands at the end of the text; :func:`wcodec.explain` tells more of it.
    """

    code: str = "I000"
    file: str | None
    tensor: str | None
    offset: int | None

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        file: str | os.PathLike[str] | None = None,
        tensor: str | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.file = None if file is None else os.fspath(file)
        self.tensor = tensor
        self.offset = offset

    def __str__(self) -> str:
        # KeyError and OSError, bases of some subclasses, would print the message their own way. It quotes what
        # others wrote.
        return f"{self.without_code()} [{self.code}]"

    def without_code(self) -> str:
        """The text without the code at its end."""
        return safe(str(self.args[0])) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__), getattr(self, "errno", None))


WCodecError = WcodecError
"""Another name of :class:`WcodecError`, spelled as the other classes of the package."""


class FormatError(WcodecError):
    """The file is not a wcodec container (or checkpoint), or contradicts itself: get the right file."""

    code = "F000"


class CorruptError(WcodecError):
    """The file was a valid one and its bytes were damaged: restore it, or encode it again."""

    code = "C000"


class UnsupportedError(WcodecError):
    """The file is fine, but this version or installation cannot read it: upgrade, or install what is named."""

    code = "U000"


class InputError(WcodecError, ValueError):
    """The arguments or the tensors are wrong: change them."""

    code = "I000"


class TensorNotFoundError(InputError, KeyError):
    """The container has no tensor of this name. Also a ``KeyError``, as a mapping owes its users."""

    code = "I421"


class DeviceError(WcodecError, RuntimeError):
    """A GPU, its driver or one of its libraries is missing or refused: install what is named.

    ``wcodec doctor`` tells more.
    """

    code = "D000"


class FileError(WcodecError, OSError):
    """The operating system refused. Also an ``OSError`` with its ``errno``; the commonest have subclasses."""

    code = "O000"


class FileMissingError(FileError, FileNotFoundError):
    """A file or folder does not exist. Also a ``FileNotFoundError``."""

    code = "O101"


class OutputExistsError(FileError, FileExistsError):
    """The output exists and ``overwrite`` was not asked for. Also a ``FileExistsError``."""

    code = "O103"


class FilePermissionError(FileError, PermissionError):
    """A file or folder must not be read or written. Also a ``PermissionError``."""

    code = "O102"


_KINDS: dict[str, type[WcodecError]] = {
    "format": FormatError,
    "corrupt": CorruptError,
    "unsupported": UnsupportedError,
    "input": InputError,
    "device": DeviceError,
    "io": FileError,
}

# Rust's names of the operating system's refusals, and errno values for those that Rust made up itself.
_OS_KINDS: dict[str, tuple[type[FileError], int]] = {
    "NotFound": (FileMissingError, _errno.ENOENT),
    "AlreadyExists": (OutputExistsError, _errno.EEXIST),
    "PermissionDenied": (FilePermissionError, _errno.EACCES),
    "ReadOnlyFilesystem": (FilePermissionError, _errno.EROFS),
    "StorageFull": (FileError, _errno.ENOSPC),
    "IsADirectory": (FileError, _errno.EISDIR),
    "NotADirectory": (FileError, _errno.ENOTDIR),
}


def class_of(kind: str) -> type[WcodecError]:
    """The exception for errors of a kind, by the native module's word."""
    return _KINDS.get(kind, WcodecError)


def from_native(
    kind: str,
    code: str,
    message: str,
    file: str | os.PathLike[str] | None,
    tensor: str | None,
    offset: int | None,
    errno: int | None,
    os_kind: str | None,
) -> WcodecError:
    """The exception for an error of the native module, which calls this."""
    cls = class_of(kind)
    if cls is FileError:
        cls, fallback = _OS_KINDS.get(os_kind or "", (FileError, None))
        error = cls(message, code=code, file=file, tensor=tensor, offset=offset)
        error.errno = fallback if errno is None else errno
        return error
    return cls(message, code=code, file=file, tensor=tensor, offset=offset)


def _rebuild(cls: type[WcodecError], args: tuple[Any, ...], state: dict[str, Any], errno: int | None) -> WcodecError:
    error = cls(*args)
    error.__dict__.update(state)
    if isinstance(error, OSError):
        error.errno = errno
    return error
