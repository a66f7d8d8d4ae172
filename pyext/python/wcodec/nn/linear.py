"""Linear layers with compressed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F

from .._core.coding import FileOptions
from .._core.keywords import keywords
from .._file.encode import compress_in_memory
from ._layers import ops
from ._layers.forms import summed
from ._layers.gradients import InputLayout, Through, any_wanted, back
from ._layers.layer import CompressedLayer
from ._layers.served import current_thread
from ._weights.providers import Product
from ._weights.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

_is_compiling = torch.compiler.is_compiling
_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def _addmm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of a ``Conv1D``, in the very way that transformers computes it."""
    flat = x.view(-1, x.size(-1))
    product = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
    return product.view(*x.shape[:-1], weight.shape[1])


class CompressedLinear(CompressedLayer):
    """``torch.nn.Linear`` with a compressed weight.

    >>> import torch, wcodec.nn
    >>> linear = torch.nn.Linear(256, 64)
    >>> layer = wcodec.nn.CompressedLinear.from_linear(linear, coder="huffman")
    >>> layer.weight.shape, layer.stored_bytes < layer.original_bytes
    (torch.Size([64, 256]), True)
    >>> x = torch.ones(2, 3, 256)
    >>> torch.equal(layer(x), layer.to_linear()(x))
    True

    Input of any leading dimensions, in the layer's dtype or under autocast. Gradients pass through to the input, and to
    a bias that wants them: the weight itself is frozen, and decoded again in the backward pass. Second derivatives are
    an error of torch.

    >>> x.requires_grad_()[0, 0, 0].item(), layer(x).sum().backward()
    (1.0, None)
    >>> torch.allclose(x.grad[0, 0], layer.weight.sum(0), atol=1e-4)
    True

    Layers are made by :meth:`from_linear`, :func:`wcodec.compress_` and :func:`wcodec.load_model`.
    """

    _product_of: ClassVar[Product] = staticmethod(F.linear)
    # The class of the layer that it stands for.
    _of: type[Any] = torch.nn.Linear

    def __init__(
        self,
        store: Store,
        tensor: str,
        in_features: int,
        out_features: int,
        bias: torch.Tensor | None = None,
        *,
        dtype: Any = torch.float32,
        device: Any = "cpu",
    ) -> None:
        self.in_features = in_features
        self.out_features = out_features
        # Inputs and outputs of the weight that is here, which where ranks share the layer is a part of it.
        self._features = (in_features, out_features)
        super().__init__(store, tensor, self._shape(), dtype, device)
        self.register_parameter("bias", None if bias is None else _frozen(bias, dtype, device))

    @classmethod
    @keywords(FileOptions, name="CompressedLinear.from_linear")
    def from_linear(
        cls,
        linear: torch.nn.Module,
        scheme: str | None = None,
        coder: str | None = None,
        *,
        bits: float | None = None,
        trellis: bool | None = None,
        **options: Unpack[FileOptions],
    ) -> CompressedLinear:
        """Compresses a ``torch.nn.Linear``, which stays as it is.

        :param options: see :class:`wcodec.FileOptions`; ``scheme``, ``coder``, ``bits`` and ``trellis`` as for
            :func:`wcodec.compress`.
        """
        weight = linear.weight.detach()
        encoding: dict[str, Any] = {"scheme": scheme, "coder": coder, "bits": bits, "trellis": trellis, **options}
        container = compress_in_memory({"weight": weight}, **encoding)
        place = {"dtype": weight.dtype, "device": weight.device}
        return cls(Store(container), "weight", linear.in_features, linear.out_features, linear.bias, **place)

    def to_linear(self) -> torch.nn.Module:
        """An uncompressed ``torch.nn.Linear`` with the decoded weight; of the class that it was, if that derives from
        it."""
        out = torch.nn.Linear(*self._features, self.bias is not None, device="meta")
        out.__class__ = self._of
        out.weight = torch.nn.Parameter(self._own_weight(), requires_grad=False)
        if self.bias is not None:
            out.bias = torch.nn.Parameter(self.bias.detach().clone(), requires_grad=False)
        return out.train(self.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The product with the decoded weight, and the bias."""
        if self._served and (serve := self._served.pop(current_thread(), None)) is not None:
            return serve(input)
        if _is_compiling():
            return ops.linear(*self._checked(input), self._handle, self._features[1])
        # The code below runs for every layer and token: in the usual case nothing is asked twice, and the bias is found
        # past torch's search for attributes, which takes longer than all else here.
        provider = self._weights.provider
        bias = self._parameters["bias"]
        if (
            provider is None
            or input.dtype is not self._dtype
            or (bias is not None and (bias.dtype is not self._dtype or bias.requires_grad))
            or _any_autocast()
            or (input.requires_grad and torch.is_grad_enabled())
        ):
            x, bias = self._checked(input)
            return Through.apply(x, bias, self) if any_wanted((x, bias)) else self._product(x, bias)
        try:
            return provider[0].apply(type(self)._product_of, provider[1], input, bias)
        except RuntimeError:
            self._check_place(input)
            raise

    def _checked(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Input and bias in the dtype to compute in, which is that of the input then."""
        dtype = self._dtype
        if torch.is_autocast_enabled(self._kind):
            dtype = torch.get_autocast_dtype(self._kind)
            input = input.to(dtype)
        if input.dtype != dtype:
            raise self._refuse(
                f"the input is {input.dtype}, and the layer computes in {dtype}",
                "convert the input, or the model with .to(dtype)",
                code="I538",
            )
        bias = self._parameters["bias"]
        return input, bias if bias is None or bias.dtype == dtype else bias.to(dtype)

    def _product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        provider = self._weights.provider if x.dtype is self._dtype else None
        if provider is None:
            self._check_place(x)
            provider = self._weights.prepared(x.dtype)
        try:
            return provider[0].apply(type(self)._product_of, provider[1], x, bias)
        except RuntimeError:
            self._check_place(x)
            raise

    def _computed(self, input: torch.Tensor) -> torch.Tensor:
        """The layer's result where no gradients are recorded and nothing is compiled."""
        return self._product(*self._checked(input))

    def _input_gradient(self, grad: torch.Tensor, layout: InputLayout | None) -> torch.Tensor:
        provider = (self._weights.provider if grad.dtype is self._dtype else None) or self._weights.prepared(grad.dtype)
        return provider[0].gradient(lambda g, w: back(g, self._as_factor(w), layout), provider[1], grad)

    @staticmethod
    def _as_factor(weight: torch.Tensor) -> torch.Tensor:
        """The weight as ``[in, out]``."""
        return weight.t()

    def _check_place(self, x: torch.Tensor) -> None:
        if x.device != self._device:
            raise self._refuse(
                f"the input is on {x.device}, and the layer on {self._device}", "move one of them", code="I538"
            )
        if x.shape[-1:] != self._features[:1]:
            size = x.shape[-1] if x.dim() else "no"
            raise self._refuse(
                f"the input has {size} features, and the layer takes {self._features[0]}", "reshape it", code="I538"
            )

    def _shape(self) -> tuple[int, ...]:
        return (self._features[1], self._features[0])

    def _form(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class CompressedSumLinear(CompressedLinear):
    """A linear layer of a class of its own that adds its bias to a rounded product, as Falcon's: for half precisions
    that is another number than torch's."""

    _product_of: ClassVar[Product] = staticmethod(summed)


class CompressedConv1D(CompressedLinear):
    """The ``Conv1D`` of transformers (GPT-2) with a compressed weight: a linear layer whose weight is ``[in, out]``."""

    cut = False
    _product_of: ClassVar[Product] = staticmethod(_addmm)

    @staticmethod
    def _as_factor(weight: torch.Tensor) -> torch.Tensor:
        return weight

    @classmethod
    @keywords(FileOptions, name="CompressedConv1D.from_conv1d")
    def from_conv1d(
        cls,
        conv: torch.nn.Module,
        scheme: str | None = None,
        coder: str | None = None,
        *,
        bits: float | None = None,
        trellis: bool | None = None,
        **options: Unpack[FileOptions],
    ) -> CompressedConv1D:
        """Compresses a ``transformers.pytorch_utils.Conv1D``, which stays as it is; scales are those of the outputs.

        :param options: as for :meth:`CompressedLinear.from_linear`.
        """
        weight = conv.weight.detach()
        encoding: dict[str, Any] = {"scheme": scheme, "coder": coder, "bits": bits, "trellis": trellis}
        encoding = {"transpose": "weight", **encoding, **options}
        container = compress_in_memory({"weight": weight}, **encoding)
        place = {"dtype": weight.dtype, "device": weight.device}
        return cls(Store(container), "weight", weight.shape[0], weight.shape[1], conv.bias, **place)

    def to_conv1d(self) -> torch.nn.Module:
        """An uncompressed ``Conv1D`` with the decoded weight (needs transformers)."""
        from transformers.pytorch_utils import Conv1D

        with torch.device("meta"):
            out = Conv1D(*self._features[::-1])
        out.weight = torch.nn.Parameter(self._own_weight(), requires_grad=False)
        out.bias = torch.nn.Parameter(self.bias.detach().clone(), requires_grad=False)
        return out.train(self.training)

    def to_linear(self) -> torch.nn.Module:
        """An uncompressed ``torch.nn.Linear`` with the decoded weight, transposed."""
        out = torch.nn.Linear(*self._features, self.bias is not None, device="meta")
        out.weight = torch.nn.Parameter(self._own_weight().t().contiguous(), requires_grad=False)
        if self.bias is not None:
            out.bias = torch.nn.Parameter(self.bias.detach().clone(), requires_grad=False)
        return out.train(self.training)

    def _shape(self) -> tuple[int, ...]:
        return self._features


def _frozen(tensor: torch.Tensor, dtype: Any, device: Any) -> torch.nn.Parameter:
    if tensor.device.type == "meta":
        # A model that is being loaded: its biases are read with all that is not compressed.
        device = "meta"
    return torch.nn.Parameter(tensor.detach().to(device=device, dtype=dtype), requires_grad=False)


__all__ = ["CompressedConv1D", "CompressedLinear", "CompressedSumLinear"]
