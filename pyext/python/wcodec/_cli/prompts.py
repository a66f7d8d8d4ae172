"""Prompts from the command line, from standard input and from files; and messages in a model's own form."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._core.errors import FormatError, InputError
from .._core.foreign import cause

Message = dict[str, str]


def of(a: argparse.Namespace) -> list[str]:
    """The prompts that a command was given."""
    if a.prompts is not None:
        return of_file(Path(a.prompts))
    given = a.text if a.prompt is None else a.prompt
    return [sys.stdin.read() if given == "-" else str(given)]


def of_file(path: Path) -> list[str]:
    """A prompt from each line that is not empty; of a ``.jsonl`` file what its objects have as ``prompt``."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text (convert it)", file=path, code="I604") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(f"{path}: there are no prompts in it (put one into each line)", file=path, code="I325")
    if path.suffix != ".jsonl":
        return [line for _, line in lines]
    return [_of_object(path, number, line) for number, line in lines]


def _of_object(path: Path, number: int, line: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError, RecursionError):
        prompt = None
    if not isinstance(prompt, str):
        raise FormatError(
            f'{path}: line {number} is no object with a text "prompt" (such as {{"prompt": "Once"}})',
            file=path,
            code="F114",
        )
    return prompt


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer says how messages are written for its model."""
    return bool(getattr(tokenizer, "chat_template", None))


def ids_of(tokenizer: Any, messages: Sequence[Message], model: str) -> list[int]:
    """Token ids of a conversation, up to where the answer begins.

    :param model: the name of the model, for messages.
    :raises InputError: if there is no template, or the template refuses these messages.
    """
    if not has_template(tokenizer):
        raise InputError(
            f"{model}: its tokenizer has no chat template (leave out --chat, or name another --tokenizer)",
            file=model,
            code="I322",
        )
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:
        # A template is a program of others, which fails in its own ways.
        raise InputError(
            f"{model}: the chat template does not take these messages: {cause(error)} (leave out the system message, "
            "or name another --tokenizer)",
            file=model,
            code="I323",
        ) from None
    # The template writes special tokens itself.
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
