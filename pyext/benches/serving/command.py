"""The command: all steps, or one of them. Each engine has a process of its own, and what it measured stays when it
dies."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import runs
from peers import processes

from . import launch, models, needs, ranks_table, results, run_file, table
from .engine import MODES, RANKS, Job

REPOSITORY = results.REPOSITORY
FOLDER = REPOSITORY / "target/vllm-gpu"
MISSING = 2
LAST_LINES = 12
PARTS = ("vllm", "transformers", "check")
"""Engines of vLLM; tensor parallelism of transformers; that and device maps of a model that is cut, whose logits are
compared with those of the dequantized weights."""
ALONE = (1, 8)
"""Sequences at once where transformers generates."""


def size(text: str) -> int:
    """A number of bytes.

    >>> size("24GB"), size("1.5 GiB"), size("4096")
    (24000000000, 1610612736, 4096)
    """
    units = {"": 1, "b": 1, "mb": 10**6, "gb": 10**9, "mib": 2**20, "gib": 2**30}
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in units:
        raise argparse.ArgumentTypeError(f"{text!r} is no size (24GB)")
    return int(float(match[1]) * units[match[2]])


def listed(text: str) -> list[str]:
    return [part for part in (x.strip() for x in text.split(",")) if part]


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 1, in ascending order.

    >>> numbers("8,1")
    (1, 8)
    """
    parts = listed(text)
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers (1,8,32)")
    return tuple(sorted({int(part) for part in parts}))


def schemes(text: str) -> list[str]:
    """Schemes, bf16 first, which all others are compared with."""
    names = [name for name in listed(text) if name != "bf16"]
    for name in names:
        try:
            models.options_of(name)
        except models.UnknownScheme as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return ["bf16", *names]


def among(choices: tuple[str, ...]) -> object:
    """A type of argument: some of these names."""

    def parse(text: str) -> list[str]:
        names = listed(text)
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"there is no {name!r} (there are {', '.join(choices)})")
        return names

    return parse


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python pyext/benches/serving",
        description="Compressed models inside vLLM, beside bf16: speeds, memory, tokens compared with transformers.",
        epilog="`pack` instead of options makes archives that bring vLLM to a machine without a network: "
        "python pyext/benches/serving pack --help",
    )
    add = out.add_argument
    add("--models", type=among(models.NAMES), default=["tinyllama"], help=f"some of {', '.join(models.NAMES)}")
    add("--layers", type=int, help="of each model (default: all, of llama-8b 8 and of qwen3-moe 4)")
    add("--schemes", type=schemes, default=list(models.SCHEMES), help="int8, lossless or bits; with -size for size")
    add("--modes", type=among(MODES), default=["compiled"], help=f"some of {', '.join(MODES)}")
    add("--sequences", type=numbers, default=(1, 8, 32, 128), metavar="LIST", help="at once (default: 1,8,32,128)")
    add("--ranks", type=numbers, default=(1,), metavar="LIST", help="of tensor parallelism: 1, 2, 4")
    add("--parts", type=among(PARTS), default=["vllm"], help=f"some of {', '.join(PARTS)} (default: vllm)")
    add("--expert-parallel", action="store_true", help="ranks of vLLM have some of a mixture's experts each")
    add("--nccl", action="store_true", help="ranks of vLLM add by NCCL, without kernels of vLLM")
    add("--check-layers", type=int, default=4, metavar="N", help="of the model that part check cuts (default: 4)")
    add("--memory-limit", type=size, metavar="SIZE", help="24GB emulates such a card, and counts sequences that fit")
    add("--attention", metavar="BACKEND", help="of vLLM, such as FLASH_ATTN or TRITON_ATTN (default: vLLM's choice)")
    add("--repeats", type=int, default=3, help="whose median counts, at least 3")
    add("--no-reference", action="store_true", help="do not compare tokens with transformers")
    add("--limit", type=float, default=900.0, metavar="S", help="for an engine")
    add("--total-limit", type=float, metavar="S", help="for everything; what does not fit is named")
    add("--folder", type=Path, default=FOLDER, help="of models and logs (default: target/vllm-gpu)")
    add("--json", type=Path, default=REPOSITORY / "target/vllm-gpu.json", metavar="FILE")
    runs.add_argument(out)
    # A step in a process of its own; its argument is a job in JSON.
    add("--step", help=argparse.SUPPRESS)
    return out


class Run:
    """All steps, one after the other."""

    def __init__(self, args: argparse.Namespace, given: list[str]) -> None:
        self.args = args
        self.folder: Path = args.folder.resolve()
        self.lines = self.folder / "results.jsonl"
        self.end = None if args.total_limit is None else time.monotonic() + args.total_limit
        self.about = {
            "date": datetime.date.today().isoformat(),
            "commit": runs.commit(),
            "driver": runs.driver(),
            "card": "unknown card",
            "versions": needs.versions(),
            "command": "python pyext/benches/serving " + shlex.join(runs.without_file(given)),
        }

    def all(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lines.unlink(missing_ok=True)
        args = self.args
        for name in args.models:
            parts = {"vllm": self.vllm, "transformers": self.transformers, "check": self.check}
            for part in args.parts:
                parts[part](name)
        found = results.read(self.lines)
        print(table.table(self.about, found), flush=True)
        if any(line["kind"] in ranks_table.KINDS for line in found):
            print(ranks_table.table(found), flush=True)
        wrong = [*table.wrong(found), *ranks_table.wrong(found)]
        for text in wrong:
            print(f"wrong: {text}", file=sys.stderr)
        print(f"written: {args.json}", file=sys.stderr)
        run_file.write(args.results, self.about, found)
        return int(bool(wrong) or any(line["kind"] == "failed" for line in found))

    def made(self, name: str, layers: int | None) -> list[str]:
        """Makes the folders of a model that are not there. Returns the schemes of those that are then, which are not
        all where time was up."""
        what = f"the folders of {name}" if layers is None else f"the folders of {name}, {layers} layers"
        schemes = self.args.schemes
        self.step("models", what, name=name, layers=layers, schemes=schemes, device=device())
        return [s for s in schemes if (models.folder_of(self.folder, name, layers, s) / "config.json").exists()]

    def vllm(self, name: str) -> None:
        """Engines of vLLM, and their tokens."""
        args = self.args
        made = self.made(name, args.layers)
        jobs = [job for job in self.jobs(name) if job.scheme in made]
        for job in jobs:
            job.tokens.unlink(missing_ok=True)
            what = f"{name} {job.scheme} {job.mode}, {job.ranks} ranks"
            self.step("engine", what, job=job.to_json())
        if args.no_reference or name in models.STREAMED:
            return
        for scheme in args.schemes:
            files = [str(j.tokens) for j in jobs if j.scheme == scheme and j.tokens.exists()]
            folder = str(models.folder_of(self.folder, name, args.layers, scheme))
            if files:
                self.step("reference", f"tokens of {name} {scheme}", folder=folder, scheme=scheme, files=files)

    def transformers(self, name: str) -> None:
        """Tensor parallelism of transformers."""
        made = self.made(name, self.args.layers)
        for ranks in self.args.ranks:
            for scheme in made:
                folder = models.folder_of(self.folder, name, self.args.layers, scheme)
                what = f"{name} {scheme} by transformers, {ranks} ranks"
                self.step("shared", what, **self.shared(folder, name, scheme, ranks))

    def check(self, name: str) -> None:
        """A model that is cut: logits beside those of the dequantized weights, the same bits in two processes and by a
        map over all cards."""
        layers = self.args.check_layers
        cut = f"{name}-{layers}"
        for scheme in self.made(name, layers):
            if scheme == "bf16":
                continue
            folder = models.folder_of(self.folder, name, layers, scheme)
            plain = folder.with_name(f"{scheme}-dequantized")
            self.step("map", f"{cut} {scheme} by a map", folder=str(folder), model=cut, scheme=scheme)
            if not self.step("dequantized", f"{cut} {scheme} dequantized", folder=str(folder), plain=str(plain)):
                continue
            for ranks in self.args.ranks:
                job = {**self.shared(folder, cut, scheme, ranks), "sequences": [], "plain": str(plain)}
                what = f"{cut} {scheme} beside its dequantized weights, {ranks} ranks"
                if self.step("shared", what, **job):
                    self.step("shared", f"{what}, again", **{**job, "plain": None})

    def shared(self, folder: Path, model: str, scheme: str, ranks: int) -> dict[str, object]:
        """The job of ranks that share a model."""
        key = {"model": model, "scheme": scheme, "ranks": ranks}
        return {"folder": str(folder), **key, "sequences": list(ALONE), "repeats": self.args.repeats}

    def jobs(self, name: str) -> list[Job]:
        """The engines of a model; bf16 is the first of each mode, since the others are compared with it."""
        args = self.args
        return [
            Job(
                models.folder_of(self.folder, name, args.layers, scheme), name, scheme, mode, ranks, args.sequences,
                args.repeats, args.memory_limit, args.attention, args.expert_parallel and name in models.MIXTURES,
                not args.nccl,
            )
            for ranks in args.ranks for mode in args.modes for scheme in args.schemes
        ]  # fmt: skip

    def step(self, kind: str, what: str, **job: object) -> bool:
        """Runs a step in a process, and says whether it ended well."""
        left = self.args.limit if self.end is None else min(self.args.limit, self.end - time.monotonic())
        begin = time.monotonic()
        log = self.folder / "logs" / (re.sub(r"\W+", "-", f"{kind} {what}") + ".log")
        reason = "the time for everything was up" if left <= 0 else self._process(kind, job, log, left)
        if reason is not None:
            results.add(self.lines, "failed", what=what, reason=reason)
        print(f"{what}: {reason or 'done'} ({time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)
        if reason is not None and log.exists():
            print("\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:]), file=sys.stderr)
        found = results.read(self.lines)
        self.about["card"] = next((line["card"] for line in found if line["kind"] == "engine"), self.about["card"])
        results.write(self.args.json, self.about, found)
        return reason is None

    def _process(self, kind: str, job: dict[str, object], log: Path, limit: float) -> str | None:
        """Why the process of a step failed; nothing if it did not."""
        log.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"kind": kind, "root": str(self.folder), "lines": str(self.lines), **job})
        command = [sys.executable, str(Path(__file__).parent), "--step", text]
        environment = {"VLLM_CACHE_ROOT": str(self.folder / "cache"), **RANKS, **os.environ}
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                return f"stopped after {limit:.0f} s"
            finally:
                # With the ranks that it started.
                processes.kill(process)
        return None if code == 0 else f"exit status {code} ({log.name} says why)"


def device() -> str:
    """The device that folders are made on."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def step(text: str) -> int:
    """One step, in the process that was started for it."""
    job = json.loads(text)
    lines, root = Path(job["lines"]), Path(job["root"])

    def tell(kind: str, **values: object) -> None:
        results.add(lines, kind, **values)

    device = job.get("device", "cuda")
    if job["kind"] == "models":
        for found in models.make(root, job["name"], job["layers"], job["schemes"], device):
            tell("folder", **found)
    elif job["kind"] == "dequantized":
        from . import streamed

        if not Path(job["plain"]).exists():
            streamed.dequantize(Path(job["folder"]), Path(job["plain"]))
    elif job["kind"] == "shared":
        rank = json.dumps({**job, "kind": "rank"})
        return launch.run([sys.executable, str(Path(__file__).parent), "--step", rank], int(job["ranks"]))
    elif job["kind"] in ("rank", "map"):
        from . import shared

        if job["kind"] == "map":
            shared.maps(job, tell)
        else:
            shared.measure(job, tell)
            shared.leave()
    elif job["kind"] == "engine":
        from . import engine

        engine.measure(Job.from_json(job["job"]), tell)
    else:
        from . import reference

        reference.measure(Path(job["folder"]), job["scheme"], [Path(f) for f in job["files"]], device, tell)
    return 0


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["pack"]:
        from . import pack

        return pack.main(given[1:])
    args = parser().parse_args(given)
    if args.step is not None:
        return step(args.step)
    missing = needs.here(max(args.ranks))
    if missing:
        for text in missing:
            print(f"serving: {text}", file=sys.stderr)
        return MISSING
    return Run(args, given).all()
