"""An error in the words of the command, and as JSON for programs that asked for JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .._core.errors import OutputExistsError, WcodecError
from .._native import safe
from .hints import advice_of, code_of
from .output import document, put

_OVERWRITE = "use --overwrite to replace it"


def text_of(error: BaseException) -> str:
    """The message of an error, with advice for a command line."""
    if isinstance(error, OutputExistsError):
        return f"{advice_of(error.without_code())[0]} ({_OVERWRITE}) [{error.code}]"
    return str(error) or type(error).__name__


def document_of(error: BaseException, text: str, status: int, argv: Sequence[str] | None) -> None:
    """Prints the error as JSON, if that is what the command was to print.

    :param text: the message about it.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not _asks_for_json(words):
        return
    said, code = code_of(safe(" ".join(text.split())))
    message, tip = advice_of(said)
    record: dict[str, Any] = {"kind": _kind(error), "message": message, "tip": tip, "status": status}
    if isinstance(error, SystemExit):
        record.update(code="I701")
    if isinstance(error, WcodecError):
        record.update(code=code, file=error.file, tensor=error.tensor, offset=error.offset)
    try:
        put(document(words[0], {"error": record}))
    except OSError:
        # Standard output may be what failed.
        pass


def _kind(error: BaseException) -> str:
    return "UsageError" if isinstance(error, SystemExit) else type(error).__name__


def _asks_for_json(words: Sequence[str]) -> bool:
    before = words[: words.index("--")] if "--" in words else words
    if "--json" not in before or before[0].startswith("-"):
        return False
    # roundtrip may have been given a file for it.
    after = before[before.index("--json") + 1 :]
    return before[0] != "roundtrip" or not after or after[0].startswith("-")
