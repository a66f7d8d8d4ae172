"""Gradients that pass through compressed weights: weights are decoded again in the backward pass, and a graph of
autograd keeps no decoded weight.

On a CPU they are those of torch's own product with the decoded weight, bit for bit. So this module does what torch
does, whose choice between two products depends on how the input lay in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ..._core.errors import InputError


class InputLayout:
    """The shape and strides of an input. The gradient depends on them alone, not on values: the weight is frozen."""

    def __init__(self, x: torch.Tensor) -> None:
        self.shape, self.stride = x.shape, x.stride()

    @property
    def joins(self) -> bool:
        """Whether torch takes all leading dimensions for one; where it does not, it multiplies batches."""
        shape, stride = self.shape, self.stride
        if len(shape) < 3 or 0 in shape:
            return True
        return all(shape[i] == 1 or stride[i] == stride[i + 1] * shape[i + 1] for i in range(len(shape) - 2))

    @property
    def by_columns(self) -> bool:
        """Whether a column of the input, as a matrix, was contiguous: then torch makes a gradient that is so, too."""
        shape, stride = self.shape, self.stride
        if len(shape) == 1:
            return shape[0] == 1 and stride[0] == 1
        if len(shape) > 2:
            if stride[-1] == 1 and stride[-2] == shape[-1] != 1:
                return False
            matrix = torch.empty_strided(shape, stride, device="meta").reshape(-1, shape[-1])
            shape, stride = matrix.shape, matrix.stride()
        return bool(stride[0] == 1 and stride[1] == shape[0])


def back(grad: torch.Tensor, weight: torch.Tensor, layout: InputLayout | None) -> torch.Tensor:
    """The gradient of an input that was multiplied with a weight.

    :param weight: ``[in, out]``, as torch multiplies with it: the transposed one of a linear layer.
    :param layout: that of the input; one that lies in memory row by row, if left out.
    """
    if layout is not None and not layout.joins and not grad.is_cuda:
        return _as_torch_does(grad, weight, layout)
    rows = grad.reshape(-1, weight.shape[1]) if grad.dim() != 2 else grad
    if layout is not None and layout.by_columns:
        out = weight.mm(rows.t()).t()
    else:
        out = rows.mm(weight.t())
    return out.reshape(*grad.shape[:-1], weight.shape[0]) if grad.dim() != 2 else out


def _as_torch_does(grad: torch.Tensor, weight: torch.Tensor, layout: InputLayout) -> torch.Tensor:
    """The gradient of :func:`back`, by torch's own graph of the product, which is computed again for it. It is for rare
    inputs, for which torch's choice of a product depends on more than is worth writing down here."""
    with torch.enable_grad():
        x = torch.empty_strided(layout.shape, layout.stride, dtype=grad.dtype, device=grad.device, requires_grad=True)
        out = F.linear(x, weight.t())
    return torch.autograd.grad(out, x, grad)[0]


class Frozen(Protocol):
    """A layer that multiplies with a compressed weight, which is not trained."""

    def _product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product and the bias."""

    def _input_gradient(self, grad: torch.Tensor, layout: InputLayout | None) -> torch.Tensor:
        """The gradient of the product's input; it decodes."""

    def _source(self) -> Any:
        """The source of the weight: another object if it was replaced."""

    def _replaced(self) -> InputError:
        """The error where it was."""


class Through(torch.autograd.Function):  # type: ignore[misc]
    """``Through.apply(x, bias, frozen)``: the product, with gradients of the input and the bias."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, frozen: Frozen) -> torch.Tensor:
        ctx.frozen, ctx.source, ctx.layout = frozen, frozen._source(), InputLayout(x)
        return frozen._product(x, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        of_x = of_bias = None
        if ctx.needs_input_grad[0]:
            if ctx.frozen._source() is not ctx.source:
                raise ctx.frozen._replaced()
            of_x = ctx.frozen._input_gradient(grad, ctx.layout)
        if ctx.needs_input_grad[1]:
            of_bias = bias_gradient(grad)
        return of_x, of_bias, None


def bias_gradient(grad: torch.Tensor) -> torch.Tensor:
    """The gradient of a bias."""
    return grad if grad.dim() == 1 else grad.reshape(-1, grad.shape[-1]).sum(0)


def any_wanted(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether torch records gradients of any of these."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
