"""The load format ``wcodec``: reads of a compressed folder what this rank's layers ask for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from . import adapters, blocks
from .arguments import FORMAT, engine_settings, record_of
from .config import METHOD
from .deferred import Placeholder, virtual
from .methods import Embedding, Experts, Linear
from .rank import Rank
from .weights import Weights, settings_of

_log = logging.getLogger(__name__)
# Files that are needed of a folder on the Hub, beside those that vLLM reads itself.
_WANTED = ["*.wcodec", "*.safetensors", "*.json"]


class WCodecLoader(DefaultModelLoader):  # type: ignore[misc]
    """Loads compressed models, and all others (such as a draft model beside one) as vLLM does."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self._weights: Weights | None = None

    def _prepare_weights(self, *args: Any, **kwargs: Any) -> Any:
        # vLLM's own way of finding files depends on a format that it knows.
        before = self.load_config.load_format
        self.load_config.load_format = "auto"
        try:
            return super()._prepare_weights(*args, **kwargs)
        finally:
            self.load_config.load_format = before

    def download_model(self, model_config: Any) -> None:
        """Fetches the folder of a repository."""
        if model_config.quantization == METHOD:
            self._folder(model_config)
        else:
            super().download_model(model_config)

    def get_all_weights(self, model_config: Any, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """The folder's tensors: those that are compressed have no data until a layer takes them."""
        if model_config.quantization != METHOD:
            yield from super().get_all_weights(model_config, model)
            return
        self._weights = Weights(self._folder(model_config))
        yield from self._weights.by_checkpoint_names(model_config.hf_config)

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        """Reads what the layers of this rank need, and makes them."""
        super().load_weights(model, model_config)
        if model_config.quantization != METHOD:
            return
        assert self._weights is not None
        config = get_current_vllm_config()
        engine = engine_settings(config)
        settings = {**settings_of(record_of(model_config)), **settings_of(engine, only_given=True)}
        device = torch.device(self.load_config.device or config.device_config.device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        rank = Rank(self._weights, device, settings, fused=bool(engine.get("fused", True)))
        make_layers(model, rank, bool(engine.get("decode_embeddings", False)), config.lora_config)
        self._weights = None
        if engine.get("fused", True) and config.lora_config is None:
            # Adapters stand in the place of layers, and engines that guess ahead look at what goes between them.
            ranks, guesses = config.parallel_config.tensor_parallel_size, config.speculative_config is not None
            blocks.fuse(model, device, ranks=ranks, joins=not guesses)

    def _folder(self, model_config: Any) -> Path:
        name = model_config.model
        if Path(name).is_dir():
            return Path(name)
        from huggingface_hub import snapshot_download

        wanted = {"allow_patterns": _WANTED, "revision": model_config.revision}
        return Path(snapshot_download(name, cache_dir=self.load_config.download_dir, **wanted))


def make_layers(model: torch.nn.Module, rank: Rank, decode_embeddings: bool = False, lora_config: Any = None) -> None:
    """Makes the compressed layers of a model whose loaders have said what goes where.

    :param decode_embeddings: whether embeddings that are no heads are kept as they are.
    :param lora_config: vLLM's of adapters; None without them.
    """
    layers = [m for m in model.modules() if isinstance(getattr(m, "quant_method", None), QuantizeMethodBase)]
    for layer in layers:
        # A head that vLLM makes without the config's method, and ties to an embedding that has it.
        if isinstance(layer, ParallelLMHead) and isinstance(virtual(layer.weight), Placeholder):
            layer.quant_method = Embedding("lm_head")
    heads = {id(virtual(layer.weight)) for layer in layers if isinstance(layer, ParallelLMHead)}
    plain = []
    for layer in layers:
        method = layer.quant_method
        if not isinstance(method, Linear | Embedding | Experts):
            continue
        method.check(layer)
        looked_up = isinstance(layer, VocabParallelEmbedding) and id(virtual(layer.weight)) not in heads
        if (decode_embeddings and looked_up) or not method.needs(layer, rank):
            plain.append((layer, method))
    kept = {id(layer) for layer, _ in plain}
    experts = {id(layer) for layer in layers if isinstance(layer.quant_method, Experts)}
    adapters.refuse_experts(model, lora_config, experts - kept)
    rank.make()
    for layer, method in plain:
        method.give_up(layer, rank)


def register() -> None:
    """Makes the format known."""
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER

    if _LOAD_FORMAT_TO_MODEL_LOADER.get(FORMAT) is not WCodecLoader:
        register_model_loader(FORMAT)(WCodecLoader)
