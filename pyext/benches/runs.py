"""Files of docs/results: a machine, a command and rows of figures, as ``docs/results/schema.json`` describes them.

Benchmarks in Python take ``--results FILE`` and call :func:`write`. As a command it records what ``wcodec eval``,
``bench``, ``frontier`` or ``roundtrip`` print, and what ``make bench`` and ``make bench-gpu`` wrote:

    python pyext/benches/runs.py FILE --subject TEXT -- wcodec eval MODEL --text FILE --baseline ORIGINAL --json
    python pyext/benches/runs.py FILE --subject TEXT --report target/bench/gpu.json

Afterwards ``python docs/results.py`` makes the tables of the pages.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

Json = dict[str, Any]
SCHEMA = 1
REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("wcodec", "torch", "transformers", "vllm", "accelerate")


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``--results FILE``."""
    parser.add_argument("--results", type=Path, metavar="FILE", help="writes the figures as a file of docs/results")


def figure(samples: Sequence[float], digits: int = 4) -> Json:
    """The median and the spread of a figure that was measured several times."""
    found = {"median": median(samples), "low": min(samples), "high": max(samples)}
    return {name: rounded(value, digits) for name, value in found.items()}


def rounded(value: float, digits: int = 4) -> float | int:
    """So many significant digits, and no fewer than the whole number has.

    >>> rounded(1.23456), rounded(123456.7), rounded(0.00123456), rounded(8)
    (1.235, 123457, 0.001235, 8)
    """
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return round(value)
    return float(f"{value:.{digits}g}")


def row(name: str, found: Mapping[str, Any], units: Mapping[str, str]) -> Json:
    """A row of what a benchmark found: quantities are those that have a unit, and the rest are settings.

    A dictionary under ``spread`` has the least and the largest of some quantities, whose figures are medians.

    >>> row("ours", {"coder": "rans", "us": 12.3456, "free": None, "spread": {"us": [12, 13]}}, {"us": "us"})
    {'name': 'ours', 'of': {'coder': 'rans', 'free': None}, 'values': {'us': {'median': 12.35, 'low': 12, 'high': 13}}}
    """
    given = found.get("spread")
    spread = given if isinstance(given, Mapping) else {}
    values = {k: _value(v, spread.get(k)) for k, v in found.items() if k in units and v is not None}
    settings = {k: v for k, v in found.items() if k not in units and isinstance(v, str | int | float | None)}
    return {"name": name, **({"of": settings} if settings else {}), "values": values}


def _value(found: Any, spread: Sequence[float] | None) -> Any:
    """A figure as the schema has it; a dictionary may have more than its median and spread."""
    if spread is not None:
        found = {"median": found, "low": spread[0], "high": spread[1]}
    if isinstance(found, Mapping):
        return {name: rounded(found[name]) for name in ("median", "low", "high") if name in found}
    return found if isinstance(found, str) else rounded(found)


def write(
    path: Path | None,
    subject: str,
    units: Mapping[str, str],
    rows: Iterable[Json],
    *,
    mode: str | None = None,
    notes: Sequence[str] = (),
    command: str | None = None,
    card: str | None = None,
    on_cpu: bool = False,
) -> None:
    """Writes the file of a run, if there is a path.

    :param units: of the quantities; those that no row has are left out.
    :param command: the one that this process was started with where it is left out.
    :param card: torch's first GPU where it is left out, unless ``on_cpu``.
    """
    if path is None:
        return
    rows = [found for found in rows if found["values"]]
    used = {quantity for found in rows for quantity in found["values"]}
    card = None if on_cpu else card or torch_card()
    about = {
        "schema": SCHEMA,
        "subject": subject,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "card": card,
        "driver": None if card is None else driver(),
        "engine": engine(),
        "mode": mode,
        "command": command or own_command(),
        **({"notes": list(notes)} if notes else {}),
        "units": {quantity: unit for quantity, unit in units.items() if quantity in used},
    }
    # A row a line, so that changes show.
    lines = ",\n".join(f"    {json.dumps(found, ensure_ascii=False)}" for found in rows)
    text = json.dumps(about, indent=2, ensure_ascii=False).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{text},\n  "rows": [\n{lines}\n  ]\n}}\n', encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)


def commit(repository: Path = REPOSITORY) -> str:
    """The commit that is measured; ``WCODEC_COMMIT`` names it where the repository's history is not there."""
    given = os.environ.get("WCODEC_COMMIT")
    if given:
        return given
    try:
        head = _git(repository, "rev-parse", "--short=12", "HEAD")
        changed = _git(repository, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}, with changes" if changed else head


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def driver() -> str | None:
    """The version of the GPU's driver, if nvidia-smi tells it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if lines else None


def torch_card() -> str | None:
    """The name of torch's first GPU, if torch is there and sees one."""
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def cpu_name() -> str:
    """The processor's name, as Linux tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return next(x.partition(":")[2].strip() for x in text.splitlines() if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def machine() -> str:
    """The processor, and the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cpu_name()}, {cores} cores"


def engine() -> str:
    """Versions of the packages that may have a part in a figure."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found) or f"Python {platform.python_version()}"


def own_command(arguments: Sequence[str] | None = None) -> str:
    """This process's command from the repository's root, without the file that is written."""
    given = list(sys.argv if arguments is None else arguments)
    script = Path(given[0]).resolve()
    if script.name == "__main__.py":
        script = script.parent
    name = script.relative_to(REPOSITORY).as_posix() if script.is_relative_to(REPOSITORY) else script.name
    return shlex.join(["python", name, *without_file(given[1:])])


def without_file(arguments: Sequence[str]) -> list[str]:
    """Arguments without ``--results FILE``.

    >>> without_file(["--bits", "4", "--results", "x.json", "--layout", "quad", "--results=y"])
    ['--bits', '4', '--layout', 'quad']
    """
    kept, skip = [], False
    for text in arguments:
        if skip or text.split("=")[0] == "--results":
            skip = not skip and text == "--results"
        else:
            kept.append(text)
    return kept


# Reports of others, as JSON.

QUALITY = {"perplexity": "perplexity", "kl_mean": "nats", "top1_agreement": "of tokens with the same first choice"}
PRINTED: dict[str, tuple[str | None, tuple[str, ...], dict[str, str]]] = {
    "eval": (None, ("model",), QUALITY | {"baseline_perplexity": "perplexity", "kl_p99": "nats", "kl_max": "nats"}),
    "bench": (
        "rows",
        ("model", "batch"),
        {"prefill": "tokens/s", "decode": "tokens/s", "decode_of_baseline": "of the baseline's", "peak_bytes": "bytes"},
    ),
    "roundtrip": (
        "combinations",
        ("coder", "scheme", "scale"),
        {"ratio": "original bytes over stored bytes", "bits_per_weight": "bits/weight", "stored_bytes": "bytes"},
    ),
    "frontier": (
        "rows",
        ("recipe", "coder", "bits_asked", "trellis"),
        {
            "bits_stored": "bits/weight",
            "bits_index": "bits/weight",
            "kl": "nats",
            "kl_error": "nats, standard error",
            "kl_relative": "of NF4's KL",
            "perplexity": "perplexity",
            "top1_agreement": "of tokens with the same first choice",
            "encode_seconds": "s",
        },
    ),
}
"""By command: the list of its rows (itself where there is none), the settings that name a row, and the units."""


CPU = {"gb_per_s": "GB/s", "ratio_to_zstd": "times libzstd's speed", "over": "over the entropy"}
GPU = {"G/s": ("g_weights", "G weights/s"), "GB/s": ("gb", "GB/s"), "us": ("us", "us"), "x": ("times", "times")}


def printed(report: Json) -> tuple[list[Json], dict[str, str]]:
    """Rows and units of what a command printed, or of a report of the benchmarks in Rust.

    :raises ValueError: for a report that has no figures here.
    """
    if not isinstance(report, dict):
        raise ValueError("it is no report")
    if "benchmarks" in report:
        jobs = [(" ".join(filter(None, (b["job"], b["name"], b["isa"]))), b) for b in report["benchmarks"]]
        jobs += [(f"size {s['name']} {s['bytes']}", s) for s in report["sizes"]]
        return [row(name, found, CPU) for name, found in jobs], CPU
    if "results" in report:
        rows = []
        for one in report["results"]:
            quantity, unit = GPU.get(one["unit"], (one["unit"], one["unit"]))
            found = {**one["more"], "spread": one["spread"], quantity: one["value"]}
            rows.append(row(f"{one['case']}, {one['what']}", found, {quantity: unit}))
        return rows, dict(GPU.values())
    if report.get("command") not in PRINTED:
        raise ValueError(f"{report.get('command')!r} is none of {', '.join(PRINTED)}")
    place, names, units = PRINTED[report["command"]]
    records = [report] if place is None else report[place]
    rows = []
    for one in records:
        # Paths of this machine are no settings.
        settings = {k: Path(v).name if isinstance(v, str) and "/" in v else v for k, v in one.items()}
        named = (n if settings[n] is True else str(settings[n]) for n in names if settings.get(n) not in (None, False))
        rows.append(row(" ".join(named), settings, units))
    return rows, units


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Records what others measured as a file of docs/results.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--subject", required=True, help="the quantity that is measured, and of which model")
    parser.add_argument("--report", type=Path, metavar="FILE", help="of make bench or make bench-gpu")
    parser.epilog = "After -- is a command: wcodec COMMAND ... --json."
    given = sys.argv[1:] if arguments is None else arguments
    at = given.index("--") if "--" in given else len(given)
    args, ran = parser.parse_args(given[:at]), given[at + 1 :]
    if bool(ran) == (args.report is not None):
        parser.error("give a command after --, or --report")
    if args.report is not None:
        text = args.report.read_text(encoding="utf-8")
    else:
        done = subprocess.run(ran, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            return done.returncode
        text = done.stdout
    try:
        report = json.loads(text)
        rows, units = printed(report)
    except ValueError as error:
        parser.error(f"no figures of {args.report or shlex.join(ran)}: {error}")
    on_gpu = "results" in report or str(report.get("device", "cpu")).startswith("cuda")
    command = shlex.join(ran) or ("make bench-gpu" if on_gpu else "make bench")
    card = report["device"].get("name") if isinstance(report.get("device"), dict) else None
    write(args.file, args.subject, units, rows, command=command, card=card, on_cpu=not on_gpu)
    return 0


if __name__ == "__main__":
    sys.exit(main())
