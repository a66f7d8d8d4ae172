"""Tools of the benchmark of Llamas: the model, generation, decode steps, memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
import wcodec
from transformers import AutoModelForCausalLM, LlamaConfig, StaticCache
from wcodec._models.running import cache_name

# Tokens of every prompt of a generation.
PROMPT = 8
# Steps that are not timed, so that nothing is new to those that are.
WARM_UP = 5
# Degrees of freedom of the distribution that weights are drawn from.
DEGREES = 6


# Configurations, by what --shapes names.
SHAPES: dict[str, dict[str, int]] = {
    "tinyllama": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
    "llama-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "llama-70b": {
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    # For trying a benchmark out where there is no GPU.
    "small": {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    # For trying out what takes several GPUs.
    "small-ranks": {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    },
}


def build(shapes: str, layers: int | None = None, device: str = "cuda") -> Any:
    """The model, in bf16 on the GPU, or on another device."""
    given = SHAPES[shapes] if layers is None else {**SHAPES[shapes], "num_hidden_layers": layers}
    config = LlamaConfig(**given, max_position_embeddings=2048, tie_word_embeddings=False)
    torch.manual_seed(1)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)
    fill(model, device)
    return model


def fill(model: Any, device: str) -> None:
    """Gives matrices random weights with heavy tails (Student-t, 6 degrees of freedom); experts that are one tensor are
    a matrix each."""
    for p in model.parameters():
        for matrix in p if p.dim() == 3 else [p] if p.dim() == 2 else []:
            fill_matrix(matrix, device)


def fill_matrix(matrix: torch.Tensor, device: str) -> None:
    """Gives one matrix random weights with heavy tails."""
    chi = torch.distributions.Chi2(torch.tensor(float(DEGREES), device=device)).sample(matrix.shape)
    matrix.copy_(torch.randn(matrix.shape, device=device) * (DEGREES / chi).sqrt() * 0.02)


def prompt(tokens: int = PROMPT, batch: int = 1, device: str = "cuda") -> torch.Tensor:
    return torch.arange(1, tokens + 1, device=device).repeat(batch, 1)


def synchronize() -> None:
    """Waits for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(run: Callable[[], Any]) -> float:
    """Seconds until the GPU has done it."""
    synchronize()
    begin = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - begin


def generate(model: Any, tokens: int, batch: int = 1, device: str = "cuda") -> float:
    """Seconds for so many greedy tokens of each of a batch, after a short prompt."""
    ids = prompt(batch=batch, device=device)
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    return timed(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(prompt(64)).logits.clone()


def largest(seen: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, of the largest value."""
    return float((seen.float() - wanted.float()).abs().max() / wanted.float().abs().max())


def clean() -> None:
    """Gives back what nobody has any more, also to the driver."""
    gc.collect()
    if not torch.cuda.is_available():
        return
    torch.cuda.synchronize()
    # cuBLAS has some memory for each stream that it was ever called in, such as those that graphs were captured in.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def held() -> dict[str, int]:
    """Bytes of torch's tensors, and what is used of the device."""
    clean()
    free, total = torch.cuda.mem_get_info()
    return {"allocated": torch.cuda.memory_allocated(), "used": total - free}


def peak(model: Any, tokens: int) -> dict[str, Any]:
    """Memory while a model generates. Compressed bytes, the ring and what weights are decoded into are not torch's, and
    added."""
    clean()
    torch.cuda.reset_peak_memory_stats()
    generate(model, tokens)
    free, total = torch.cuda.mem_get_info()
    allocated = torch.cuda.max_memory_allocated()
    parts = [p for p in wcodec.measure_vram(model).parts if p.device.startswith("cuda")]
    others = sum(p.bytes for p in parts if p.name.startswith(("compressed", "ring", "decoded weights")))
    named = {p.name: p.bytes for p in parts}
    return {"vram": allocated + others, "allocated": allocated, "used": total - free, "parts": named}


class Steps:
    """Greedy decode steps of a model with a static cache, of so many texts: eager, as a CUDA graph, or compiled."""

    def __init__(self, model: Any, tokens: int, batch: int = 1, device: str = "cuda") -> None:
        self._model = model
        self._tokens = tokens
        self._cache = StaticCache(config=model.config, max_cache_len=PROMPT + WARM_UP + tokens)
        self._cached = {cache_name(model): self._cache}
        self._prompt = prompt(batch=batch, device=device)
        self._token = prompt(1, batch, device)

    def _forward(self) -> torch.Tensor:
        found: torch.Tensor = self._model(self._token, use_cache=True, **self._cached).logits
        return found

    def _read(self) -> None:
        """Begins anew, in the same memory."""
        self._cache.reset()
        out = self._model(self._prompt, use_cache=True, **self._cached).logits
        self._token.copy_(out[:, -1:].argmax(-1))

    def _next(self, out: torch.Tensor) -> torch.Tensor:
        self._token.copy_(out[:, -1:].argmax(-1))
        return out

    def eager(self) -> Callable[[], torch.Tensor]:
        return lambda: self._next(self._forward())

    def captured(self) -> Callable[[], torch.Tensor]:
        """A step as a CUDA graph."""
        self._read()
        step = self.eager()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    def compiled(self) -> Callable[[], torch.Tensor]:
        """A step by ``torch.compile``, in graphs of its own."""
        function = torch.compile(self._forward, mode="reduce-overhead")

        def step() -> torch.Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            return self._next(function())

        self._read()
        for _ in range(WARM_UP):
            step()
        return step

    def seconds(self, step: Callable[[], torch.Tensor]) -> float:
        """The time for all tokens, after a prompt and the first steps."""
        self._read()
        for _ in range(WARM_UP):
            step()
        return timed(lambda: [step() for _ in range(self._tokens)])

    def first(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The logits of the first token after the prompt."""
        self._read()
        return step().clone()

    def outputs(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The logits of all tokens."""
        self._read()
        return torch.cat([step().clone() for _ in range(self._tokens)])
