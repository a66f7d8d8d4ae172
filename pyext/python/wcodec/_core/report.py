"""The common part of reports: records that print well, that notebooks show, and that become JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from . import format as fmt


def plain(record: Any, *, skip: Sequence[str] = (), last: Sequence[str] = ()) -> dict[str, Any]:
    """The public fields of a record: records within them as dictionaries, tuples as lists.

    :param skip: fields that are left out.
    :param last: fields that come behind all others.
    """
    names = [f.name for f in fields(record) if not f.name.startswith("_") and f.name not in (*skip, *last)]
    return {name: _value(getattr(record, name)) for name in (*names, *last)}


def _value(value: Any) -> Any:
    if is_dataclass(value):
        return value.to_dict() if hasattr(value, "to_dict") else plain(value)
    return list(map(_value, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True, repr=False, eq=False)
class Report:
    """A record that shows its facts, and tables beside them in notebooks and commands."""

    def _facts(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    def _tables(self) -> Sequence[fmt.Parts]:
        return ()

    def _summary(self) -> str:
        """The line below which a notebook folds the tables away; they stay open where it is empty."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return plain(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({fmt.facts(self._facts())})"

    def _repr_html_(self) -> str:
        tables = "".join(fmt.html_table(headings, rows, left) for headings, rows, left, _ in self._tables())
        return fmt.html_block(type(self).__name__, self._facts(), tables, self._summary())


class TableReport(Report):
    """A report with one table."""

    def _table(self) -> fmt.Parts:
        raise NotImplementedError

    def _tables(self) -> Sequence[fmt.Parts]:
        return (self._table(),)

    def table(self) -> str:
        """The rows as an aligned table of text."""
        headings, rows, left, _ = self._table()
        return fmt.text_table(headings, rows, left)
