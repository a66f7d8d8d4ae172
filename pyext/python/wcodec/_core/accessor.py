"""A property that is an object of a class on a higher floor, which is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")


class Accessor(property, Generic[T]):
    """``plot: ClassVar[Accessor[Plots]] = Accessor("package.module:Plots", "Pictures.")``: the property ``plot`` of an
    object ``x`` is ``Plots(x)``. Data name their pictures in this way, and need no module that draws."""

    def __init__(self, target: str, doc: str) -> None:
        module, _, name = target.partition(":")

        def get(owner: Any) -> Any:
            return getattr(import_module(module), name)(owner)

        # As properties have both of their getters. The class is named only, since it may not be imported for that.
        get.__doc__, get.__annotations__ = doc, {"return": name}
        super().__init__(get)

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None, /) -> T: ...  # type: ignore[override]
