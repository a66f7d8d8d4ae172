"""``wcodec inspect``: what a container holds."""

from __future__ import annotations

import argparse
from typing import Any

from .._core import format as fmt
from .._core.errors import InputError
from .._core.metadata import lines as plan_facts
from .._core.metadata import plan_of, quality_of
from .._core.options import is_unicode
from .._core.paths import files_of
from .._core.roles import role_rows, role_table, without_empty
from .._core.tensor_info import TABLE_DISPENSABLE, TABLE_HEADINGS, TABLE_LEFT, table_row
from .._core.terminal import columns, has_colors, table
from .._file.container import Container
from .._native import Facts, matching, safe
from . import inspect_source, rest
from .output import document, prose, put, save_plot, say, show, show_table

# Tensors of a document that are written at once: so few that memory is used again.
_PART = 4096
# So many tensors are all shown; of more, so many of the largest and of the worst.
_FEW = 12
_TELLING = 5
# Errors that differ by less are called the same.
_ALIKE = 0.05


def run(arguments: argparse.Namespace) -> int:
    """Prints sums by role and the table, or everything as JSON."""
    a = arguments
    if inspect_source.is_source(a.file):
        return inspect_source.run(a)
    with Container.open(a.file, trusted=a.trust) as container:
        # There may be a hundred thousand tensors: what is done with each is native.
        facts = container._open.facts()
        names = facts.names()
        count = len(names)
        shown = list(range(count)) if a.filter is None else _matching(a.filter, names)
        if a.sort != "file":
            shown = facts.sorted(shown, a.sort or "name")
        shown = shown[: a.top]
        if a.plot is not None:
            save_plot(lambda: container.plot.heatmap(a.by or "bits"), a.plot, files_of(a.file))
        if a.json:
            parts = (part for i in range(0, len(shown), _PART) for part in facts.json(shown[i : i + _PART]))
            put(document("inspect", _record(container, facts)), parts)
            return 0
        if a.filter is not None and not shown:
            raise _nothing(container, a.filter, names)
        _tables(container, facts, shown, names, a)
        aliases = [] if a.top else list(container.aliases.items())
        for i in range(len(aliases)) if a.filter is None else _matching(a.filter, [alias for alias, _ in aliases]):
            say(f"{safe(aliases[i][0])} is tied to {safe(aliases[i][1])}")
        say()
        for name, fact in plan_facts(container.metadata):
            prose(f"{name}: {fact}")
        if len(shown) < count:
            prose(f"{fmt.plural(len(shown), 'tensor')} of {count:,} shown; totals are of the whole file")
        for line in _totals(container, facts):
            prose(line)
        if (beside := rest.line(container)) is not None:
            prose(beside)
    return 0


def _tables(container: Container, facts: Facts, shown: list[int], names: list[str], a: argparse.Namespace) -> None:
    """Sums by role; then the tensors that were asked for or, of many where nothing was, the telling ones."""
    most, colors = columns(), has_colors()
    rows = role_rows(facts, shown, container.stored_bytes)
    if a.summary or (a.top is None and len(rows) < len(shown)):
        show_table(role_table(rows, most, colors))
        if a.summary:
            return
        say()
    if a.all or len(shown) <= _FEW or any(given is not None for given in (a.filter, a.sort, a.top)):
        _listed(container, facts, shown, names)
        return
    prose("the largest", "heading")
    _listed(container, facts, facts.sorted(shown, "stored")[:_TELLING], names, "stored")
    say()
    _worst(container, facts, shown, names)
    prose(f"--all lists {fmt.plural(len(shown), 'tensor')}")


def _worst(container: Container, facts: Facts, shown: list[int], names: list[str]) -> None:
    """Tensors with the largest error, where errors are stated and differ: at the same bits they are the same."""
    order = facts.sorted(shown, "error")
    errors = [error for *_, error in facts.figures(order) if error is not None]
    if not errors:
        return
    if errors[0] <= errors[len(errors) // 2] * (1 + _ALIKE):
        prose(f"relative RMS error: {fmt.number(errors[0], 4)} at most, and about the same in most tensors")
        return
    prose("the largest relative RMS error (calibrated files have it where it matters least)", "heading")
    _listed(container, facts, order[: min(_TELLING, len(errors))], names, "error")
    say()


def _listed(container: Container, facts: Facts, shown: list[int], names: list[str], by: str | None = None) -> None:
    """A line for each tensor.

    :param by: the column that the tensors were chosen by, which any room has.
    """
    most, colors = columns(), has_colors()
    if most is None and not colors:
        show(facts.table(shown).rstrip("\n"))
        return
    entries = (container._entry(facts, place, names[place]) for place in shown)
    all_of = [(*table_row(entry), fmt.number(entry.error, 4)) for entry in entries]
    headings, lines = without_empty((*TABLE_HEADINGS, "error"), all_of)
    drop = [name for name in (*TABLE_DISPENSABLE, "error") if name in headings and name != by]
    made = table(headings, lines, TABLE_LEFT, most=most, drop=drop, colors=colors)
    if by is None:
        show_table(made)
    else:
        show(made.text)


def _matching(text: str, names: list[str]) -> list[int]:
    """Places of the names that a filter leaves; what is not Unicode is in none."""
    return matching(text, names) if is_unicode(text) else []


def _nothing(container: Container, text: str, names: list[str]) -> InputError:
    """No name has the text: a pattern with stars may be meant, or a name that is spelled otherwise."""
    bare = text.strip("*") if is_unicode(text) else ""
    near = bare and (container._open.near(bare) or container._open.near(f"{bare}.weight"))
    if bare not in ("", text) and _matching(bare, names):
        advice = f"it takes text that names contain, or a regular expression: {bare}"
    else:
        advice = f"did you mean {near!r}?" if near else "without --filter all are shown"
    return InputError(f"no tensor's name has {text!r} ({advice})", file=container.path, code="I317")


def _sums(container: Container, facts: Facts) -> dict[str, Any]:
    tensors, elements, original, in_tensors = facts.totals()
    stored = container.stored_bytes
    return {
        "tensors": tensors,
        "aliases": len(container.aliases),
        "elements": elements,
        "original_bytes": original,
        "stored_bytes": stored,
        "overhead_bytes": stored - in_tensors,
        "ratio": fmt.ratio(original, stored),
        "bits_per_weight": fmt.bits(stored, elements),
    }


def _totals(container: Container, facts: Facts) -> tuple[str, str]:
    s = _sums(container, facts)
    major, minor = container.version
    tied = f" ({s['aliases']:,} more tied)" if s["aliases"] else ""
    figures = f"ratio {fmt.number(s['ratio'])}, {fmt.number(s['bits_per_weight'])} bits/weight"
    return (
        f"{fmt.plural(s['tensors'], 'tensor')}{tied}, {s['elements']:,} weights: {fmt.size(s['original_bytes'])} -> "
        f"{fmt.size(s['stored_bytes'])}, {figures}",
        f"index, header and padding: {fmt.size(s['overhead_bytes'])}; format {major}.{minor}, "
        f"written by {container.writer}",
    )


def _record(container: Container, facts: Facts) -> dict[str, Any]:
    return {
        "path": container.path,
        "format_version": list(container.version),
        "writer": container.writer,
        "metadata": container.metadata,
        "plan": plan_of(container.metadata),
        "quality": quality_of(container.metadata),
        "model": container.model,
        "totals": _sums(container, facts),
        "aliases": container.aliases,
    }
