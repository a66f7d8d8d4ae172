"""Plots of one object, as pandas has them: called, the default picture; by their names, the others."""

from __future__ import annotations

import inspect
import re
from typing import Any, ClassVar

from .._core.errors import InputError
from .._core.keywords import keywords, near

_OBJECT = re.compile(r"`~?wcodec\.(?:\w+\.)*(\w+)`")
_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")
_LONGEST = 88


class Plots:
    """Plots of an object: ``x.plot()`` draws the default picture, ``x.plot.kind()`` or ``x.plot("kind")`` another."""

    _default: ClassVar[str]
    """The picture that a call draws."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown

    def __init_subclass__(cls) -> None:
        for name in cls._kinds():
            if name in vars(cls):
                setattr(cls, name, keywords(name=f"plot.{name}")(vars(cls)[name]))

    def __call__(self, kind: str | None = None, *, ax: Any = None, **options: Any) -> Any:
        """Draws a picture, into ``ax`` or new axes, which it returns.

        :param kind: which one; the default if left out.
        :param options: options of that picture, such as ``by`` of a heat map.
        """
        plot = self._default_kind() if kind is None else kind
        if plot not in self._kinds():
            raise InputError(f"a {self._object()} has no plot {plot!r} ({self._advice(plot)})", code="I602")
        return getattr(self, plot)(ax=ax, **options)

    def _default_kind(self) -> str:
        return self._default

    @classmethod
    def _kinds(cls) -> list[str]:
        """Names of the pictures, in the order of the sources."""
        made = [name for kind in reversed(cls.__mro__) for name in vars(kind)]
        return [name for name in dict.fromkeys(made) if not name.startswith("_") and callable(getattr(cls, name))]

    def _advice(self, name: object) -> str:
        kinds = self._kinds()
        meant = near(name, kinds) if isinstance(name, str) else None
        return f"did you mean {meant}?" if meant else f"it has {', '.join(kinds)}"

    @classmethod
    def _object(cls) -> str:
        match = _OBJECT.search(cls.__doc__ or "")
        return match[1] if match else cls.__name__.removesuffix("Plots")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a {self._object()} has no plot {name!r} ({self._advice(name)})")

    def __repr__(self) -> str:
        rows = [("plot()", f"the default: {self._default_kind()}")]
        rows += [(f"plot.{name}()", _summary(getattr(type(self), name))) for name in self._kinds()]
        width = max(len(call) for call, _ in rows)
        return "\n".join([f"Plots of a {self._object()}", *(f"  {call:<{width}}  {text}" for call, text in rows)])


def _summary(method: Any) -> str:
    """The beginning of what is said of a picture, as text."""
    text = " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split())
    text = re.split(r"(?<=[\w)])[.;:](?= |$)", _ROLE.sub(r"\1", text).replace("``", ""))[0]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} ..."
