"""Runs the process of a peer, and survives it: what crashes or takes too long is a reason in its row, and the next
section goes on in a new process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .events import Event, Reader
from .worker import RESTART

Todo = dict[str, list[str]]
"""Sections that are left, of each row."""
POLL = 0.1
# Seconds until a process has imported what it needs, before its rows' own limit counts.
START_LIMIT = 240.0


@dataclass
class Limits:
    """Seconds."""

    row: float
    deadline: float | None = None
    """When everything has to end, by time.monotonic()."""

    def left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()


@dataclass
class Job:
    """What a process is asked to do."""

    peer: str
    settings: dict[str, Any]
    todo: Todo
    folder: Path
    reference: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def ended(code: int) -> str:
    """What an exit status says."""
    if code < 0:
        try:
            return f"the process died of {signal.Signals(-code).name}"
        except ValueError:
            return f"the process died of signal {-code}"
    return f"the process ended with exit status {code}"


def last_line(log: Path) -> str:
    """What a process said last, where it may have said why."""
    try:
        lines = [x.strip() for x in log.read_text(encoding="utf-8", errors="replace").splitlines() if x.strip()]
    except FileNotFoundError:
        return ""
    return lines[-1][-200:] if lines else ""


class Runner:
    """Runs one peer to its end."""

    def __init__(self, command: Sequence[str], job: Job, limits: Limits, tell: Callable[[Event], None]) -> None:
        self._command, self._job, self._limits, self._tell = list(command), job, limits, tell
        self._todo = {row: list(sections) for row, sections in job.todo.items()}
        self._begun: tuple[str, str] | None = None
        self._row: str | None = None
        self._since = 0.0
        self._unavailable: str | None = None

    def run(self) -> str | None:
        """Until nothing is left; why nothing could be measured at all, if so."""
        attempt = 0
        while any(self._todo.values()):
            if self._limits.left() <= 0:
                self._give_up("not run: the time for everything was up")
                break
            before = sum(map(len, self._todo.values()))
            why = self._process(attempt)
            attempt += 1
            if self._unavailable is not None:
                return self._unavailable
            if why is not None and sum(map(len, self._todo.values())) == before:
                # Not even a section was begun.
                return why
        return None

    def _give_up(self, why: str, row: str | None = None) -> None:
        for name in [row] if row is not None else list(self._todo):
            for section in list(self._todo[name]):
                self._event({"what": "failed", "row": name, "section": section, "reason": why})

    def _process(self, attempt: int) -> str | None:
        """One process; why it ended early, if it did."""
        job = self._job
        job.folder.mkdir(parents=True, exist_ok=True)
        name = f"{job.peer}-{attempt}"
        events, log, path = (job.folder.resolve() / f"{name}.{kind}" for kind in ("events", "log", "json"))
        events.unlink(missing_ok=True)
        rows = {row: sections for row, sections in self._todo.items() if sections}
        path.write_text(
            json.dumps(
                {
                    "peer": job.peer, "settings": job.settings, "rows": rows, "events": str(events),
                    "reference": job.reference,
                }
            ),
            encoding="utf-8",
        )  # fmt: skip
        reader = Reader(events)
        self._begun, self._row, self._since = None, None, time.monotonic()
        with log.open("wb") as output:
            # In that folder, where libraries may write logs of their own.
            process = subprocess.Popen(
                [*self._command, str(path)], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **job.environment}, start_new_session=True, cwd=job.folder,
            )  # fmt: skip
            try:
                late = self._watch(process, reader)
            finally:
                _kill(process)
        for event in reader.new():
            self._event(event)
        if late is not None:
            self._late(late)
            return late
        if process.returncode == 0:
            return None
        why = ended(process.returncode)
        if process.returncode != RESTART:
            said = last_line(log)
            why = f"{why} ({said})" if said else why
        if self._begun is not None:
            row, section = self._begun
            self._event({"what": "failed", "row": row, "section": section, "reason": why})
        return why

    def _watch(self, process: subprocess.Popen[bytes], reader: Reader) -> str | None:
        """Until the process has ended; or which limit it went over."""
        while process.poll() is None:
            for event in reader.new():
                self._event(event)
            if self._limits.left() <= 0:
                return "not run: the time for everything was up"
            limit = START_LIMIT if self._row is None else self._limits.row
            if time.monotonic() - self._since > limit:
                what = "start" if self._row is None else "row"
                return f"stopped after {limit:g} s, the limit of a {what}"
            time.sleep(POLL)
        return None

    def _late(self, why: str) -> None:
        """A row that went over its limit is over; the others go on."""
        if self._row is None or self._limits.left() <= 0:
            self._give_up(why)
            return
        self._give_up(why, self._row)

    def _event(self, event: Event) -> None:
        what = event["what"]
        if what == "row":
            self._row, self._since = event["row"], time.monotonic()
        elif what == "begin":
            self._begun = event["row"], event["section"]
        elif what in ("measured", "failed"):
            left = self._todo[event["row"]]
            if event["section"] in left:
                left.remove(event["section"])
            self._begun = None
        elif what == "unavailable":
            self._unavailable = event["reason"]
        self._tell(event)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it started: compilers run in others."""
    if process.poll() is None or os.name == "posix":
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError, AttributeError):
            process.kill()
    process.wait()


def worker_command(python: str) -> list[str]:
    """Starts the process of a peer with that interpreter."""
    folder = Path(__file__).resolve().parents[1]
    start = f"import sys; sys.path.append({str(folder)!r}); from peers.worker import main; sys.exit(main())"
    return [python, "-c", start]


def current_command() -> list[str]:
    return worker_command(sys.executable)
