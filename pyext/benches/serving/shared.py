"""A model that several ranks share by transformers' tensor parallelism, and one whose layers are on several cards.

Each rank is a process that `launch` starts. Figures are told by the first; memory is that of each.
"""

from __future__ import annotations

import gc
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from . import models, planned
from .engine import PROMPT, prompts, spread

NEW = 32
"""Tokens that are generated for each sequence, where speeds are measured."""
CHECKED = 64
"""Tokens of the prompt whose logits are compared."""


def load(folder: Path, ranks: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The folder's model, shared by all ranks. A folder without weights gets random ones, on each rank its own."""
    import wcodec
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    wcodec.register()
    config = DistributedConfig(tp_size=ranks, tp_plan="auto")
    if not models.has_weights(folder):
        return random(folder, config)
    options = {"dtype": dtype, "distributed_config": config}
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def random(folder: Path, shared: Any) -> Any:
    """A model with random weights, of which a rank makes its parts alone."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    kind = type(model)
    shared, place, mesh = kind.prepare_distribute_model(shared)
    model = kind.maybe_distribute_model(model, shared, mesh)
    # Angles of positions are computed, and no weights.
    with torch.device(place):
        model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
        torch.manual_seed(1)
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = _filled(parameter, place)
    return model.eval()


def _filled(parameter: torch.nn.Parameter, place: Any) -> torch.nn.Parameter:
    """A parameter like this one, with values."""
    made = torch.empty_like(parameter, device=place)
    local = made.to_local() if hasattr(made, "to_local") else made
    with torch.no_grad():
        local.normal_(0, 0.02) if local.dim() > 1 else local.fill_(1)
    return torch.nn.Parameter(made, requires_grad=False)


def weight_bytes(model: Any) -> dict[str, int]:
    """Bytes of weights that are here, by device: what decoders hold (or, where no GPU decodes, what is stored), and
    parameters."""
    from wcodec.nn import CompressedLayer

    out: dict[str, int] = {}
    stores = {(id(m._store), str(m.device)): (m._store, m.device) for m in _compressed(model, CompressedLayer)}
    for store, device in stores.values():
        state = store._devices.get(device)
        held = 0 if state is None else sum(decoder.device_bytes for decoder in state.decoders)
        stored = 0 if device.type == "cuda" else sum(entry.stored_bytes for entry in store.container.stored)
        out[str(device)] = out.get(str(device), 0) + (held or stored)
    storages = {}
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        storage = local.untyped_storage()
        storages[str(local.device), storage.data_ptr()] = storage.nbytes()
    for (place, _), size in storages.items():
        out[place] = out.get(place, 0) + size
    return {place: size for place, size in sorted(out.items()) if place != "meta"}


def _compressed(model: Any, kind: type) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


def digest(logits: torch.Tensor) -> str:
    """A name of these bits."""
    return hashlib.sha256(logits.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:16]


def clean() -> None:
    """Gives back the memory of models that are gone."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def ids_of(vocabulary: int, count: int, length: int) -> torch.Tensor:
    """Prompts, where the ranks' models take them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = [p["prompt_token_ids"] for p in prompts(count, vocabulary, length, seed=count)]
    return torch.tensor(rows, device=device)


def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits of the last prompt, in memory of their own."""
    with torch.no_grad():
        out: torch.Tensor = model(ids, use_cache=False).logits.clone()
    return out


def generation(model: Any, ids: torch.Tensor, repeats: int) -> dict[str, Any]:
    """The speed of generation, without the time that prompts take."""

    def run(tokens: int) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.no_grad():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), min_new_tokens=tokens, max_new_tokens=tokens,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    run(2)
    first = run(1)
    seconds = [max(run(NEW + 1) - first, 1e-9) for _ in range(repeats)]
    step = median(seconds) / NEW * 1e3
    return {"sequences": len(ids), "step_ms": step, **spread(len(ids) * NEW, seconds)}


def measure(job: dict[str, Any], tell: Callable[..., None]) -> None:
    """One rank's work.

    :param job: ``folder``, ``scheme``, ``model``, ``ranks``, ``sequences`` and ``repeats``; and ``plain``, the folder
        of the dequantized weights that logits are compared with, or nothing.
    """
    import torch.distributed as dist

    folder, scheme, ranks = Path(job["folder"]), job["scheme"], int(job["ranks"])
    first = os.environ["RANK"] == "0"
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    key = {"model": job["model"], "scheme": scheme, "ranks": ranks}

    def told(kind: str, **values: Any) -> None:
        if first:
            tell(kind, **key, **values)

    begin = time.perf_counter()
    model = load(folder, ranks)
    vocabulary = int(model.config.vocab_size)
    ids = ids_of(vocabulary, 1, CHECKED)
    logits = logits_of(model, ids)
    started = time.perf_counter() - begin
    again = logits_of(model, ids)
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, (sum(weight_bytes(model).values()), digest(logits), digest(again)))
    plan = planned.of_transformers(folder, scheme, ranks) if first else {}
    told(
        "shared", start_s=started, rank_bytes=[held for held, _, _ in found], digests=[one for _, one, _ in found],
        same_again=all(one == two for _, one, two in found), card=_card(), **plan,
    )  # fmt: skip
    for count in job["sequences"]:
        speed = generation(model, ids_of(vocabulary, count, PROMPT), int(job["repeats"]))
        told("shared_speed", **speed)
    if job.get("plain") is not None:
        del model
        clean()
        plain = Path(job["plain"])
        rounded = logits_of(load(plain, ranks), ids)
        clean()
        exact = logits_of(load(plain, ranks, torch.float32), ids)
        told("shared_logits", error=distance(logits, exact), own_error=distance(rounded, exact))


def distance(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """The distance of logits from exact ones, as a part of these: both by the roots of their sums of squares.

    >>> distance(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])) == 1 / 34**0.5
    True
    """
    exact = exact.double()
    return float((logits.double() - exact).norm() / exact.norm())


def leave() -> None:
    """Ends what ranks talk by, after their last word."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _card() -> str:
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no card"


def maps(job: dict[str, Any], tell: Callable[..., None]) -> None:
    """Logits and tokens of a model whose layers are on several cards, and of the same on one."""
    import wcodec
    from transformers import AutoModelForCausalLM

    wcodec.register()
    folder = Path(job["folder"])
    one = {"": 0 if torch.cuda.is_available() else "cpu"}
    found = []
    for where in (one, "auto"):
        begin = time.perf_counter()
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map=where).eval()
        # With hooks of accelerate, blocks are not done whole.
        wcodec.nn.fuse_(model, False)
        ids = ids_of(int(model.config.vocab_size), 1, CHECKED)
        logits = digest(logits_of(model, ids))
        with torch.no_grad():
            options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
            text = model.generate(ids, attention_mask=torch.ones_like(ids), **options).tolist()
        found.append((logits, text, weight_bytes(model), time.perf_counter() - begin))
        del model
        clean()
    (wanted, text, _, _), (got, grown, held, seconds) = found
    tell(
        "map", model=job["model"], scheme=job["scheme"], held=held, same_logits=got == wanted, same_text=grown == text,
        seconds=seconds, card=_card(),
    )  # fmt: skip
