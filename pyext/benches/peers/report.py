"""Results: one file of JSON, written after each section, and the table that is made of it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .catalogue import EMBEDDED, PEERS, Variant
from .matrices import table as matrices

Json = dict[str, Any]
SCHEMA = 1
# With other values of these, figures do not belong side by side.
COMPARED = ("device", "model", "windows", "shapes", "layers", "tokens", "repeats", "text_tokens", "prefill_tokens")
# All peers run on these, whose speeds are theirs too.
SHARED = ("torch", "transformers")
BF16 = "bf16/bf16"
NEEDS_GPU = "it needs a GPU"


class ReportError(ValueError):
    """A file that is no report, or one that does not fit another."""


def key(peer: str, variant: str) -> str:
    return f"{peer}/{variant}"


def empty(settings: Json, machine: Json, command: str, date: str) -> Json:
    return {
        "schema": SCHEMA, "date": date, "command": command, "settings": settings, "machine": machine, "peers": {},
        "rows": {}, "decoding": None, "matrices": matrices_empty(),
    }  # fmt: skip


def matrices_empty() -> Json:
    """Products of one matrix: sections by row and shape, why an engine has none, KL by width."""
    return {"rows": {}, "skipped": {}, "kl": {}}


def add_row(report: Json, peer: str, variant: Variant) -> Json:
    """The row of a variant, made if it is not there."""
    row: Json = report["rows"].setdefault(
        key(peer, variant.name), {"peer": peer, "variant": variant.name, "label": variant.label, "sections": {}}
    )
    return row


def write(report: Json, path: Path) -> None:
    """All or nothing: a run that is stopped leaves the file before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    # Readable as any other file: temporary ones are the owner's alone.
    os.chmod(name, 0o644)
    os.replace(name, path)


def read(path: Path) -> Json:
    """:raises ReportError: if it is no report of this version."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReportError(f"{path} is not there") from None
    except ValueError as error:
        raise ReportError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or "rows" not in found:
        raise ReportError(f"{path} is no report of this benchmark (schema {SCHEMA})")
    # Reports from before there were products have none, and were of one model.
    found.setdefault("matrices", matrices_empty())
    found["settings"].setdefault("model", EMBEDDED)
    found["settings"].setdefault("windows", 16)
    return found


def differing(one: Json, other: Json) -> list[str]:
    """The differences that forbid a comparison: settings, the machine, versions."""
    a, b = one["settings"], other["settings"]
    out = [f"{name} {a.get(name)} and {b.get(name)}" for name in COMPARED if a.get(name) != b.get(name)]
    out += other_machine(a["device"], one["machine"], other["machine"])
    return out + other_versions(one["peers"], other["peers"])


def other_machine(device: str, one: Json, other: Json) -> list[str]:
    """The differences of the GPU, or of the CPU if that computes. A fact that only one report knows is not compared.

    >>> other_machine("cuda", {"gpu": "A", "cpu": "x"}, {"gpu": "B", "cpu": "y"})
    ['GPU A and B']
    """
    names = {"cpu": "CPU", "cores": "cores", "torch_threads": "threads of torch"} if device == "cpu" else {"gpu": "GPU"}
    out = []
    for name, title in names.items():
        a, b = one.get(name), other.get(name)
        if None not in (a, b) and a != b:
            out.append(f"{title} {a} and {b}")
    if device == "cpu" and "torch_threads" in one and "torch_threads" in other:
        # Reports from before this was told had one for each core.
        counts = [r.get("wcodec_threads", "one for each core") for r in (one, other)]
        if counts[0] != counts[1]:
            out.append(f"threads of wcodec {counts[0]} and {counts[1]}")
    return out


def other_versions(one: Json, other: Json) -> list[str]:
    """Packages that differ between peers of two runs: of those that all share, and of each peer that both have.

    >>> other_versions({"hqq": {"versions": {"hqq": "1"}}}, {"hqq": {"versions": {"hqq": "2"}}})
    ['hqq 1 and 2']
    """
    out = []
    for package in SHARED:
        a, b = (sorted({v[package] for v in map(_versions, run.values()) if package in v}) for run in (one, other))
        if a and b and a != b:
            out.append(f"{package} {', '.join(a)} and {', '.join(b)}")
    for name in one:
        mine, theirs = _versions(one[name]), _versions(other.get(name, {}))
        for package in mine:
            if package not in SHARED and package in theirs and mine[package] != theirs[package]:
                of = "" if package == name else f" of {name}"
                out.append(f"{package}{of} {mine[package]} and {theirs[package]}")
    return out


def _versions(peer: Json) -> dict[str, str]:
    return peer.get("versions") or {}


def refuse(differences: list[str]) -> None:
    """:raises ReportError: if there are any."""
    if differences:
        raise ReportError(f"these runs do not belong side by side: {'; '.join(differences)}")


def merge(reports: Iterable[Json]) -> Json:
    """Merges runs with the same settings, machine and versions; a section that was measured is not replaced by one that
    failed.

    :raises ReportError: if any of these differ.
    """
    first, *others = reports
    out: Json = json.loads(json.dumps(first))
    for other in others:
        refuse(differing(out, other))
        out["command"] += f"; {other['command']}"
        for name in ("sections", "batches"):
            out["settings"][name] = list(dict.fromkeys([*out["settings"][name], *other["settings"][name]]))
        for name, peer in other["peers"].items():
            mine = out["peers"].get(name)
            later = mine is not None and (mine.get("reason") or (peer.get("versions") and not mine.get("versions")))
            if mine is None or (later and not peer.get("reason")):
                out["peers"][name] = peer
        for name, row in other["rows"].items():
            mine = out["rows"].setdefault(name, row)
            if row.get("skipped") is None:
                mine.pop("skipped", None)
            for section, values in row["sections"].items():
                if "failed" not in values or section not in mine["sections"]:
                    mine["sections"][section] = values
        out["decoding"] = other["decoding"] or out["decoding"]
        _merge_matrices(out["matrices"], other["matrices"])
        out["machine"] = {**other["machine"], **out["machine"]}
    return out


def _merge_matrices(out: Json, other: Json) -> None:
    """Adds the products of another run; those that were measured are not replaced by ones that failed."""
    for key, sections in other["rows"].items():
        mine = out["rows"].setdefault(key, {})
        for section, values in sections.items():
            if "failed" not in values or section not in mine:
                mine[section] = values
    measured = {key.partition("/")[0] for key in out["rows"]}
    both = {**out["skipped"], **other["skipped"]}
    out["skipped"] = {name: why for name, why in both.items() if name not in measured}
    out["kl"] = {**other["kl"], **out["kl"]}


# The table.

Cell = str | None


def value(row: Json, section: str, name: str) -> Any:
    """One figure, or nothing."""
    return row["sections"].get(section, {}).get(name)


def number(found: float, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent.

    >>> number(0.0016019), number(4.0001), number(123.4), number(45678.9), number(0.0)
    ('0.00160', '4.00', '123', '45,679', '0')
    """
    if found == 0:
        return "0"
    if abs(found) >= 100:
        return f"{found:,.0f}"
    if abs(found) < 1e-5:
        return f"{found:.0e}"
    shown = f"{found:.{digits}g}"
    if "e" in shown:
        return f"{found:.6f}"
    places = max(digits - len(str(int(abs(found)))), 0) if abs(found) >= 1 else len(shown.partition(".")[2])
    if abs(found) < 1:
        # 0.00160 and not 0.0016: digits that were measured are shown.
        leading = len(shown.partition(".")[2]) - len(shown.partition(".")[2].lstrip("0"))
        places = leading + digits
    return f"{found:.{places}f}"


def _figure(section: str, name: str, scale: float = 1.0) -> Callable[[Json], Cell]:
    def cell(row: Json) -> Cell:
        found = value(row, section, name)
        return None if found is None else number(found * scale)

    return cell


def _fixed(section: str, name: str, places: int) -> Callable[[Json], Cell]:
    def cell(row: Json) -> Cell:
        found = value(row, section, name)
        return None if found is None else f"{found:.{places}f}"

    return cell


def _eager(row: Json) -> Cell:
    """Over bf16 in the same process: what a CPU does for it varies from one to the next."""
    found, beside = value(row, "eager/1", "tokens_per_s"), value(row, "eager/1", "bf16_tokens_per_s")
    if found is None:
        return None
    return number(found) if beside is None else f"{number(found)} ({found / beside:.2f})"


def _step(section: str, beside: float | None) -> Callable[[Json], Cell]:
    """Over the report's row of bf16: a step that is one launch varies little."""

    def cell(row: Json) -> Cell:
        found = value(row, section, "tokens_per_s")
        if found is None:
            return None
        of = "" if beside is None or row["peer"] == "bf16" else f" ({found / beside:.2f})"
        return number(found) + of

    return cell


def columns(report: Json) -> list[tuple[str, str, Callable[[Json], Cell]]]:
    """(heading, section, cell) of all figures."""
    batches = report["settings"]["batches"]
    bf16 = report["rows"].get(BF16)
    out: list[tuple[str, str, Callable[[Json], Cell]]] = [
        ("bits/weight", "quality", _fixed("quality", "bits", 2)),
        ("KL, weights", "quality", _figure("quality", "kl")),
        ("KL, as run", "quality", _figure("quality", "kl_run")),
        ("perplexity", "quality", _fixed("quality", "perplexity", 3)),
    ]
    if report["settings"]["shapes"] != EMBEDDED:
        out.append(("bits/weight of the large model", "load", _fixed("load", "bits", 2)))
    out += [
        ("load, s", "load", _figure("load", "load_s")),
        ("peak memory, GB", "load", _figure("load", "peak_bytes", 1e-9)),
    ]
    for kind in ("eager", "captured", "compiled"):
        for batch in batches:
            section = f"{kind}/{batch}"
            if kind == "eager":
                cell = _eager if batch == 1 else _figure(section, "tokens_per_s")
            else:
                cell = _step(section, None if bf16 is None else value(bf16, section, "tokens_per_s"))
            out.append((f"{kind}, batch {batch}", section, cell))
    out.append(("prefill", "prefill", _figure("prefill", "tokens_per_s")))
    return out


class Notes:
    """Remarks with numbers; the same text has the same number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        text = " ".join(text.split()).replace("|", "/").replace("<", "(").replace(">", ")")
        if text not in self.texts:
            self.texts.append(text)
        return f"({self.texts.index(text) + 1})"


def why_not(row: Json, section: str) -> str | None:
    """Why a figure is not there, if something says so."""
    never = row.get("no_quality" if section == "quality" else "no_speed")
    if never:
        return str(never)
    if row.get("slow") and section not in row["sections"]:
        return "each token takes so long that only the first batch is measured"
    failed = row["sections"].get(section, {}).get("failed")
    return None if failed is None else str(failed)


def order(report: Json) -> list[Json]:
    """Rows in the catalogue's order."""
    places = {key(p.name, v.name): i for i, (p, v) in enumerate((p, v) for p in PEERS.values() for v in p.variants)}
    return [report["rows"][k] for k in sorted(report["rows"], key=lambda k: places.get(k, len(places)))]


def _shown(report: Json, rows: list[Json]) -> list[tuple[str, str, Callable[[Json], Cell]]]:
    """Columns with figures, and one of each section that only has reasons why there are none."""
    out = []
    bare: set[str] = set()
    every = columns(report)
    filled = {section for _, section, cell in every if any(cell(row) is not None for row in rows)}
    for column in every:
        _, section, cell = column
        if any(cell(row) is not None for row in rows):
            out.append(column)
        elif section not in filled | bare and any("failed" in row["sections"].get(section, {}) for row in rows):
            bare.add(section)
            out.append(column)
    return out


def table(report: Json) -> str:
    """Markdown: rows, what is missing with its reason, versions."""
    rows = order(report)
    notes = Notes()
    shown = _shown(report, rows)
    lines = [
        "| | " + " | ".join(heading for heading, _, _ in shown) + " |",
        "|---|" + "---|" * len(shown),
    ]
    for row in rows:
        if row.get("skipped"):
            if row["skipped"] != NEEDS_GPU:
                lines.append(f"| {row['label']} | skipped {notes.mark(row['skipped'])} |" + " |" * (len(shown) - 1))
            continue
        marks = []
        for section in ("quality", "load"):
            marks += [notes.mark(text) for text in value(row, section, "notes") or ()]
        cells = []
        for _, section, cell in shown:
            found = cell(row)
            if found is None:
                why = why_not(row, section)
                found = "" if why is None else f"no {notes.mark(why)}"
            cells.append(found)
        label = row["label"] + (" " + " ".join(dict.fromkeys(marks)) if marks else "")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    # Decoding alone has a table of its own, and no rows here.
    parts = ["\n".join(lines)] if rows else []
    if absent := [row["label"] for row in rows if row.get("skipped") == NEEDS_GPU]:
        parts.append(f"Rows that need a GPU are not here: {', '.join(absent)}.")
    if notes.texts:
        parts.append("\n".join(f"({i}) {text}  " for i, text in enumerate(notes.texts, 1)))
    if report.get("decoding"):
        parts.append(_decoding(report["decoding"]))
    if products := matrices.table(report["matrices"]):
        parts.append(products)
    parts.append(_about(report))
    return "\n\n".join(parts) + "\n"


def _decoding(found: Json) -> str:
    rows = [r for r in found["rows"] if r["unit"] in ("G/s", "us")]
    lines = ["| decoding alone | what | bits/weight | |", "|---|---|---|---|"]
    for row in rows:
        bits = (row.get("more") or {}).get("bits_per_weight")
        unit = "G weights/s" if row["unit"] == "G/s" else row["unit"]
        cells = (row["case"], row["what"], "" if bits is None else f"{bits:.2f}", f"{number(row['value'])} {unit}")
        lines.append("| " + " | ".join(cells) + " |")
    if found.get("reason"):
        lines += ["", f"nvCOMP was not measured: {found['reason']}"]
    return "\n".join(lines)


def _about(report: Json) -> str:
    """The machine and the versions that were measured."""
    machine, settings = report["machine"], report["settings"]
    where = ", ".join(str(machine[k]) for k in ("gpu", "driver", "cpu", "cores") if machine.get(k))
    versions: dict[str, str] = {}
    for peer in report["peers"].values():
        versions.update(peer.get("versions") or {})
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    told = ", ".join(f"{name} {settings[name]}" for name in ("model", "shapes", "tokens", "repeats", "text_tokens"))
    if settings["device"] == "cpu" and machine.get("torch_threads"):
        told += f", threads: torch {machine['torch_threads']}, "
        told += f"wcodec {machine.get('wcodec_threads', 'one for each core')}"
    lines = [f"{report['date']}, {where}; {told}. Versions: {listed}. `{report['command']}`"]
    for peer in report["peers"].values():
        if peer.get("reason"):
            lines.append(f"{peer['title']} was not measured: {peer['reason']}")
    return "\n\n".join(lines)
