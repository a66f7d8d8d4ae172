"""One engine of one folder: tokens per second by number of sequences, a long prompt, memory, and tokens to check."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from . import gpu_time, models, planned

MODES = ("eager", "graphs", "compiled")
"""Without CUDA graphs; with graphs and without torch.compile; with both, which is vLLM's default."""

PROMPT, NEW = 32, 128
"""Tokens of a prompt, and tokens that are generated for each, where speeds are measured."""
LONG = 4096
"""Tokens of the sequences that are counted: how many of them fit into the cache."""
PREFILL = 2048
CHECKED_PROMPTS, CHECKED = 8, 48
"""Prompts whose tokens are checked, and the number of tokens of each."""
BATCHED = 8192
"""Tokens that one step reads at most."""

RANKS = {
    # Ranks talk within the machine, which may have no other address.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # On hosts that several machines share, multicast over NVLink can put GPUs of others out of service.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
ENVIRONMENT = {
    # The engine is in this process, so that its figures can be asked for; ranks beyond one have processes anyway.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Ranks are asked by functions that are sent to them.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    **RANKS,
    # Each profile would unload CUPTI when it ends, which graphs that were captured before do not bear everywhere.
    "TEARDOWN_CUPTI": "0",
}


@dataclass(frozen=True)
class Job:
    """An engine to measure."""

    folder: Path
    model: str
    scheme: str
    mode: str
    ranks: int
    sequences: tuple[int, ...]
    repeats: int = 3
    limit: int | None = None
    """Bytes of the card that the engine may take; all that it needs where there is no limit."""
    attention: str | None = None
    by_expert: bool = False
    """Whether each rank has some of a mixture's experts, instead of a part of each."""
    custom_all_reduce: bool = True
    """Whether ranks add by kernels of vLLM, and not by NCCL alone."""

    @property
    def key(self) -> dict[str, Any]:
        """The fields by which engines are compared."""
        return {"model": self.model, "scheme": self.scheme, "mode": self.mode, "ranks": self.ranks, "limit": self.limit}

    def to_json(self) -> dict[str, Any]:
        """The job for another process."""
        return {**asdict(self), "folder": str(self.folder)}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Job:
        """The job that :meth:`to_json` gave."""
        return cls(**{**given, "folder": Path(given["folder"]), "sequences": tuple(given["sequences"])})

    @property
    def tokens(self) -> Path:
        """The file of the tokens to check."""
        limited = "" if self.limit is None else f".{self.limit}"
        return self.folder.with_name(f"{self.folder.name}.{self.mode}.{self.ranks}{limited}.tokens.json")


def capture_sizes(sequences: tuple[int, ...]) -> list[int]:
    """The numbers of sequences that graphs are captured for.

    >>> capture_sizes((1, 8, 24))
    [1, 2, 4, 8, 16, 24]
    """
    most = max(*sequences, CHECKED_PROMPTS)
    powers = {1 << i for i in range(most.bit_length()) if 1 << i <= most}
    return sorted(powers | set(sequences) | {CHECKED_PROMPTS})


def cache_bytes(config: dict[str, Any], sequences: tuple[int, ...], ranks: int) -> int:
    """Bytes of each rank's cache that hold all sequences at once and one of the longest; keys and values of 16 bits.

    >>> small = {"num_hidden_layers": 2, "num_key_value_heads": 2, "num_attention_heads": 4, "hidden_size": 256}
    >>> cache_bytes(small, (1,), 1) == 2 * 2 * 2 * 64 * 2 * (8 * 192 + 2 * 4096)
    True
    """
    heads = max(config["num_key_value_heads"] // ranks, 1)
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token = 2 * config["num_hidden_layers"] * heads * width * 2
    # Blocks of a cache are handed out whole.
    return token * (max(*sequences, CHECKED_PROMPTS) * (PROMPT + NEW + 32) + 2 * LONG)


def options(job: Job, config: dict[str, Any], card: int) -> dict[str, Any]:
    """The arguments of vLLM's ``LLM``.

    :param config: of the folder, as its config.json has it.
    :param card: bytes of the card.
    """
    sizes = capture_sizes(job.sequences)
    modes: dict[str, dict[str, Any]] = {
        "eager": {"enforce_eager": True},
        "graphs": {
            "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
        },
        "compiled": {"compilation_config": {"cudagraph_capture_sizes": sizes}},
    }
    if job.limit is None:
        memory: dict[str, Any] = {"kv_cache_memory_bytes": cache_bytes(config, job.sequences, job.ranks)}
    else:
        memory = {"gpu_memory_utilization": job.limit / card}
    return {
        "dtype": "bfloat16",
        "max_model_len": LONG,
        "max_num_seqs": max(*job.sequences, CHECKED_PROMPTS),
        "max_num_batched_tokens": BATCHED,
        "tensor_parallel_size": job.ranks,
        "skip_tokenizer_init": True,
        # A prompt that was read before would cost nothing the second time.
        "enable_prefix_caching": False,
        "seed": 0,
        # It prepares kernels of packages that need not be there.
        "kernel_config": {"enable_jit_warmup": False},
        **({} if job.attention is None else {"attention_backend": job.attention}),
        # Without weights in the folder they are random. Only speed and memory are of interest then.
        **({} if models.has_weights(job.folder) else {"load_format": "dummy"}),
        **({"enable_expert_parallel": True} if job.by_expert else {}),
        **({} if job.custom_all_reduce else {"disable_custom_all_reduce": True}),
        **memory,
        **modes[job.mode],
    }


def prompts(count: int, vocabulary: int, length: int, seed: int) -> list[dict[str, list[int]]]:
    """Random prompts, as tokens."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (count, length), generator=generator)
    return [{"prompt_token_ids": row} for row in ids.tolist()]


def spread(amount: float, seconds: list[float]) -> dict[str, Any]:
    """Amounts per second: of the median time, and of the slowest and the fastest.

    >>> spread(8, [4.0, 1.0, 2.0])
    {'tokens_per_s': 4.0, 'spread': [2.0, 8.0], 'repeats': 3}
    """
    rates = [amount / max(seconds), amount / min(seconds)]
    return {"tokens_per_s": amount / median(seconds), "spread": rates, "repeats": len(seconds)}


Generate = Callable[[list[Any], int], tuple[float, list[list[int]]]]


def generation(run: Generate, count: int, vocabulary: int, repeats: int) -> dict[str, Any]:
    """The speed of so many sequences at once, without the time that their prompts take."""
    some = prompts(count, vocabulary, PROMPT, seed=count)
    run(some, 4)
    first = min(run(some, 1)[0] for _ in range(2))
    seconds = [run(some, NEW + 1)[0] - first for _ in range(max(repeats, 3))]
    step = median(seconds) / NEW * 1e3
    return {"sequences": count, "prompt_s": first, "step_ms": step, **spread(count * NEW, seconds)}


def prefill(run: Generate, vocabulary: int, repeats: int) -> dict[str, Any]:
    """The speed at which one long prompt is read."""
    some = prompts(1, vocabulary, PREFILL, seed=0)
    run(some, 1)
    return {"tokens": PREFILL, **spread(PREFILL, [run(some, 1)[0] for _ in range(max(repeats, 3))])}


# Sent to each rank. They refer to nothing else of this module, which a rank may not find.


def used_bytes(worker: Any) -> int:
    import torch

    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def weight_bytes(model: Any) -> int:
    """Bytes of a rank's weights: what decoders hold (or, where no GPU decodes, what is stored), and parameters."""
    stores, parameters = {}, {}
    for module in model.modules():
        layer = getattr(module, "_wcodec", None)
        for part in getattr(layer, "pieces", None) or [layer]:
            store = getattr(getattr(part, "layer", part), "_store", None)
            if store is not None:
                stores[id(store)] = store
    for parameter in model.parameters():
        storage = parameter.untyped_storage()
        parameters[storage.data_ptr()] = storage.nbytes()
    held = sum(s.device_bytes or sum(e.stored_bytes for e in s.container.stored) for s in stores.values())
    return held + sum(parameters.values())


def kinds(model: Any) -> dict[str, int]:
    layers = [m for m in model.modules() if getattr(m, "quant_method", None) is not None]
    compressed = sum(getattr(m, "_wcodec", None) is not None for m in layers)
    return {"compressed": compressed, "plain": len(layers) - compressed}


def measure(job: Job, tell: Callable[..., None]) -> None:
    """Starts the engine, tells each figure as soon as it is known, and writes the tokens to check."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("flashinfer") is None:
        # vLLM takes it for granted on a GPU.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    import torch
    from vllm import LLM, SamplingParams

    config = json.loads((job.folder / "config.json").read_text(encoding="utf-8"))
    there = torch.cuda.is_available()
    card = torch.cuda.get_device_properties(0).total_memory if there else 0
    begin = time.perf_counter()
    llm = LLM(str(job.folder), **options(job, config, card))
    started = time.perf_counter() - begin
    layers = llm.apply_model(kinds)[0]
    if (job.scheme == "bf16") != (layers["compressed"] == 0):
        raise RuntimeError(f"a folder of scheme {job.scheme} has {layers['compressed']} compressed layers in vLLM")
    built = llm.llm_engine.vllm_config
    cache = built.cache_config
    held = getattr(cache, "kv_cache_size_tokens", None) or cache.num_gpu_blocks * cache.block_size
    tell(
        "engine", **job.key, layers=layers, start_s=started, used_bytes=max(llm.collective_rpc(used_bytes)),
        cache_bytes=None if job.limit else cache_bytes(config, job.sequences, job.ranks), cache_tokens=held,
        long_sequences=held // LONG, graphs=built.compilation_config.cudagraph_mode.name, card_bytes=card,
        card=torch.cuda.get_device_name(0) if there else "no card", by_expert=job.by_expert,
        rank_bytes=llm.apply_model(weight_bytes), **planned.of_vllm(job.folder, job.scheme, job.ranks),
    )  # fmt: skip
    vocabulary = int(config["vocab_size"])

    def run(some: list[Any], tokens: int) -> tuple[float, list[list[int]]]:
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        answers = llm.generate(some, sampling, use_tqdm=False)
        return time.perf_counter() - begin, [list(a.outputs[0].token_ids) for a in answers]

    some = prompts(CHECKED_PROMPTS, vocabulary, PROMPT, seed=0)
    together = run(some, CHECKED)[1]
    alone = run(some[:1], CHECKED)[1]
    asked = [p["prompt_token_ids"] for p in (*some, some[0])]
    job.tokens.write_text(json.dumps({"key": job.key, "prompts": asked, "answers": together + alone}), encoding="utf-8")
    for count in job.sequences:
        tell("speed", **job.key, **generation(run, count, vocabulary, job.repeats))
    tell("prefill", **job.key, **prefill(run, vocabulary, job.repeats))
    # The last figures: a profiler may stay in the way of what runs behind it.
    gpu_time.measure(
        llm.collective_rpc,
        lambda count, tokens: run(prompts(count, vocabulary, PROMPT, seed=count), tokens),
        lambda: run(prompts(1, vocabulary, PREFILL, seed=0), 2),
        job.sequences, PREFILL, config["num_hidden_layers"], lambda kind, **values: tell(kind, **job.key, **values),
    )  # fmt: skip
