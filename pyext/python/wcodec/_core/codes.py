"""The catalogue of errors: the identifier of each cause, why it comes, and what to do."""

from __future__ import annotations

import difflib
import functools
from dataclasses import asdict, dataclass
from typing import Any

from .._native import error_codes
from .errors import InputError, WcodecError, class_of
from .keywords import keywords


@dataclass(frozen=True)
class ErrorCode:
    """The cause of errors, by an identifier that stays the same in all versions.

    ``id`` stands at the end of messages and in their attribute ``code``. ``title`` tells the error in a few words,
    ``cause`` why it comes, ``remedy`` what to do; ``exception`` is the class that is raised, ``section`` the heading
    under which the guide lists it.
    """

    id: str
    exception: str
    section: str
    title: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.id}: {self.title} ({self.exception})\n\nwhy: {self.cause}\ndo: {self.remedy}"

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


@functools.cache
def catalogue() -> dict[str, ErrorCode]:
    """All codes by their identifiers, in the order of the guide."""
    return {id: ErrorCode(id, class_of(kind).__name__, *texts) for id, kind, *texts in error_codes()}


@keywords()
def explain(code: str | WcodecError) -> ErrorCode:
    """Tells what the code at the end of a message means.

    >>> import wcodec
    >>> print(wcodec.explain("F102"))
    F102: a file too short for a container (FormatError)
    <BLANKLINE>
    why: A container begins with a header of 64 bytes. Often a download or a copy failed.
    do: Check the path, and copy the file again.

    :param code: an identifier, or an error that has one.
    :raises InputError: if there is no such code.
    """
    known = catalogue()
    wanted = code.code if isinstance(code, WcodecError) else str(code).strip().strip("[]").upper()
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=3)
        advice = f"perhaps {' or '.join(near)}" if near else "a letter and three digits at the end of a message"
        raise InputError(f"there is no error code {wanted!r} ({advice})", code="I302")
    return known[wanted]
