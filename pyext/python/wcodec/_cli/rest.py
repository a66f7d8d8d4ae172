"""``wcodec inspect`` of a model in a folder: the tensors that stay as they were, in an earlier version's other file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._core import format as fmt
from .._core.errors import WcodecError
from .._core.foreign import read_json
from .._core.roles import role_of
from .._file.container import Container
from .._models.folder import has_all
from .._native import safe

# Roles of matrices that are named.
_SHOWN = 5


def line(container: Container) -> str | None:
    """A sentence about what of a model's folder is not compressed, with the largest matrices by their roles; none for a
    container of something else."""
    try:
        named = None if container.path is None else container._open.rest()
    except WcodecError:
        # A name that leads elsewhere is told to who loads the model.
        named = None
    if named is None:
        return _in_itself(container)
    # Only here: it imports NumPy.
    from . import reference

    path = Path(named)
    name = safe(path.name)
    try:
        tensors = reference.Checkpoint(path).tensors
        shapes = {key: (shape, size) for key, (_, _, shape, _, size) in tensors.items()}
        text = _text_of(shapes)
    except (WcodecError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"the rest of the model should be in {name} beside it, which is missing or cannot be read"
    return f"beside it, in {name}: {text}"


def _in_itself(container: Container) -> str | None:
    path = None if container.path is None else Path(container.path)
    try:
        is_complete = path is not None and has_all(read_json(path.parent / "config.json"))
    except WcodecError:
        is_complete = False
    if not is_complete:
        return None
    shapes = {e.name: (e.shape, e.original_bytes) for e in container.stored if e.scheme in ("raw", "opaque")}
    return _text_of(shapes) if shapes else None


def _text_of(tensors: Mapping[str, tuple[Sequence[int], int]]) -> str:
    sizes: Counter[str] = Counter()
    for key, (shape, size) in tensors.items():
        if sum(extent > 1 for extent in shape) > 1:
            sizes[role_of(key)] += size
    total = fmt.size(sum(size for _, size in tensors.values()))
    text = f"{fmt.plural(len(tensors), 'tensor')} as they were, {total}"
    if not sizes:
        return f"{text}, none of them a matrix"
    shown = ", ".join(f"{safe(role)} ({fmt.size(size)})" for role, size in sizes.most_common(_SHOWN))
    more = f" and {len(sizes) - _SHOWN} more" if len(sizes) > _SHOWN else ""
    return f"{text}; matrices among them: {shown}{more}"
