"""Which inputs' statistics are summed up in which pass over the text, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .moments import Sums, block_width, packed_elements

# Blocks are not made narrower than this for want of memory.
_NARROWEST = 256


@dataclass
class Input:
    """An input that one or several products share."""

    name: str
    cols: int
    width: int
    """Columns of a block."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of its statistics as they are kept."""
        whole, rest = divmod(self.cols, self.width)
        return 4 * self.cols + 2 * (whole * packed_elements(self.width) + packed_elements(rest))

    @property
    def sum_bytes(self) -> int:
        """Bytes while they are summed up."""
        return Sums.size(self.cols, self.width)


def plan(inputs: Sequence[tuple[str, int]], memory: int) -> tuple[list[Input], list[list[Input]]]:
    """Inputs with the width of their blocks, and those of each pass, in the order given.

    Both what is kept of all inputs and the sums of a pass stay within the memory: the widest blocks are halved until
    they do, or are so narrow that halving them is of no use.
    """
    found = [Input(name, cols, block_width(cols)) for name, cols in inputs]

    def narrow(one: Input) -> bool:
        if one.width <= _NARROWEST:
            return False
        one.width = max(_NARROWEST, -(-one.width // 128) * 64)
        return True

    for one in found:
        while one.sum_bytes > memory and narrow(one):
            pass
    while sum(one.kept_bytes for one in found) > memory:
        widest = max(one.width for one in found)
        if not any([narrow(one) for one in found if one.width == widest]):
            break
    passes: list[list[Input]] = []
    left = 0
    for one in found:
        if not passes or one.sum_bytes > left:
            passes.append([])
            left = memory
        passes[-1].append(one)
        left -= one.sum_bytes
    return found, passes
