"""Work of each of several ranks in the tests of tensor parallelism, all over gloo on the CPU: one start of the ranks,
many checks, since starting costs more than they do."""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

IDS = [[5, 1, 17, 40, 63, 2, 9], [80, 3, 3, 41, 12, 7, 88]]


def free_port() -> int:
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run(ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Results of ``work(*arguments)`` on each of so many ranks; an error of any of them is an error here."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers", "wcodec._models", "transformers.models.llama", __name__])
    answers = context.Queue()
    port = free_port()
    started = [
        context.Process(target=_rank, args=(number, ranks, port, answers, work, arguments)) for number in range(ranks)
    ]
    for process in started:
        process.start()
    found: dict[int, Any] = {}
    try:
        while len(found) < ranks:
            number, failed, answer = answers.get(timeout=240)
            if failed:
                raise AssertionError(f"rank {number}:\n{answer}")
            found[number] = answer
    finally:
        for process in started:
            process.join(timeout=20)
            if process.is_alive():
                process.kill()
    return [found[number] for number in range(ranks)]


def _rank(number: int, ranks: int, port: int, answers: Any, work: Callable[..., Any], arguments: Any) -> None:
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in place.items()}, MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
    import torch

    torch.set_num_threads(1)
    try:
        answers.put((number, False, work(*arguments)))
    except BaseException:
        answers.put((number, True, traceback.format_exc()))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def load(folder: Path, plan: Any = "auto", **options: Any) -> Any:
    """A folder's model, shared by all ranks."""
    import transformers
    import wcodec
    from transformers.distributed import DistributedConfig

    wcodec.register()
    size = int(os.environ["WORLD_SIZE"])
    shared = DistributedConfig(tp_size=size, tp_plan=plan, **options)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, distributed_config=shared).eval()


def compare(folders: list[tuple[Path, Path]]) -> list[dict[str, Any]]:
    """Logits and generated text of compressed models and of the same uncompressed, shared alike, and what this rank has
    of the compressed ones."""
    import torch
    from wcodec.nn import CompressedExperts, CompressedLayer

    found = []
    ids = torch.tensor(IDS)
    for compressed, plain in folders:
        model, reference = load(compressed), load(plain)
        layers = {name: m for name, m in model.named_modules() if isinstance(m, CompressedLayer)}
        parts = {}
        for name, layer in layers.items():
            if isinstance(layer, CompressedExperts):
                stacks = {s: torch.stack(list(map(getattr(layer, s).__getitem__, range(4)))) for s in layer._stacks}
            else:
                stacks = {"weight": layer.weight}
            mine = reference.get_submodule(name)
            for stack, part in stacks.items():
                whole = getattr(mine, stack)
                if hasattr(whole, "to_local"):
                    # Uncompressed embeddings need not stay whole if compressed ones do.
                    whole = whole.full_tensor() if layer.part is None else whole.to_local()
                parts[f"{name}.{stack}"] = (layer.part, tuple(part.shape), bool(torch.equal(part, whole)))
        with torch.no_grad():
            logits, wanted = model(ids).logits, reference(ids).logits
            grown = model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
            found.append(
                {
                    "parts": parts,
                    "logits": logits.numpy(),
                    "wanted": wanted.numpy(),
                    "text": grown.tolist(),
                    "wanted_text": reference.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0).tolist(),
                    "stored": sum(e.stored_bytes for e in next(iter(layers.values()))._store.container.stored),
                    "repr": repr(list(layers.values())[-1]),
                }
            )
        found[-1]["saving"] = _said(lambda model=model, place=compressed.parent / "saved": model.save_pretrained(place))
    return found


def _said(work: Callable[[], Any]) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refusals(folder: Path, plain: Path, damaged: Path, three: Path, experts: Path) -> dict[str, str]:
    """Messages of refusals on this rank: each is an error on all ranks, and none waits for another."""
    import transformers
    import wcodec
    from transformers.distributed import DistributedConfig

    size = int(os.environ["WORLD_SIZE"])
    here = damaged if os.environ["RANK"] == "1" else folder
    quantizer = wcodec.WCodecConfig()
    shared = DistributedConfig(tp_size=size, tp_plan="auto")
    of = transformers.AutoModelForCausalLM.from_pretrained
    return {
        "one rank": _said(lambda: load(here)),
        "on the fly": _said(lambda: of(plain, quantization_config=quantizer, distributed_config=shared)),
        "style": _said(lambda: load(folder, {"model.layers.*.mlp.up_proj": "sequence_parallel"})),
        "heads": _said(lambda: load(three)),
        "experts": _said(lambda: load(experts)),
        "after all": _said(lambda: load(folder) and None),
    }


def free() -> None:
    """Lets go of what models left on GPUs."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def taken(model: Any) -> list[int]:
    """Bytes on each GPU that hold weights: torch's, and the decoders'."""
    import torch
    from wcodec.nn import CompressedLayer

    # cuBLAS takes some memory from torch for each stream.
    torch._C._cuda_clearCublasWorkspaces()
    found = [torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())]
    for store in {id(m._store): m._store for m in model.modules() if isinstance(m, CompressedLayer)}.values():
        for device, here in store._devices.items():
            found[device.index] += sum(decoder.device_bytes for decoder in here.decoders)
    return found


def on_gpus(compressed: Path, plain: Path) -> dict[str, Any]:
    """On each rank: logits of both models shared alike, and bytes that the compressed one takes on its GPU."""
    import torch

    number = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(number)
    model = load(compressed)
    ids = torch.tensor(IDS, device="cuda")
    with torch.no_grad():
        logits = model(ids).logits.float().cpu()
        here = taken(model)[number]
        text = model.generate(ids, max_new_tokens=8, do_sample=False).cpu()
    del model
    free()
    with torch.no_grad():
        wanted = load(plain)(ids).logits.float().cpu()
    return {"logits": logits.numpy(), "wanted": wanted.numpy(), "bytes": here, "text": text.tolist()}


def benchmarked(benches: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """On each rank: what the benchmark of serving tells of models that ranks share."""
    import sys

    sys.path.append(str(benches))
    from serving import shared

    told: list[dict[str, Any]] = []
    for job in jobs:
        shared.measure(job, lambda kind, **values: told.append({"kind": kind, **values}))
    return told
