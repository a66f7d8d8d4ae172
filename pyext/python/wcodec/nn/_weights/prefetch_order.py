"""The order in which a GPU's batches are used, so that what is streamed is on its way before it is wanted."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .providers import WeightProvider


class Link:
    """A batch, and the one that was used behind it in the last pass of few tokens."""

    __slots__ = ("__weakref__", "after", "batch")

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.after: weakref.ref[Link] | None = None


class PrefetchOrder:
    """The order in which the batches of a device are used, so that those in host memory are fetched ahead.

    It is the order in which the providers are made: that of the model, or of first use. Fetching ahead is a guess, and
    what was not fetched is fetched when it is decoded. Providers that nobody has any more, as those of layers that have
    changed their dtype, are not in it.

    In passes of few tokens, where most layers are not decoded but multiplied with, one by one or several together, it
    is the order of the pass before.

    :param depth: the number of batches that are fetched ahead.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.most_few = 0
        """The most tokens that any of the layers is multiplied with."""
        self._links: weakref.WeakKeyDictionary[WeightProvider, list[Link]] = weakref.WeakKeyDictionary()
        # Made of these when it is wanted and empty: all links, and where each provider's begin.
        self._in_order: list[Link] = []
        self._starts: weakref.WeakKeyDictionary[WeightProvider, int] = weakref.WeakKeyDictionary()
        # The link that each thread used last, in a pass of few tokens: several may go through the model at a time.
        self._thread = threading.local()

    def replace(self, provider: WeightProvider, batches: list[Any]) -> None:
        """Notes a provider's batches, at its old place or at the end."""
        if not self.depth:
            return
        if provider not in self._links:
            weakref.finalize(provider, _clear, weakref.ref(self)).atexit = False
        self._links[provider] = [Link(b) for b in batches if b.slots]
        self._in_order = []

    def link(self, batch: Any) -> Link | None:
        """The link of a batch that :meth:`used` is told of by its user; None if it need not be fetched."""
        return Link(batch) if self.depth and batch.slots() else None

    def follow(self, provider: WeightProvider, is_decode_step: bool = False) -> None:
        """Fetches the batches that come next, after the whole provider was launched.

        :param is_decode_step: in a pass of few tokens.
        """
        links = self._links[provider] if self.depth else ()
        if not links:
            return
        if is_decode_step:
            for link in links[:-1]:
                self._record_use(link)
            self.used(links[-1])
        else:
            self._fetch(provider, len(links) - 1)

    def follow_part(self, provider: WeightProvider, part: int, is_decode_step: bool = False) -> None:
        """One batch of the provider was launched."""
        links = self._links[provider] if self.depth else ()
        if links and is_decode_step:
            self.used(links[part])
        elif links:
            self._fetch(provider, part)

    def used(self, link: Link) -> None:
        """Fetches the batches that followed this one in the pass before, after it was launched in one of few tokens."""
        self._record_use(link)
        ahead = link
        for _ in range(self.depth):
            following = None if ahead.after is None else ahead.after()
            if following is None or following is link:
                return
            following.batch.prefetch()
            ahead = following

    def _record_use(self, link: Link) -> None:
        before = getattr(self._thread, "last", None)
        last = None if before is None else before()
        if last is not None and last is not link:
            last.after = weakref.ref(link)
        self._thread.last = weakref.ref(link)

    def _fetch(self, provider: WeightProvider, part: int) -> None:
        links_in_order = self._in_order
        if not links_in_order:
            for owner, links in list(self._links.items()):
                self._starts[owner] = len(links_in_order)
                links_in_order.extend(links)
        last, total = self._starts[provider] + part, len(links_in_order)
        for ahead in range(1, min(self.depth, total - 1) + 1):
            links_in_order[(last + ahead) % total].batch.prefetch()


def _clear(reference: weakref.ref[PrefetchOrder]) -> None:
    prefetch_order = reference()
    if prefetch_order is not None:
        # Others may be reading the old one.
        prefetch_order._in_order = []
