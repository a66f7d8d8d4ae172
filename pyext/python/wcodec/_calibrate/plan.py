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
        full_blocks, rest = divmod(self.cols, self.width)
        return 4 * self.cols + 2 * (full_blocks * packed_elements(self.width) + packed_elements(rest))

    @property
    def sum_bytes(self) -> int:
        """Bytes while they are summed up."""
        return Sums.size(self.cols, self.width)


def plan(inputs: Sequence[tuple[str, int]], memory: int) -> tuple[list[Input], list[list[Input]]]:
    """Inputs with the width of their blocks, and those of each pass, in the order given.

    Both what is kept of all inputs and the sums of a pass stay within the memory: the widest blocks are halved until
    they do, or are so narrow that halving them is of no use.
    """
    sized_inputs = [Input(name, cols, block_width(cols)) for name, cols in inputs]

    def narrow(sized_input: Input) -> bool:
        if sized_input.width <= _NARROWEST:
            return False
        sized_input.width = max(_NARROWEST, -(-sized_input.width // 128) * 64)
        return True

    for sized_input in sized_inputs:
        while sized_input.sum_bytes > memory and narrow(sized_input):
            pass
    while sum(sized_input.kept_bytes for sized_input in sized_inputs) > memory:
        widest = max(sized_input.width for sized_input in sized_inputs)
        if not any([narrow(sized_input) for sized_input in sized_inputs if sized_input.width == widest]):
            break
    passes: list[list[Input]] = []
    left = 0
    for sized_input in sized_inputs:
        if not passes or sized_input.sum_bytes > left:
            passes.append([])
            left = memory
        passes[-1].append(sized_input)
        left -= sized_input.sum_bytes
    return sized_inputs, passes
