"""The command: ``python tests/sweep``, which checks architectures in processes of their own."""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import wcodec

from . import report
from .configs import AUTO_CLASSES, architectures

# A process that has built hundreds of models holds memory of all of them.
_MODELS_OF_A_PROCESS = 60
_FOLDER = Path(__file__).resolve().parent


def main(arguments: list[str] | None = None) -> int:
    """Runs what is asked for; 1 where something is not whole that transformers saves and loads."""
    options = _parser().parse_args(arguments)
    if options.worker:
        from .worker import work

        return work(options.seconds, options.device)
    autos = [a for a in options.auto.split(",") if a] or list(AUTO_CLASSES)
    unknown = [a for a in autos if a not in AUTO_CLASSES]
    if unknown:
        print(f"no such Auto class: {', '.join(unknown)} (choose from {', '.join(AUTO_CLASSES)})", file=sys.stderr)
        return 2
    only = {name for name in options.only.split(",") if name}
    wanted = [(auto, name) for auto in autos for name in architectures(auto) if not only or name in only]
    known = {(r["auto"], r["architecture"]): r for r in _read(options.out)} if options.out else {}
    left = [task for task in wanted if task not in known]
    found = {task: known[task] for task in wanted if task in known}
    print(f"wcodec of {Path(wcodec.__file__).parent}: {len(left)} of {len(wanted)} models to check", flush=True)
    file = open(options.out, "a", encoding="utf-8") if options.out else None
    try:
        for record in run(left, options.jobs, options.seconds, options.device):
            found[record["auto"], record["architecture"]] = record
            if file is not None:
                file.write(json.dumps(record) + "\n")
                file.flush()
            _show(record, len(found), len(wanted), options.verbose)
    finally:
        if file is not None:
            file.close()
    records = list(found.values())
    print(report.summary(records))
    if options.table:
        report.put(records, options.table)
    return 1 if any(report.faults(record) for record in records) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tests/sweep", description=__doc__)
    parser.add_argument("--auto", default="", help="Auto classes, separated by commas (default: all thirteen)")
    parser.add_argument("--only", default="", help="architectures, separated by commas (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side (default: 2)")
    parser.add_argument("--seconds", type=float, default=120, help="most time for one model (default: 120)")
    parser.add_argument("--device", default="cpu", help="where models run: cpu or cuda (default: cpu)")
    parser.add_argument("--out", type=Path, help="file of records (JSON lines): what is in it is not run again")
    parser.add_argument("--table", type=Path, help="page whose table is written")
    parser.add_argument("--verbose", action="store_true", help="shows all that was found of each model")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _show(record: dict[str, Any], done: int, of: int, verbose: bool) -> None:
    faults = report.faults(record)
    word = "FAULT" if faults else "not by transformers" if record.get("transformers") else "whole"
    name = f"{record['auto']} {record['architecture']}"
    print(f"[{done}/{of}] {name}: {word} ({record.get('seconds', 0)} s)", flush=True)
    if verbose:
        print(json.dumps(record, indent=1), flush=True)
    else:
        for step, fault in faults.items():
            print(f"    {step}: {fault[:240]}", flush=True)


def run(tasks: Iterable[tuple[str, str]], jobs: int, seconds: float, device: str = "cpu") -> Iterable[dict[str, Any]]:
    """Records of all tasks, as they come. A process that dies or hangs costs its model only."""
    todo: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    tasks = list(tasks)
    for task in tasks:
        todo.put(task)
    done: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for _ in range(max(1, min(jobs, len(tasks)))):
        threading.Thread(target=_serve, args=(todo, done, seconds, device), daemon=True).start()
    for _ in tasks:
        yield done.get()


def _serve(todo: queue.SimpleQueue[Any], done: queue.SimpleQueue[Any], seconds: float, device: str) -> None:
    process: subprocess.Popen[str] | None = None
    count = 0
    while True:
        try:
            task = todo.get_nowait()
        except queue.Empty:
            break
        if process is None or process.poll() is not None or count >= _MODELS_OF_A_PROCESS:
            _end(process)
            process, count = _start(seconds, device), 0
        count += 1
        answer = _ask(process, task, seconds)
        if answer is None:
            ended = _ended(process)
            process = None
            answer = {
                "auto": task[0],
                "architecture": task[1],
                "steps": {"process": f"it ended with {ended} (after {2 * seconds + 60:.0f} s it is killed)"},
            }
        done.put(answer)
    _end(process)


def _start(seconds: float, device: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    return subprocess.Popen(
        [sys.executable, str(_FOLDER), "--worker", "--seconds", str(seconds), "--device", device],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def _ask(process: subprocess.Popen[str], task: tuple[str, str], seconds: float) -> dict[str, Any] | None:
    """The record of a task; none where the process ends, or does not answer in twice the time that it has."""
    timer = threading.Timer(2 * seconds + 60, process.kill)
    timer.start()
    try:
        _send(process.stdin, json.dumps(task))
        line = process.stdout.readline() if process.stdout is not None else ""
    except OSError:
        line = ""
    finally:
        timer.cancel()
    return json.loads(line) if line else None


def _send(stream: TextIO | None, line: str) -> None:
    if stream is not None:
        stream.write(line + "\n")
        stream.flush()


def _ended(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _end(process: subprocess.Popen[str] | None) -> None:
    if process is not None:
        if process.stdin is not None:
            process.stdin.close()
        process.wait()
