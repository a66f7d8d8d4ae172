"""The order in which the CPU decodes what is read from disk, so that threads read it before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..._file.container import Container

if TYPE_CHECKING:
    from ... import _native

ReadKey = tuple[tuple[str, "tuple[int, int] | None"], ...]
"""Tensors, or some of their rows, that a provider decodes one after the other."""


class PrefetchQueue:
    """Reads ahead for providers of the CPU, in the order in which they are made: that of first use.

    The order is a guess, as that of :class:`PrefetchOrder` is: parts that come in another order are read when they are
    wanted, and parts that were read in vain make room as soon as others are wanted.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        # Memory for what is read ahead; without any, nothing is.
        self.ring = 0
        self._reads: dict[ReadKey, list[_native.Reads]] = {}
        self._in_order: list[_native.Reads] = []
        # Positions in that order at which parts that are used in order begin.
        self._starts: dict[ReadKey, int] = {}
        self._next = 0
        # Experts that are decoded next, as far as that is known.
        self._expected: list[ReadKey] = []

    def add(self, parts: Iterable[tuple[str, tuple[int, int] | None]], routed: bool) -> ReadKey:
        """Notes what a provider decodes; what to say when it does.

        :param routed: whether it is an expert's, of which nobody knows whether it is next.
        """
        key = tuple(parts)
        if self.ring and key not in self._reads:
            # Providers in several dtypes read the same parts.
            reads = self._reads[key] = [self._container._open.reads(*part) for part in key]
            if not routed:
                self._starts[key] = len(self._in_order)
                self._in_order += reads
        return key

    def expect(self, keys: list[ReadKey]) -> None:
        """Has what these providers decode read now: they are next, in this order."""
        self._expected = keys
        if self.ring and keys:
            self._advise([reads for key in keys for reads in self._reads.get(key, [])])

    def advance(self, key: ReadKey, part: int = 0) -> None:
        """Something is about to be decoded, from its part ``part`` on: has that read, and then what comes after it."""
        all_reads = self._reads.get(key)
        if not self.ring or all_reads is None:
            return
        begin = self._starts.get(key)
        if begin is not None:
            self._next = begin + len(all_reads)
        wanted = all_reads[part:]
        if key in self._expected:
            later = self._expected[self._expected.index(key) + 1 :]
            wanted += [reads for later_key in later for reads in self._reads.get(later_key, [])]
        self._advise(wanted)

    def _advise(self, wanted: list[_native.Reads]) -> None:
        """Has these read, and behind them what comes next of what is used in order."""
        # More than there is room for: what becomes free is filled again while the provider decodes.
        room = 2 * self.ring - sum(reads.bytes() for reads in wanted)
        for i in range(len(self._in_order)):
            reads = self._in_order[(self._next + i) % len(self._in_order)]
            if room <= 0:
                break
            wanted.append(reads)
            room -= reads.bytes()
        self._container._open.want(wanted)
