"""``wcodec chat``: talking to a model."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from .._core import format as fmt
from .._core.errors import InputError
from .._core.paths import output
from .._core.terminal import columns, is_terminal, wrapped
from .._native import safe
from . import sampling
from .conversation import Conversation
from .generate import advice_on_speed
from .models import _load, _memory, _running, _tokenizer
from .output import complain, prose, say, tell

_COMMANDS = {
    "/help": "lists these commands",
    "/reset": "begins a new conversation",
    "/system": "TEXT gives the model another system message, and begins anew; without a text it shows the one there is",
    "/stats": "shows speed, tokens and memory",
    "/save": "FILE writes the conversation as JSON",
    "/quit": "ends, as Ctrl-D does",
}
_LIKE_COMMANDS = re.compile(r"/[a-z]+(\s|$)")
_QUITS = ("/quit", "/exit", "/bye")


def run(arguments: argparse.Namespace) -> int:
    """``wcodec chat``"""
    a = arguments
    model = _load(a)
    tokenizer = _tokenizer(a, model)
    sampling.seed(a)
    talk = Conversation(model, tokenizer, a.model, a.system, sampling.options_of(a, greedy=False))
    session = _Session(a, model, tokenizer, talk)
    if not talk.templated:
        if a.system is not None:
            raise InputError(
                f"{a.model}: without a chat template there is no system message (leave out --system)", code="I322"
            )
        _note(f"{a.model} has no chat template: it goes on with each text that you give it")
    if session.watched:
        _note("/help lists commands, Ctrl-C stops an answer, Ctrl-D quits")
    session.loop()
    return 0


class _Session:
    """Lines of a person or a pipe, and answers to them."""

    def __init__(self, a: argparse.Namespace, model: Any, tokenizer: Any, talk: Conversation) -> None:
        self._a, self._model, self._tokenizer, self._talk = a, model, tokenizer, talk
        self.watched = is_terminal(sys.stdin) and is_terminal(sys.stdout)
        self._advised = a.quiet
        if self.watched:
            try:
                # Imported, it gives input() arrows and a history.
                import readline  # noqa: F401
            except ImportError:
                pass

    def loop(self) -> None:
        """Until the input ends."""
        while (line := self._read()) is not None:
            text = line.strip()
            if not text:
                continue
            if text in _QUITS:
                return
            try:
                if _LIKE_COMMANDS.match(text):
                    self._command(*_split(text))
                else:
                    self._answer(text)
            except (InputError, OSError) as error:
                if not self.watched:
                    raise
                complain("error", str(error))

    def _read(self) -> str | None:
        """The next message; a line that ends with a backslash goes on in the next one."""
        lines: list[str] = []
        while True:
            try:
                line = input("> " if self.watched and not lines else "") if self.watched else _next_line()
            except EOFError:
                line = None
            except KeyboardInterrupt:
                if not self.watched:
                    raise
                say("\n(Ctrl-D quits)")
                return ""
            if line is None:
                if self.watched:
                    say()
                return "\n".join(lines) or None
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                return "\n".join(lines)

    def _answer(self, text: str) -> None:
        from .stream import Stream

        talk = self._talk
        stream = Stream(self._tokenizer, "", live=self.watched)
        try:
            with _stopping() as stop, _running(self._a.model):
                generation = talk.ask(text, stream, [stop], self._a.max_new_tokens)
        except KeyboardInterrupt:
            # Asked for twice: at once, in the middle of a token.
            stream.finish()
            talk.forget()
            if not self.watched:
                raise
            if stream.text:
                talk.keep(text, stream.text)
            return
        stream.finish(generation.text)
        if stop.asked and not self.watched:
            raise KeyboardInterrupt
        if self.watched:
            if stop.asked:
                _note("(stopped)")
            elif len(generation.tokens) >= self._a.max_new_tokens:
                _note(f"(after {fmt.plural(len(generation.tokens), 'token')}: --max-new-tokens allows more)")
        if not self._advised and (advice := advice_on_speed(self._model)) is not None:
            self._advised = True
            _note(advice)

    def _command(self, name: str, rest: str) -> None:
        talk = self._talk
        if name == "/help":
            for command, text in _COMMANDS.items():
                say(f"{command:<8}  {text}")
        elif name == "/reset":
            talk.reset()
            _note("(a new conversation)")
        elif name == "/system":
            self._system(rest)
        elif name == "/stats":
            for line in self._stats():
                prose(line)
        elif name == "/save":
            self._save(rest)
        else:
            raise InputError(f"there is no command {name} (/help lists them)", code="I303")

    def _system(self, text: str) -> None:
        talk = self._talk
        if not text:
            say(safe(talk.system or "there is no system message but what the model's template has"))
            return
        if not talk.templated:
            raise InputError("without a chat template there is no system message (use a model with one)", code="I322")
        talk.system = text
        talk.reset()
        _note("(a new conversation)")

    def _stats(self) -> Iterator[str]:
        talk = self._talk
        yield "no answer yet" if talk.last is None else f"last answer: {talk.last.speed}"
        yield f"conversation: {fmt.plural(len(talk.messages), 'message')}, {fmt.plural(talk.tokens, 'token')}"
        yield _memory(self._model)

    def _save(self, file: str) -> None:
        if not file:
            raise InputError("/save needs the name of a file (such as /save talk.json)", code="I303")
        record = {"model": self._a.model, "messages": self._talk.all_messages()}
        with output(str(Path(file).expanduser()), overwrite=False) as out:
            out.write((json.dumps(record, indent=2) + "\n").encode())
            out.finish()
        _note(f"({file}: written)")


class _Stop:
    """A criterion of transformers: whether somebody asked for an end."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, ids: Any, scores: Any, **kwargs: Any) -> Any:
        import torch

        return torch.full((ids.shape[0],), self.asked, device=ids.device, dtype=torch.bool)


@contextmanager
def _stopping() -> Iterator[_Stop]:
    """Makes the first Ctrl-C stop after the token at work, so that all that was written is kept, and the second one
    break off at once."""
    stop = _Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:
        # In a thread that is not the main one no signal arrives.
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _next_line() -> str | None:
    line = sys.stdin.readline() if sys.stdin is not None else ""
    return line.rstrip("\n") if line else None


def _split(text: str) -> tuple[str, str]:
    name, _, rest = text.partition(" ")
    return name, rest.strip()


def _note(text: str) -> None:
    """Tells something beside the conversation."""
    tell(wrapped(safe(text), columns(sys.stderr)))
