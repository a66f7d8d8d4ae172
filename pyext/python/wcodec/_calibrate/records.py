"""Records of a matrix and of an input, as statistics and their files have them."""

from __future__ import annotations

from dataclasses import dataclass

# The power of the Fisher information that steps follow. 1 is best if the loss is a quadratic function: 0.75 costs
# SmolLM2-135M 5 % of its KL divergence at 4 bits. For a mixture whose experts have few tokens each, 1 is 19 % worse.
_POWER, _POWER_OF_EXPERTS = 1.0, 0.75


def power_of(expert: bool) -> float:
    """The power of the cost of errors by which the steps of a matrix fall, of an expert or another one."""
    return _POWER_OF_EXPERTS if expert else _POWER


@dataclass(frozen=True)
class UnitRecord:
    """The statistics of a matrix: a tensor of the checkpoint."""

    rows: int
    cols: int
    transposed: bool
    """Whether the tensor has a row for each input."""
    kind: str
    """The key that it shares with the other experts of its layer."""
    expert: bool
    site: str | None
    """The site of its input; ``None`` where it was not collected."""
    tokens: int
    """Tokens that it was multiplied with, or, of an embedding alone, rows that were looked up."""
    sensitivity: float
    """Sum over tokens, outputs and inputs of (gradient x RMS of the row x input)^2."""
    embedding: float = 0.0
    """Sum over tokens but the first of each text, and columns, of (gradient x RMS of the row that was looked up)^2: of
    an embedding, and of a layer that is tied to one."""

    @property
    def fisher(self) -> float:
        """The effect of errors in proportion to the rows that know nothing of each other."""
        return self.sensitivity + self.embedding


@dataclass(frozen=True)
class SiteRecord:
    """The statistics of an input that matrices share."""

    cols: int
    width: int
    """Columns of a block of its second moments; 0 where only their diagonal is kept."""
    tokens: int
    left: float
    """The fraction of an error that is left after later columns compensate it, 0 to 1."""
