"""``wcodec inspect`` of a model in a folder: the tensors of its other file, which stay as they were."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .. import _format as fmt
from .._container import Container
from .._errors import WcodecError
from .._native import safe
from .._roles import role_of

# Roles of matrices that are named.
_SHOWN = 5


def line(container: Container) -> str | None:
    """A sentence about the file with the rest of a container's model, with the largest matrices in it by their roles;
    none for a container of all there is."""
    try:
        named = None if container.path is None else container._open.rest()
    except WcodecError:
        # A name that leads elsewhere is told to who loads the model.
        named = None
    if named is None:
        return None
    # Only here: it imports NumPy.
    from . import reference

    path = Path(named)
    name = safe(path.name)
    try:
        tensors = reference.Checkpoint(path).tensors
        sizes: Counter[str] = Counter()
        for key, (_, _, shape, _, size) in tensors.items():
            if sum(extent > 1 for extent in shape) > 1:
                sizes[role_of(key)] += size
        total = fmt.size(sum(size for *_, size in tensors.values()))
    except (WcodecError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"the rest of the model should be in {name} beside it, which is missing or cannot be read"
    text = f"beside it, in {name}: {fmt.plural(len(tensors), 'tensor')} as they were, {total}"
    if not sizes:
        return f"{text}, none of them a matrix"
    shown = ", ".join(f"{safe(role)} ({fmt.size(size)})" for role, size in sizes.most_common(_SHOWN))
    more = f" and {len(sizes) - _SHOWN} more" if len(sizes) > _SHOWN else ""
    return f"{text}; matrices among them: {shown}{more}"
