"""The command: which peers, where, how long; what is measured, and what is written."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import platform
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import runs

from . import catalogue, decoding, environments, report, run_file
from .catalogue import DECODING, EMBEDDED, MATRICES, PEERS
from .environments import Environment, Unavailable, versions
from .events import Event
from .matrices import catalogue as engines
from .matrices.drive import Drive
from .plan import planned
from .runner import NOT_RUN, Job, Limits, Runner, Todo, by_limit, worker_command
from .turns import VARIABLE, Turns

Json = dict[str, Any]
REPOSITORY = Path(__file__).resolve().parents[3]
SOURCE = REPOSITORY / ".demo/smollm2.gguf"
SECTIONS = ("quality", "load", "eager", "captured", "prefill", "compiled")
# A CUDA graph is of a GPU. Speeds of a small model on a CPU tell little: they are for those who ask.
CPU_SECTIONS = ("quality",)
MODELS = ("smollm2", EMBEDDED)
QUICK = {"tokens": 24, "repeats": 3, "text_tokens": 2048, "limit": 75.0}
USUAL = {"tokens": 64, "repeats": 5, "text_tokens": 8192, "limit": 900.0}


def listed(value: str) -> list[str]:
    return [part for part in (x.strip() for x in value.split(",")) if part]


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python pyext/benches/peers", description="wcodec and its peers: same model, text, seeds and figures.",
        epilog="Results are written after each section. A peer that cannot be had, crashes or takes too long is a "
        "row with its reason, and the others go on.",
    )  # fmt: skip
    add = out.add_argument
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU, if torch sees one")
    add("--only", type=listed, metavar="PEERS", help=f"some of {', '.join(catalogue.NAMES)}")
    add("--rows", type=listed, metavar="ROWS", help="some variants of these peers, such as int8,nf4")
    add("--sections", type=listed, metavar="LIST", help=f"some of {', '.join(SECTIONS)}")
    add("--quick", action="store_true", help="fewer tokens and repeats, shorter limits")
    add("--tokens", type=int, help="that are generated (default: 64, with --quick 24)")
    add("--repeats", type=int, help="whose median counts (default: 5, with --quick 3)")
    add("--batches", type=listed, metavar="LIST", help="default: 1,8,32, on a CPU 1")
    add("--prefill", type=int, default=2048, metavar="TOKENS", help="of the prompt (default: 2048)")
    add("--model", choices=MODELS, help=f"for quality (default: {MODELS[0]} if make fetched it, otherwise {EMBEDDED})")
    add("--windows", type=int, default=16, help="of 512 tokens, for the quality of a real model (default: 16)")
    add("--text-tokens", type=int, help=f"for quality of the model {EMBEDDED} (default: 8192, with --quick 2048)")
    add(
        "--shapes",
        help="of the model for speeds: embedded (the default on a CPU), tinyllama (on a GPU), llama-8b, small",
    )
    add("--layers", type=int, help="of the model for speeds: so many, and not all")
    add("--limit", type=float, metavar="S", help="for a row (default: 900 s, with --quick 75)")
    add("--total-limit", type=float, metavar="S", help="for everything; what does not fit says so")
    add("--engines", type=listed, metavar="LIST", help=f"of products: some of {', '.join(engines.ENGINES)}")
    add("--matrices", type=listed, metavar="LIST", help=f"of products: default {','.join(engines.SHAPES)}")
    add("--matrix-tokens", type=listed, metavar="LIST", help=f"default: {','.join(map(str, engines.TOKENS))}")
    add("--no-reference", action="store_true", help="do not measure bf16 once more in the process of each peer")
    add(
        "--turns",
        type=Path,
        metavar="FILE",
        help="several of these commands that are given the same FILE, and folders of their own for --environments, can "
        "run at once: they take their figures one by one, and no limit of a row counts what they wait for that",
    )
    add("--installed", action="store_true", help="take what this interpreter has, and install nothing")
    add("--find-links", metavar="FOLDER", help="of wheels, for pip")
    add("--no-index", action="store_true", help="pip is to ask no registry")
    add("--environments", type=Path, default=REPOSITORY / "target/peers", metavar="FOLDER")
    add("--nvcomp-bench", metavar="FILE", help="the benchmark of decoding that was built before, and not cargo's")
    add("--json", type=Path, metavar="FILE", help="default: target/peers/cpu.json or gpu.json")
    runs.add_argument(out)
    add("--table", type=Path, metavar="FILE", help="default: beside the JSON")
    add("--chart", type=Path, metavar="FILE", help="default: beside the JSON")
    add(
        "--resume",
        action="store_true",
        help="go on with the JSON that is there: sections it has are not measured again, but those that had no time",
    )
    add(
        "--from",
        nargs="+",
        type=Path,
        dest="sources",
        metavar="JSON",
        help="measure nothing: merge these, make table and chart",
    )
    add("--list", action="store_true", help="peers, rows and packages, and end")
    return out


def show_list() -> None:
    for peer in PEERS.values():
        print(f"{peer.name:13} {', '.join((*peer.requirements, *peer.gpu_requirements)) or 'nothing else'}")
        print(f"{'':13} rows: {', '.join(v.name for v in peer.variants)}")
    print(f"{DECODING:13} the benchmark of decoding alone (make bench-gpu), with nvCOMP")
    for name, engine in engines.ENGINES.items():
        print(f"{MATRICES:13} {name}: {', '.join(engine.peer.gpu_requirements) or 'nothing else'}")
        print(f"{'':13} rows: {', '.join(v.name for v in engine.variants)}")


def checked(args: argparse.Namespace) -> list[str]:
    """The peers; raises ValueError for what does not exist."""
    names = catalogue.chosen(args.only)
    for section in args.sections or ():
        if section not in SECTIONS:
            raise ValueError(f"there is no section {section!r} (choose from {', '.join(SECTIONS)})")
    variants = [v.name for n in names if n in PEERS for v in PEERS[n].variants]
    chosen = args.engines or list(engines.ENGINES)
    for name in chosen:
        if name not in engines.ENGINES:
            raise ValueError(f"there is no engine {name!r} of products (there are {', '.join(engines.ENGINES)})")
    if MATRICES in names:
        variants += [v.name for n in chosen for v in engines.ENGINES[n].variants]
    for text in args.matrices or ():
        engines.shape(text)
    for row in args.rows or ():
        if row not in variants:
            raise ValueError(
                f"there is no row {row!r} of {', '.join(names)} (there are {', '.join(dict.fromkeys(variants))})"
            )
    if args.turns is not None and importlib.util.find_spec("fcntl") is None:
        raise ValueError("--turns needs locks of files, which this system's Python does not have (leave it out)")
    for batch in (*(args.batches or ()), *(args.matrix_tokens or ())):
        if not batch.isdecimal() or int(batch) < 1:
            raise ValueError(f"{batch!r} is no batch and no number of tokens (a whole number from 1)")
    return names


def machine(device: str) -> Json:
    """The machine's description, as far as it is known without torch; a process of a peer adds the GPU."""
    out: Json = {
        "cpu": runs.cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    if device != "cpu":
        version = runs.driver()
        out["driver"] = None if version is None else f"driver {version}"
    return out


def settings_of(args: argparse.Namespace, device: str) -> Json:
    """The settings that all peers are measured with."""
    usual: dict[str, Any] = QUICK if args.quick else USUAL
    cpu = device == "cpu"
    sections = args.sections or (CPU_SECTIONS if cpu else SECTIONS)
    return {
        "device": device,
        "model": args.model or (MODELS[0] if SOURCE.exists() else EMBEDDED),
        "windows": args.windows,
        "shapes": args.shapes or (EMBEDDED if cpu else "tinyllama"),
        "layers": args.layers,
        "tokens": args.tokens or usual["tokens"],
        "repeats": args.repeats or usual["repeats"],
        "text_tokens": args.text_tokens or usual["text_tokens"],
        "prefill_tokens": args.prefill,
        "batches": [int(b) for b in args.batches] if args.batches else ([1] if cpu else [1, 8, 32]),
        "sections": [s for s in SECTIONS if s in sections and not (cpu and s == "captured")],
    }


class Run:
    """Measures peers one after the other, and keeps what was measured."""

    def __init__(self, args: argparse.Namespace, names: list[str], device: str, cuda: str | None) -> None:
        self.args, self.names, self.device, self.cuda = args, names, device, cuda
        self.settings = settings_of(args, device)
        self.path: Path = args.json or args.environments / f"{'cpu' if device == 'cpu' else 'gpu'}.json"
        command = "python pyext/benches/peers " + shlex.join(without_paths(args.given))
        fresh = report.empty(self.settings, machine(device), command.strip(), datetime.date.today().isoformat())
        # The report from before this run, which has to match its settings, machine and versions.
        self.before: Json | None = None
        self.report = self._resumed(fresh) if args.resume and self.path.exists() else fresh
        limit = args.limit or (QUICK if args.quick else USUAL)["limit"]
        deadline = None if args.total_limit is None else time.monotonic() + args.total_limit
        self.limits = Limits(limit, deadline)
        # Absolute: processes of peers run in another folder.
        args.environments = args.environments.resolve()
        self.options = environments.Options(args.environments, args.installed, args.find_links, args.no_index)

    def _resumed(self, fresh: Json) -> Json:
        self.before = report.read(self.path)
        found = report.merge([self.before, fresh])
        # Versions of a peer are known when its process tells them.
        here = {"here": {"versions": versions(report.SHARED)}}
        report.refuse(report.other_versions(self.before["peers"], here))
        return found

    def save(self) -> None:
        report.write(self.report, self.path)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def planned(self, variant: catalogue.Variant) -> list[str]:
        """Sections of a row; those that it cannot have are told at once."""
        out = []
        batches = self.settings["batches"][: 1 if variant.slow else None]
        for section in planned({**self.settings, "batches": batches}):
            kind = section.partition("/")[0]
            if kind == "quality" and self.settings["model"] != EMBEDDED and not variant.curve:
                continue
            if (variant.no_quality if kind == "quality" else variant.no_speed) is None:
                out.append(section)
        return out

    def todo(self, name: str) -> Todo:
        """The sections of a peer that are left to measure; adds its rows to the report."""
        out: Todo = {}
        for variant in PEERS[name].variants:
            if self.args.rows and variant.name not in self.args.rows:
                continue
            row = report.add_row(self.report, name, variant)
            row.pop("skipped", None)
            if variant.needs_gpu and self.device == "cpu":
                row["skipped"] = report.NEEDS_GPU
                continue
            row["no_quality"], row["no_speed"], row["slow"] = variant.no_quality, variant.no_speed, variant.slow
            left = [s for s in self.planned(variant) if not has(row["sections"].get(s))]
            if left:
                out[variant.name] = left
        return out

    def peer(self, name: str) -> None:
        peer = PEERS[name]
        todo = self.todo(name)
        about = self.report["peers"].setdefault(name, {"title": peer.title})
        about["note"] = peer.note
        about.pop("reason", None)
        self.save()
        if not todo:
            return
        self.say(f"{peer.title}: {', '.join(todo)}")
        begin = time.monotonic()
        try:
            if self.limits.left() <= 0:
                raise Unavailable(NOT_RUN)
            environment = environments.prepare(peer, self.cuda, self.options, self.limits.left())
        except Unavailable as error:
            self.skip(name, todo, str(error))
            return
        about["environment"] = environment.how
        self.measure(name, environment, todo)
        self.say(f"{peer.title}: {time.monotonic() - begin:.0f} s")

    def measure(self, name: str, environment: Environment, todo: Todo) -> None:
        eager = any("eager/1" in sections for sections in todo.values())
        # Programs of its environment first: Quanto builds with one.
        path = os.pathsep.join((str(Path(environment.python).parent), os.environ.get("PATH", "")))
        around = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PATH": path}
        small = self.settings["shapes"] == EMBEDDED and self.settings["model"] == EMBEDDED
        if self.device == "cpu" and (small or self.settings["sections"] != ["quality"]):
            # Products of so small a model leave a second thread nothing but waiting.
            around["OMP_NUM_THREADS"] = "1"
        if self.args.turns is not None:
            around[VARIABLE] = str(self.args.turns.resolve())
        reference = eager and not self.args.no_reference
        job = Job(name, self.settings, todo, self.args.environments / "logs", reference, around)
        why = Runner(worker_command(environment.python), job, self.limits, lambda e: self.event(name, e)).run()
        if why is not None:
            self.skip(name, todo, why)

    def skip(self, name: str, todo: Todo, why: str) -> None:
        """Nothing of a peer could be measured."""
        self.say(f"{PEERS[name].title}: skipped, {why}")
        self.report["peers"][name]["reason"] = why
        for variant in todo:
            row = self.report["rows"][report.key(name, variant)]
            if not any("failed" not in values for values in row["sections"].values()):
                row["skipped"] = why
        self.save()

    def event(self, name: str, event: Event) -> None:
        what = event["what"]
        about = self.report["peers"][name]
        if what == "start":
            if self.before is not None:
                report.refuse(report.other_versions(self.before["peers"], {name: event}))
            about["versions"] = event["versions"]
        elif what == "machine":
            if self.before is not None:
                report.refuse(report.other_machine(self.device, self.before["machine"], event))
            self.report["machine"].update({k: v for k, v in event.items() if k != "what"})
        elif what in ("measured", "failed"):
            values = event["values"] if what == "measured" else {"failed": event["reason"]}
            self.report["rows"][report.key(name, event["row"])]["sections"][event["section"]] = values
            self.say(f"  {event['row']:17} {event['section']:12} {brief(values)}")
        else:
            return
        self.save()

    def decode(self) -> None:
        if self.before is not None and self.report["decoding"]:
            return
        self.say("decoding alone, beside nvCOMP")
        limit = min(self.limits.row * (1 if self.args.quick else 4), max(self.limits.left(), 0.0))
        about = self.report["peers"].setdefault(DECODING, {"title": "nvCOMP"})
        try:
            if self.device == "cpu":
                raise Unavailable(report.NEEDS_GPU)
            if limit < 1:
                raise Unavailable(NOT_RUN)
            with Turns(self.args.turns) as turns, turns.alone():
                found = decoding.run(self.args.environments / "logs", self.args.nvcomp_bench, self.args.quick, limit)
        except Unavailable as error:
            about["reason"] = str(error)
            self.say(f"nvCOMP: skipped, {error}")
        else:
            self.report["decoding"] = found
            about.pop("reason", None)
            about.update({"versions": {"nvCOMP": found["nvcomp"]}} if found["nvcomp"] else {"reason": found["reason"]})
        self.save()

    def matrices(self) -> None:
        """Products of one matrix on a GPU; on a CPU the quality of each width."""
        args = self.args
        around = {} if args.turns is None else {VARIABLE: str(args.turns.resolve())}
        settings = {
            **self.settings,
            "matrix_shapes": args.matrices or list(engines.SHAPES),
            "matrix_tokens": [int(t) for t in args.matrix_tokens or engines.TOKENS],
            "matrix_repeats": 9 if args.quick else 15,
        }
        drive = Drive(self.report, settings, self.limits, self.options, self.cuda, around, self.say, self.save)
        if self.device == "cpu":
            drive.qualities()
        else:
            drive.known_qualities(args.environments / "cpu.json")
            drive.speeds(args.engines or list(engines.ENGINES), args.rows)
        self.save()

    def all(self) -> None:
        for name in self.names:
            if name == DECODING:
                self.decode()
            elif name == MATRICES:
                self.matrices()
            else:
                self.peer(name)


def without_paths(arguments: list[str]) -> list[str]:
    """The command for the report: folders of a machine are nobody's business."""
    out: list[str] = []
    hidden = (
        "--json",
        "--results",
        "--table",
        "--chart",
        "--environments",
        "--find-links",
        "--nvcomp-bench",
        "--turns",
    )
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in hidden:
            skip = True
        elif not argument.startswith(tuple(f"{name}=" for name in hidden)):
            out.append(argument)
    return out


def has(values: Json | None) -> bool:
    """Whether a section has its figures, or a reason that more time would not change."""
    return values is not None and not by_limit(values.get("failed", ""))


def brief(values: Json) -> str:
    """One line of a section."""
    if "failed" in values:
        return f"no: {values['failed']}"
    names = ("bits", "kl", "kl_run", "load_s", "peak_bytes", "tokens_per_s")
    return ", ".join(f"{n} {values[n]:.4g}" for n in names if values.get(n) is not None)


def outputs(found: Json, json_path: Path, args: argparse.Namespace) -> None:
    """The table, also on standard output, and the chart."""
    text = report.table(found)
    known = run_file.write(args.results, found)
    table = args.table or json_path.with_suffix(".md")
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(text, encoding="utf-8")
    print(text)
    chart_path = args.chart or json_path.with_suffix(".png")
    try:
        from .chart import draw

        draw(found, chart_path, known)
    except (ImportError, ValueError) as error:
        print(f"no chart: {error}", file=sys.stderr)
    else:
        print(f"written: {json_path}, {table}, {chart_path}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    args.given = sys.argv[1:] if arguments is None else arguments
    if args.list:
        show_list()
        return 0
    try:
        if args.sources:
            found = report.merge([report.read(path) for path in args.sources])
            path = args.json or args.sources[0]
            if args.json is not None:
                report.write(found, path)
            outputs(found, path, args)
            return 0
        names = checked(args)
        device, cuda = place(args.device)
        run = Run(args, names, device, cuda)
    except ValueError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    # As Ctrl-C, so that no process of a peer is left behind, and what was measured is written.
    signal.signal(signal.SIGTERM, lambda *_: _stop())
    try:
        run.all()
    except KeyboardInterrupt:
        outputs(run.report, run.path, args)
        print("stopped; --resume goes on", file=sys.stderr)
        return 130
    except report.ReportError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    outputs(run.report, run.path, args)
    return 0


def _stop() -> None:
    raise KeyboardInterrupt


def place(wanted: str) -> tuple[str, str | None]:
    """The device, and the version of CUDA that torch was built for.

    :raises ValueError: for a GPU that torch does not see.
    """
    if wanted == "cpu":
        return "cpu", None
    import torch

    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ValueError("torch sees no GPU (--device cpu measures what needs none)")
    return ("cuda", torch.version.cuda) if there else ("cpu", None)
