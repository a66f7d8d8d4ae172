"""Runs the process of a peer, and survives it: what crashes or takes too long is a reason in its row, and the next
section goes on in a new process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import processes
from .events import Event, Reader
from .turns import GOES_ON, WAITS
from .worker import RESTART

Todo = dict[str, list[str]]
"""Sections that are left, of each row."""
POLL = 0.1
# Seconds until a process has imported what it needs, before its rows' own limit counts.
START_LIMIT = 240.0
NOT_RUN = "not run: the time for everything was up"
STOPPED = "stopped after"
WITHOUT = "the process ended without a result"


def by_limit(reason: str) -> bool:
    """Whether a section failed only because there was no time for it: with more time it may be measured.

    >>> by_limit("stopped after 75 s, the limit of a row"), by_limit("RuntimeError: no kernel")
    (True, False)
    """
    return reason.startswith((NOT_RUN, STOPPED))


@dataclass
class Limits:
    """Seconds."""

    row: float
    deadline: float | None = None
    """The time at which everything has to end, by time.monotonic()."""

    def left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()


@dataclass
class Job:
    """The work of a process."""

    peer: str
    settings: dict[str, Any]
    todo: Todo
    folder: Path
    reference: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def ended(code: int) -> str:
    """The meaning of an exit status."""
    if code < 0:
        try:
            return f"the process died of {signal.Signals(-code).name}"
        except ValueError:
            return f"the process died of signal {-code}"
    return f"the process ended with exit status {code}"


def last_line(log: Path) -> str:
    """The last line of a process's log, which may tell why it ended."""
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
        self._reference = False
        self._since = 0.0
        # Since when its process waits for others to measure, which is no time of its own.
        self._waits: float | None = None
        # A row has its limit over all of its processes.
        self._spent: dict[str, float] = {}
        self._told = False
        self._unavailable: str | None = None

    def run(self) -> str | None:
        """Until nothing is left; why nothing could be measured at all, if so."""
        attempt = 0
        while any(self._todo.values()):
            if self._limits.left() <= 0:
                self._give_up(NOT_RUN)
                break
            before = sum(map(len, self._todo.values()))
            why = self._process(attempt)
            attempt += 1
            if self._unavailable is not None:
                return self._unavailable
            if sum(map(len, self._todo.values())) == before:
                # Not even a section was begun: one more process would do no more.
                why = why or WITHOUT
                if not self._told:
                    return why
                self._give_up(why)
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
        self._begun, self._row, self._reference, self._since = None, None, False, time.monotonic()
        self._waits = None
        with log.open("wb") as output:
            # In that folder, where libraries may write logs of their own.
            process = subprocess.Popen(
                [*self._command, str(path)], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **job.environment}, start_new_session=True, cwd=job.folder,
            )  # fmt: skip
            try:
                late = self._watch(process, reader)
            finally:
                processes.kill(process)
        for event in reader.new():
            self._event(event)
        self._leave_row()
        if late is not None:
            self._late(late)
            return late
        if process.returncode == 0 and self._begun is None:
            return None
        why = ended(process.returncode) if process.returncode else WITHOUT
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
                return NOT_RUN
            starts = self._row is None and not self._reference
            limit = START_LIMIT if starts else self._limits.row
            if self._waits is None and time.monotonic() - self._since > limit:
                what = "start" if starts else "row" if self._row is not None else "row, in the bfloat16 beside it"
                return f"{STOPPED} {limit:g} s, the limit of a {what}"
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
        if what == "reference begins":
            self._reference, self._since = True, time.monotonic()
        elif what == "row":
            self._leave_row()
            self._row = event["row"]
            self._since = time.monotonic() - self._spent.get(event["row"], 0.0)
        elif what == "begin":
            self._begun = event["row"], event["section"]
        elif what == WAITS:
            self._waits = time.monotonic()
        elif what == GOES_ON and self._waits is not None:
            self._since += time.monotonic() - self._waits
            self._waits = None
        elif what in ("measured", "failed"):
            left = self._todo[event["row"]]
            if event["section"] in left:
                left.remove(event["section"])
            self._begun, self._told = None, True
        elif what == "unavailable":
            self._unavailable = event["reason"]
        self._tell(event)

    def _leave_row(self) -> None:
        if self._row is not None:
            self._spent[self._row] = time.monotonic() - self._since


def worker_command(python: str, module: str = "peers.worker") -> list[str]:
    """Starts the process of a peer with that interpreter: the function ``main`` of a module."""
    folder = Path(__file__).resolve().parents[1]
    start = f"import sys; sys.path.append({str(folder)!r}); from {module} import main; sys.exit(main())"
    return [python, "-c", start]
