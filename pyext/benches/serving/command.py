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

from peers import processes

from . import models, needs, results, table
from .engine import MODES, Job

REPOSITORY = results.REPOSITORY
FOLDER = REPOSITORY / "target/vllm-gpu"
MISSING = 2
LAST_LINES = 12


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
    add("--memory-limit", type=size, metavar="SIZE", help="24GB emulates such a card, and counts sequences that fit")
    add("--attention", metavar="BACKEND", help="of vLLM, such as FLASH_ATTN or TRITON_ATTN (default: vLLM's choice)")
    add("--repeats", type=int, default=3, help="whose median counts, at least 3")
    add("--no-reference", action="store_true", help="do not compare tokens with transformers")
    add("--limit", type=float, default=900.0, metavar="S", help="for an engine")
    add("--total-limit", type=float, metavar="S", help="for everything; what does not fit is named")
    add("--folder", type=Path, default=FOLDER, help="of models and logs (default: target/vllm-gpu)")
    add("--json", type=Path, default=REPOSITORY / "target/vllm-gpu.json", metavar="FILE")
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
            "commit": results.commit(),
            "driver": results.driver(),
            "card": "unknown card",
            "versions": needs.versions(),
            "command": "python pyext/benches/serving " + shlex.join(given),
        }

    def all(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lines.unlink(missing_ok=True)
        args = self.args
        for name in args.models:
            jobs = self.jobs(name)
            if not self.step("models", f"the folders of {name}", name=name, layers=args.layers, schemes=args.schemes):
                continue
            for job in jobs:
                job.tokens.unlink(missing_ok=True)
                what = f"{name} {job.scheme} {job.mode}, {job.ranks} ranks"
                self.step("engine", what, job=job.to_json())
            for scheme in () if args.no_reference else args.schemes:
                files = [str(j.tokens) for j in jobs if j.scheme == scheme and j.tokens.exists()]
                folder = str(models.folder_of(self.folder, name, args.layers, scheme))
                if files:
                    self.step("reference", f"tokens of {name} {scheme}", folder=folder, scheme=scheme, files=files)
        found = results.read(self.lines)
        print(table.table(self.about, found), flush=True)
        for text in table.wrong(found):
            print(f"wrong tokens: {text}", file=sys.stderr)
        print(f"written: {args.json}", file=sys.stderr)
        return int(bool(table.wrong(found)) or any(line["kind"] == "failed" for line in found))

    def jobs(self, name: str) -> list[Job]:
        """The engines of a model; bf16 is the first of each mode, since the others are compared with it."""
        args = self.args
        return [
            Job(
                models.folder_of(self.folder, name, args.layers, scheme), name, scheme, mode, ranks, args.sequences,
                args.repeats, args.memory_limit, args.attention,
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
        environment = {"VLLM_CACHE_ROOT": str(self.folder / "cache"), **os.environ}
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
