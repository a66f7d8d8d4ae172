"""The order in which the CPU decodes what is read from disk, so that threads read it before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..._file.container import Container

if TYPE_CHECKING:
    from ... import _native

Parts = tuple[tuple[str, "tuple[int, int] | None"], ...]
"""Tensors, or some of their rows, that a provider decodes one after the other."""


class ReadChain:
    """Reads ahead for providers of the CPU, in the order in which they are made: that of first use.

    The order is a guess, as that of :class:`Chain` is: parts that come in another order are read when they are wanted,
    and parts that were read in vain make room as soon as others are wanted.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        # Memory for what is read ahead; without any, nothing is.
        self.ring = 0
        self._reads: dict[Parts, list[_native.Reads]] = {}
        self._line: list[_native.Reads] = []
        # Positions in the line at which parts that are used in order begin.
        self._at: dict[Parts, int] = {}
        self._next = 0
        # Experts that are decoded next, as far as that is known.
        self._expected: list[Parts] = []

    def add(self, parts: Iterable[tuple[str, tuple[int, int] | None]], routed: bool) -> Parts:
        """Notes what a provider decodes; what to say when it does.

        :param routed: whether it is an expert's, of which nobody knows whether it is next.
        """
        key = tuple(parts)
        if self.ring and key not in self._reads:
            # Providers in several dtypes read the same parts.
            own = self._reads[key] = [self._container._open.reads(*part) for part in key]
            if not routed:
                self._at[key] = len(self._line)
                self._line += own
        return key

    def expect(self, keys: list[Parts]) -> None:
        """Has what these providers decode read now: they are next, in this order."""
        self._expected = keys
        if self.ring and keys:
            self._want([reads for one in keys for reads in self._reads.get(one, [])])

    def lead(self, key: Parts, part: int = 0) -> None:
        """Something is about to be decoded, from its part ``part`` on: has that read, and then what comes after it."""
        own = self._reads.get(key)
        if not self.ring or own is None:
            return
        begin = self._at.get(key)
        if begin is not None:
            self._next = begin + len(own)
        wanted = own[part:]
        if key in self._expected:
            later = self._expected[self._expected.index(key) + 1 :]
            wanted += [reads for one in later for reads in self._reads.get(one, [])]
        self._want(wanted)

    def _want(self, wanted: list[_native.Reads]) -> None:
        """Has these read, and behind them what comes next of what is used in order."""
        # More than there is room for: what becomes free is filled again while the provider decodes.
        room = 2 * self.ring - sum(reads.bytes() for reads in wanted)
        for i in range(len(self._line)):
            reads = self._line[(self._next + i) % len(self._line)]
            if room <= 0:
                break
            wanted.append(reads)
            room -= reads.bytes()
        self._container._open.want(wanted)
