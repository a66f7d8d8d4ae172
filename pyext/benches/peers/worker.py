"""The process of one peer: imports its library, measures its rows section by section, and tells of each.

python -m peers.worker JOB.json
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .catalogue import PEERS
from .environments import versions
from .events import Writer

# Read by the process that started this one.
RESTART = 75
"""Exit status: what was measured is told, and the rest needs a process anew."""
LONGEST_REASON = 240
# Packages that every peer has, besides its own.
SHARED = ("wcodec", "torch", "transformers", "accelerate", "triton", "numpy")


def reason(error: BaseException) -> str:
    """The first line of an error that says something, and its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else "no message"
    if len(text) > LONGEST_REASON:
        text = text[:LONGEST_REASON].rsplit(" ", 1)[0] + " ..."
    return f"{type(error).__name__}: {text}"


def machine(device: str) -> dict[str, Any]:
    """The machine, as torch sees it."""
    import torch

    out: dict[str, Any] = {"torch_threads": torch.get_num_threads()}
    if device == "cpu":
        out["wcodec_threads"] = torch.get_num_threads()
    else:
        free, total = torch.cuda.mem_get_info()
        out.update(
            gpu=torch.cuda.get_device_name(),
            compute_capability="{}.{}".format(*torch.cuda.get_device_capability()),
            cuda=torch.version.cuda,
            gpu_bytes=total,
        )
    return out


def healthy(device: str) -> bool:
    """Whether the GPU still answers after an error."""
    if device == "cpu":
        return True
    import torch

    try:
        torch.cuda.synchronize()
        # A capture that failed may have left the generator of random numbers as if it went on.
        torch.rand(8, device=device)
        return bool((torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum() == 512)
    except Exception:
        return False


def as_many_threads() -> None:
    """Gives wcodec as many threads as torch has. Its own would be one for each core, whatever torch was told; it starts
    them when it needs them first, and then reads this."""
    import torch

    os.environ["RAYON_NUM_THREADS"] = str(torch.get_num_threads())


def measure(
    tell: Callable[..., None], name: str, todo: list[str], run: Callable[[str], Any], fine: Callable[[], bool]
) -> bool:
    """The sections of a row, each with what it measured or why not; whether this process can go on."""
    from .adapters.base import NotThere

    lost: str | None = None
    for section in todo:
        if lost is not None:
            tell("failed", row=name, section=section, reason=lost)
            continue
        tell("begin", row=name, section=section)
        try:
            tell("measured", row=name, section=section, values=run(section))
        # A library that wants to end the process has only failed.
        except (Exception, SystemExit) as error:
            why = str(error) if isinstance(error, NotThere) else reason(error)
            tell("failed", row=name, section=section, reason=why)
            if section == "load":
                lost = why
            if not isinstance(error, NotThere) and not fine():
                # Nothing that comes after it in this process would be the library's own fault.
                return False
    tell("done", row=name)
    return True


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    warnings.simplefilter("ignore")
    tell = Writer(Path(job["events"])).tell
    peer = PEERS[job["peer"]]
    tell("start", versions=versions((*SHARED, *peer.packages)))

    # All that is heavy comes after this line, so that a peer that cannot be imported is still one with versions.
    from . import adapters, sections
    from .turns import VARIABLE, Turns

    settings = sections.Settings(**{k: tuple(v) if isinstance(v, list) else v for k, v in job["settings"].items()})
    if settings.device == "cpu":
        as_many_threads()
    else:
        import torch

        torch.cuda.init()
        # The memory of libraries that torch calls is not the first row's.
        torch.ones(64, 64, device=settings.device, dtype=torch.bfloat16) @ torch.ones(
            64, 64, device=settings.device, dtype=torch.bfloat16
        )
    tell("machine", **machine(settings.device))
    try:
        prepare = adapters.find(peer.name)
    except (Exception, SystemExit) as error:
        tell("unavailable", reason=reason(error))
        return 0
    with Turns(os.environ.get(VARIABLE), tell) as turns:
        beside = None
        if job["reference"] and peer.name != "bf16":
            # From here on the limit of a row counts, and not that of a start.
            tell("reference begins")
            with turns.alone():
                beside = sections.reference(settings)
            tell("reference", tokens_per_s=beside)
        for name, todo in job["rows"].items():
            variant = next(v for v in peer.variants if v.name == name)
            tell("row", row=name)
            row = sections.Row(prepare, variant, settings, beside, turns)
            if not measure(tell, name, todo, row.run, lambda: healthy(settings.device)):
                os._exit(RESTART)
            del row
            import tinyllama_model

            tinyllama_model.clean()
    return 0


if __name__ == "__main__":
    sys.exit(main())
