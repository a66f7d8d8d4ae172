"""Runs the processes of engines, and that of qualities, and keeps what they tell in the report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import environments
from ..environments import Unavailable
from ..events import Event
from ..runner import NOT_RUN, Job, Limits, Runner, Todo, by_limit, worker_command
from .catalogue import ENGINES, width_key

Json = dict[str, Any]
MODEL = Path(__file__).resolve().parents[4] / ".demo/smollm2.gguf"
KL = "kl"
MOST_TEXT = 2048
"""Tokens of text that widths are judged by."""


@dataclass
class Drive:
    """Everything that measuring takes."""

    report: Json
    settings: Json
    """With the shapes, tokens and repeats of products."""
    limits: Limits
    options: environments.Options
    cuda: str | None
    around: Mapping[str, str]
    """Variables for the processes."""
    say: Callable[[str], None]
    save: Callable[[], None]

    @property
    def found(self) -> Json:
        return self.report["matrices"]

    @property
    def logs(self) -> Path:
        return self.options.folder / "logs" / "matrices"

    def speeds(self, engines: list[str], rows: list[str] | None) -> None:
        """Measures engines on a GPU."""
        for name in engines:
            todo = self._todo(name, rows)
            if not todo:
                continue
            peer = ENGINES[name].peer
            about = self._about(name)
            self.say(f"products of {peer.title}: {', '.join(todo)}")
            try:
                if self.limits.left() <= 0:
                    raise Unavailable(NOT_RUN)
                environment = environments.prepare(peer, self.cuda, self.options, self.limits.left())
            except Unavailable as error:
                self._skip(name, str(error))
                continue
            about["environment"] = environment.how
            self._run(name, environment.python, "peers.matrices.worker", todo, lambda e, n=name: self._product(n, e))

    def qualities(self, model: Path = MODEL) -> None:
        """Measures the KL of each width on a CPU."""
        widths = dict.fromkeys(width_key(v) for engine in ENGINES.values() for v in engine.variants)
        todo = {width: [KL] for width in widths if width not in self.found["kl"]}
        if not todo:
            return
        if not model.exists():
            self._skip("quality", f"{model.name}, a real model, is not there (make demo fetches it)")
            return
        self.settings.update(matrix_model=str(model), matrix_text_tokens=min(self.settings["text_tokens"], MOST_TEXT))
        self.say(f"KL of widths: {', '.join(todo)}")
        self._run("quality", sys.executable, "peers.matrices.quality", todo, self._quality)

    def known_qualities(self, path: Path) -> None:
        """Takes the KL of widths from a report of a CPU, if there is one."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        self.found["kl"] = {**found.get("matrices", {}).get("kl", {}), **self.found["kl"]}

    def _todo(self, name: str, rows: list[str] | None) -> Todo:
        """Shapes that are left to measure of each variant."""
        out: Todo = {}
        for variant in ENGINES[name].variants:
            there = self.found["rows"].get(f"{name}/{variant.name}", {})
            left = [s for s in self.settings["matrix_shapes"] if s not in there or by_limit(there[s].get("failed", ""))]
            if left and (rows is None or variant.name in rows):
                out[variant.name] = left
        return out

    def _about(self, name: str) -> Json:
        title = "KL of widths" if name == "quality" else f"{ENGINES[name].peer.title}, products"
        about: Json = self.report["peers"].setdefault(f"matrices/{name}", {"title": title})
        about.pop("reason", None)
        self.found["skipped"].pop(name, None)
        return about

    def _skip(self, name: str, why: str) -> None:
        self.say(f"{self._about(name)['title']}: skipped, {why}")
        self._about(name)["reason"] = why
        if name in ENGINES:
            self.found["skipped"][name] = why
        self.save()

    def _run(self, name: str, python: str, module: str, todo: Todo, tell: Callable[[Event], None]) -> None:
        about = self._about(name)

        def heard(event: Event) -> None:
            if event["what"] == "start":
                about["versions"] = event["versions"]
            elif event["what"] == "machine":
                self.report["machine"].update({k: v for k, v in event.items() if k != "what"})
            elif event["what"] in ("measured", "failed"):
                tell(event)
                said = event["reason"] if event["what"] == "failed" else "measured"
                self.say(f"  {event['row']:17} {event['section']:12} {said}")
            self.save()

        job = Job(name, self.settings, todo, self.logs, environment=dict(self.around))
        why = Runner(worker_command(python, module), job, self.limits, heard).run()
        if why is not None:
            self._skip(name, why)

    def _product(self, name: str, event: Event) -> None:
        values = event["values"] if event["what"] == "measured" else {"failed": event["reason"]}
        self.found["rows"].setdefault(f"{name}/{event['row']}", {})[event["section"]] = values

    def _quality(self, event: Event) -> None:
        if event["what"] == "measured":
            self.found["kl"][event["row"]] = event["values"]
        else:
            self._about("quality")["reason"] = event["reason"]
