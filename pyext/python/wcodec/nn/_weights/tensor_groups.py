"""Which compressed tensors there are for layers, and which of them are decoded together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ... import _native
from ..._file.container import Container, TensorEntry
from .scaled import Scaled


class TensorGroups:
    """The tensors of an open container, by any of their names. It never changes.

    :param groups: names of tensors that are decoded together; a tensor without a group is one of its own.
    :param routed: those of experts, of which only the routed ones are decoded; a mapping says how often for each token.
    """

    def __init__(
        self, container: Container, groups: Iterable[Sequence[str]], routed: Iterable[str] | Mapping[str, float]
    ) -> None:
        self.container = container
        self.groups = [tuple(group) for group in groups]
        self.routed = dict(routed) if isinstance(routed, Mapping) else dict.fromkeys(routed, 1.0)
        self._group_of = {name: group for group in self.groups for name in group}
        self._entries: dict[str, TensorEntry] = {}
        self.scaled = Scaled(container)

    def entry(self, name: str) -> TensorEntry:
        """The stored tensor of that name, a tied one resolved."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self.container[name]
            if entry.alias_of is not None:
                entry = self.container[entry.alias_of]
            self._entries[name] = entry
        return entry

    def stored_with(self, names: Iterable[str]) -> list[str]:
        """These names, and those of scales without which tensors among them say nothing."""
        listed = list(names)
        return list(dict.fromkeys([*listed, *self.scaled.scales_of(self.entry(name).name for name in listed)]))

    def group_of(self, stored: str) -> tuple[str, ...]:
        """The stored tensors that are decoded together with one, itself among them."""
        return self._group_of.get(stored, (stored,))

    def together(self, names: Iterable[str]) -> list[str]:
        """The stored tensors of these names with all that is decoded with them, in the container's order."""
        used: set[str] = set()
        for name in names:
            used.update(self.entry(n).name for n in self.group_of(self.entry(name).name))
        return [n for n in self.container if n in used]

    def in_order(self, stored: Iterable[str]) -> list[str]:
        """Stored tensors in the order of the model, which is that of the groups; those without one come last."""
        place = {self.entry(n).name: i for i, n in enumerate(n for group in self.groups for n in group)}
        return sorted(stored, key=lambda n: place.get(n, len(place)))

    def held(self, stored: Sequence[str]) -> dict[str, int]:
        """Bytes that each of these stored tensors takes in a decoder's memory or in the ring."""
        return dict(zip(stored, _native.DeviceSizes(self.container._open, list(stored)).packed_bytes(), strict=True))
