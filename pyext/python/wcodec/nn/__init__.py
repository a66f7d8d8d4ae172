"""Layers of torch whose weights stay compressed, and are decoded when they are used.

>>> import torch, wcodec.nn
>>> layer = wcodec.nn.CompressedLinear.from_linear(torch.nn.Linear(64, 32))
>>> layer.scheme, layer.weight.shape, layer(torch.ones(2, 64)).shape
('int8', torch.Size([32, 64]), torch.Size([2, 32]))

They are made by :func:`wcodec.compress_` and :func:`wcodec.load_model` for whole models, or by ``from_linear``,
``from_conv1d`` and ``from_embedding`` one by one. The layers of one block are decoded together, by one launch on a GPU,
into memory that all blocks of all models on that device share; so the weight that a layer computes with is valid only
while it computes. ``layer.weight`` is a :class:`CompressedWeight`: it knows its shape, dtype and device, and decodes,
to a tensor of its own, when its values are used.

Layers of other classes, and mixtures and modules of any kind with large matrices, keep their class's own forward, which
reads such weights (:class:`CompressedModule`).

Gradients pass through the layers to their inputs and biases; weights are frozen, and decoded again in the backward
pass. So adapters beside them can be trained: PEFT's LoRA attaches to :class:`CompressedLinear` and
:class:`CompressedConv1D`.

Calls from several threads take turns on a GPU. Several streams of one GPU do too: the later one waits for the earlier.
A CUDA graph decodes for itself, each time it is replayed, into memory that the graphs of its pool share and nobody else
uses; it keeps what it reads, so that the model may go before it. Run the model once before a graph is captured, and
keep its bytes on the device: layers that are streamed (residency ``host``, and some of ``auto``) cannot be captured.
"""

from ._fusion.fuse import fuse_
from ._layers.layer import CompressedLayer
from ._layers.weight import CompressedWeight
from .embedding import CompressedEmbedding
from .experts import CompressedExperts, ExpertStack
from .linear import CompressedConv1D, CompressedLinear, CompressedSumLinear
from .own import CompressedModule, CompressedTable

__all__ = [
    "CompressedConv1D",
    "CompressedEmbedding",
    "CompressedExperts",
    "CompressedLayer",
    "CompressedLinear",
    "CompressedModule",
    "CompressedSumLinear",
    "CompressedTable",
    "CompressedWeight",
    "ExpertStack",
    "fuse_",
]
