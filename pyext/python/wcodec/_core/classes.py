"""Classes of the same name as another, for objects that get other methods, as torch's parametrizations do: methods in
an object's own dictionary would have to keep it alive, or would not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def derived(kind: Any, members: Mapping[str, Any], remake: Callable[..., Any], *arguments: Any) -> Any:
    """A class that passes for ``kind``, with other members. Copies and pickles of its objects, whose readers would find
    ``kind`` by the name, ask ``remake(*arguments)`` for it."""

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        made = object.__reduce_ex__(self, protocol)
        assert isinstance(made, tuple)
        return _new, (remake, arguments), *made[2:]

    shown = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**members, **shown, "__reduce_ex__": reduce})


def _new(remake: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    made = remake(*arguments)
    return made.__new__(made)
