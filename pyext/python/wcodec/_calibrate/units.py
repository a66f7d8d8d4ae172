"""The matrices of a model that statistics are about, under the names that files have for them.

A *unit* is a matrix that a checkpoint stores as one tensor. transformers joins some of these to one parameter, as gate
and up of all experts: an expert of such a parameter is known by its own name too, as the units that it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .._core.errors import WcodecError
from .._core.foreign import by_transformers
from .._models.find import Candidate, find, joined
from .._models.names import match, shared_names
from ..nn.experts import STACKS


@dataclass(frozen=True)
class Unit:
    """A matrix ``[rows, cols]`` of a model: outputs and inputs of a layer or an expert."""

    name: str
    rows: int
    cols: int
    transposed: bool
    """Whether the tensor has a row for each input, as GPT-2's."""
    kind: str
    """Which units it is compared with where it has no statistics of its own: those of its layer's other experts."""


@dataclass(frozen=True)
class Product:
    """A product of inputs and a matrix in the model, whose rows belong to one or several units."""

    name: str
    module: str
    expert: int | None
    stack: str
    units: tuple[Unit, ...]

    @property
    def rows(self) -> int:
        """Outputs."""
        return sum(unit.rows for unit in self.units)


@dataclass
class ModelProducts:
    """All products of a model, by module."""

    products: list[Product] = field(default_factory=list)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Other names, and the units, one below the other, that each is made of."""
    embeddings: dict[str, Unit] = field(default_factory=dict)
    """By module, the matrix whose rows it looks up: its own, or that of a layer that it is tied to."""


def products_of(model: Any) -> ModelProducts:
    """The products of a model whose weights can be compressed."""
    candidates = [c for c in find(model, [], [], True)[0] if c.known]
    first = shared_names(model)
    out = ModelProducts()
    stored = _stored_names(model)
    for candidate in candidates:
        if candidate.kind == "experts":
            _experts(candidate, stored, out)
            continue
        parameter = next(iter(candidate.parameters))
        name = first.get(parameter, parameter)
        shape = tuple(candidate.module.weight.shape)
        transposed = candidate.kind == "conv1d"
        rows, cols = shape[::-1] if transposed else shape
        unit_name = stored.single.get(name, name) if stored is not None else name
        for other in (name, parameter):
            if other != unit_name:
                out.names[other] = (unit_name,)
        unit = Unit(unit_name, rows, cols, transposed, candidate.name)
        if candidate.kind == "embedding":
            out.embeddings[candidate.name] = unit
        else:
            out.products.append(Product(candidate.name, candidate.name, None, "weight", (unit,)))
    units = {unit.name for product in out.products for unit in product.units}
    units |= {unit.name for unit in out.embeddings.values()}
    for name, source in first.items():
        # All tied names lead to the one tensor.
        unit_name = out.names.get(source, (source,))[0]
        if name != source and unit_name in units and name not in units:
            out.names[name] = (unit_name,)
    return out


def _stored_names(model: Any) -> Any:
    """Which tensors of a saved checkpoint are for which parameter, where transformers can say it."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return None
    tensors = {name: torch.empty(p.shape, dtype=p.dtype, device="meta") for name, p in model.named_parameters()}
    try:
        with by_transformers(type(model).__name__, "cannot name its weights"):
            keys = list(revert_weight_conversion(model, tensors))
        return match(model, keys)
    except (WcodecError, AttributeError):
        # Not a model of transformers: its parameters have the names that files have.
        return None


def _experts(candidate: Candidate, stored: Any, out: ModelProducts) -> None:
    module: Any = candidate.module
    for stack in STACKS:
        parameter = joined(candidate.name, stack)
        count, rows, cols = module._parameters[stack].shape
        names_by_expert = stored.experts.get(parameter, {}) if stored is not None else {}
        for i in range(count):
            matrix_name = f"{parameter}.{i}"
            names = names_by_expert.get(i, (matrix_name,))
            # Parts are of one size where they are joined: gate and up.
            if rows % len(names):
                names = (matrix_name,)
            if names != (matrix_name,):
                out.names[matrix_name] = names
            units = tuple(
                Unit(name, rows // len(names), cols, False, f"{parameter}#{part}") for part, name in enumerate(names)
            )
            out.products.append(Product(matrix_name, candidate.name, i, stack, units))
