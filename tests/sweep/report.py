"""Findings of a sweep, as text for a terminal and as a table for the documents."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from .configs import AUTO_CLASSES

BEGIN = "<!-- made by `make sweep`: begin -->"
END = "<!-- made by `make sweep`: end -->"


# The least share of the bytes of a model's matrices that is compressed, if nothing else is told.
SHARE = 0.97


def faults(record: dict[str, Any]) -> dict[str, str]:
    """Faults of a model that transformers saves and loads, by step."""
    return {step: fault for step, fault in record.get("steps", {}).items() if fault}


def is_expected(record: dict[str, Any]) -> bool:
    """Whether transformers itself saves and loads the model."""
    return not record.get("transformers")


def summary(records: list[dict[str, Any]]) -> str:
    """Counts, and all faults."""
    expected = [r for r in records if is_expected(r)]
    wrong = [r for r in expected if faults(r)]
    lines = [
        f"{len(records)} architectures; {len(expected)} that transformers saves and loads: "
        f"{len(expected) - len(wrong)} whole, {len(wrong)} not"
    ]
    for record in wrong:
        step, fault = next(iter(faults(record).items()))
        lines.append(f"  {record['auto']} {record['architecture']}: {step}: {fault[:160]}")
    return "\n".join(lines)


def put(records: list[dict[str, Any]], page: Path) -> None:
    """Writes the table between its marks on a page."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no marks for the table ({BEGIN} and {END})")
    page.write_text(f"{before}{BEGIN}\n\n{table(records)}\n\n{END}{after}", encoding="utf-8")


def table(records: list[dict[str, Any]]) -> str:
    """A row for each Auto class, then all exceptions, then what transformers does not save and load by itself."""
    by_auto: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        by_auto[record["auto"]].append(record)
    lines = [
        f"Made with transformers {_version()}, of {len(records)} models.",
        "",
        "| Auto class | listed | saved and loaded by transformers | whole | run | generate | least share compressed |",
        "|---|---|---|---|---|---|---|",
    ]
    for auto in AUTO_CLASSES:
        if auto in by_auto:
            lines.append(_row(auto, by_auto[auto]))
    wrong = [r for r in records if is_expected(r) and faults(r)]
    lines += ["", "Exceptions:" if wrong else "There are no exceptions."]
    if wrong:
        lines += ["", "| Auto class | architecture | first difference |", "|---|---|---|"]
        for r in wrong:
            step, fault = next(iter(faults(r).items()))
            lines.append(f"| `{r['auto']}` | `{r['architecture']}` | {_cell(f'{step}: {fault}')} |")
    lines += _told(records)
    lines += ["", "Left out, since transformers by itself does not build, save and load a small one whole."]
    reasons: dict[str, list[str]] = defaultdict(list)
    for r in records:
        if not is_expected(r):
            reasons[_reason(r["transformers"])].append(f"{r['architecture']} ({_short(r['auto'])})")
    lines += _named({reason: sorted(set(names)) for reason, names in reasons.items()})
    return "\n".join(lines)


def _named(reasons: dict[str, list[str]]) -> list[str]:
    """Reasons with the names below each, eight in a line."""
    lines = []
    for reason, names in sorted(reasons.items()):
        lines += ["", f"{reason[:1].upper()}{reason[1:]}:", ""]
        lines += [f"- {', '.join(names[begin : begin + 8])}" for begin in range(0, len(names), 8)]
    return lines


def _told(records: list[dict[str, Any]]) -> list[str]:
    """Models of whose matrices less is compressed, by what their reports say of the others."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for r in records:
        if is_expected(r) and r.get("share", 1.0) < SHARE:
            why = "; ".join(sorted(r.get("left", {}), key=lambda w: -r["left"][w])[:2]) or "no reason is told"
            reasons[why].append(f"{r['architecture']} ({_short(r['auto'])}, {r['share']:.0%})")
    if not reasons:
        return []
    lines = [
        "",
        f"Less than {SHARE:.0%} of the bytes of matrices are compressed, for reasons that the report names.",
    ]
    return lines + _named({_cell(why): sorted(names) for why, names in reasons.items()})


def _row(auto: str, records: list[dict[str, Any]]) -> str:
    expected = [r for r in records if is_expected(r)]
    whole = [r for r in expected if not faults(r)]
    ran = sum(r.get("forward") == "" for r in expected)
    generated = sum(r.get("generate") == "" for r in expected)
    shares = [r["share"] for r in expected if "share" in r]
    least = f"{min(shares):.1%}" if shares else ""
    return f"| `{auto}` | {len(records)} | {len(expected)} | {len(whole)} | {ran} | {generated} | {least} |"


def _reason(text: str) -> str:
    if "requires the" in text or "No module named" in text:
        return "it needs another library"
    if text.startswith("cannot be built"):
        return "transformers cannot build it"
    if "not the same" in text:
        return "transformers changes it"
    return "transformers cannot save and load it"


def _short(auto: str) -> str:
    return auto.removeprefix("AutoModel").removeprefix("For") or "AutoModel"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")[:140]


def _version() -> str:
    import transformers

    return str(transformers.__version__)
