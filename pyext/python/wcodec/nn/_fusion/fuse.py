"""Has models multiply straight from compressed weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..._core.keywords import keywords
from ..experts import CompressedExperts
from ..linear import CompressedLinear
from . import blocks as _blocks
from . import groups as _groups


@keywords()
def fuse_(model: torch.nn.Module, fused: bool = True, *, groups: bool = True, blocks: bool = True) -> int:
    """Does as :func:`wcodec.compress_`, :func:`wcodec.load_model` and transformers' ``from_pretrained`` do unless they
    are given ``fused=False``; ``fuse_(model, False)`` undoes it. On a CPU it changes nothing. It lets the compressed
    linear layers and experts of a model multiply few tokens straight from their compressed weights, on a GPU: up to 128
    with layout ``quad`` from compute capability 9.0 on, otherwise 16 (:meth:`wcodec.GpuDecoder.most_vectors`). One
    launch decodes and multiplies, and the weight is written nowhere. More tokens, and what no kernel multiplies with
    (:meth:`wcodec.GpuDecoder.can_fuse` says why), are decoded for; fewer tokens, too, where that was measured to be
    faster. Weights may be anywhere: what is streamed is fetched ahead in the order of the last token, so that the first
    one after another use waits a little.

    It is fastest with what ``optimize="speed"`` chooses.

    A layer's result is then no longer that of torch's product with the decoded weight bit for bit, but nearer to the
    exact one: weights are not rounded to the dtype, sums are f32 in a fixed order, and only the result is rounded. It
    is the same in eager mode and in CUDA graphs, and wherever the compressed bytes are. A token alone may give other
    last bits than beside others, and up to 8, 16, 32, 64 and 128 tokens, too, as with torch.

    Experts that do what Mixtral's do take two launches for all that tokens are routed to, up to 64 in all
    (tokens times experts of each), and only these are decoded. Sums over a token's experts are f32.

    :param fused: False goes back to decoding, with everything that is said here.
    :param groups: layers to which a module gives the same tensor, such as q, k and v, or gate and up, share a launch.
        Which these are is read from the code of the module's ``forward``. Results are the same bits as without.
    :param blocks: a block of a model like Llama's takes four launches, attention itself aside: RMSNorms, activations of
        gates times up and residuals are done by those that multiply, in f32, and less is rounded on the way: a block's
        result is nearer to the exact one than that of its modules, and differs from it by their roundings (tests allow
        2e-2 of its size in bfloat16 and 3e-3 in float16). A norm behind a half, as in Gemma and OLMo 2, and a LayerNorm
        in front, as in Cohere, is a kernel beside them. For more tokens weights are decoded; then each RMSNorm is one
        kernel of torch's (where it has one), q, k and v are one product, and gates are changed in place. Taken are
        blocks whose code is that of a description (docs/fused-layers.md has which), with norms and layers to which
        nobody has added hooks, and while no gradients are recorded. A half that no description fits, such as a mixture
        of experts, is computed as it was, and so are blocks with weights that no kernel multiplies with, such as
        lossless ones.
    :returns: the number of linear layers and modules of experts that this is for.

    >>> import torch, wcodec.nn
    >>> model = torch.nn.Sequential(wcodec.nn.CompressedLinear.from_linear(torch.nn.Linear(64, 64)))
    >>> wcodec.nn.fuse_(model)
    1
    """
    layers = [m for m in model.modules() if isinstance(m, (CompressedLinear, CompressedExperts))]
    for layer in layers:
        layer._store.fuse(fused)
    arrange(model, groups=fused and groups, blocks=fused and blocks)
    return len(layers)


def arrange(model: torch.nn.Module, *, groups: bool = True, blocks: bool = True) -> None:
    """Has modules whose layers can share launches run them so, wherever they are on a GPU, and all others as they were.

    :param groups: as for :func:`fuse_`, as is ``blocks``.
    """
    modules = list(model.modules())
    for module in modules:
        _groups.restore(module)
    if groups:
        for module in modules:
            if groups_of_module := _groups.find(module):
                _groups.change(module, _groups.together, _wcodec_groups=groups_of_module)
                _prepare(groups_of_module)
    if blocks:
        for module in modules:
            if block := _blocks.find(module):
                _groups.change(module, _blocks.run, _wcodec_block=block)
                _prepare([block])
        _blocks.link_blocks(modules)


def fuses(model: torch.nn.Module) -> bool:
    """Whether some layers of a model multiply a few tokens with compressed weights, where they are on a GPU."""
    return any(isinstance(m, (CompressedLinear, CompressedExperts)) and m._store.fuses for m in model.modules())


def _prepare(units: Iterable[_groups.LayerGroup | _blocks.Block]) -> None:
    """Makes the launches of layers that are on a GPU, for ``torch.compile``, which has none made on its way."""
    for unit in units:
        if all(layer.device.type in _groups.KINDS for layer in unit.layers):
            unit.prepare()


__all__ = ["arrange", "fuse_", "fuses"]
