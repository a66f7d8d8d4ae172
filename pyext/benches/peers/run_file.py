"""The figures of a report as a file of docs/results. Of quality on a real model the file has a row for each method and
rate; a run of some of them replaces theirs and leaves the others."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import runs

from .catalogue import EMBEDDED, PEERS, Variant
from .report import BF16, Json, order, value, why_not

FIXED = (
    ("bits", "quality", "bits", "bits/weight"),
    ("kl", "quality", "kl", "nats, weights alone"),
    ("kl_run", "quality", "kl_run", "nats, as it runs"),
    ("perplexity", "quality", "perplexity", "perplexity"),
    ("bits_loaded", "load", "bits", "bits/weight of the large model"),
    ("load", "load", "load_s", "s"),
    ("memory", "load", "peak_bytes", "bytes at most"),
    ("prefill", "prefill", "tokens_per_s", "tokens/s, a prompt of 2,048"),
)
"""Quantity, section, name in the section, unit."""

GIVEN = {
    "": "from weights alone",
    "columns": "with sizes of inputs by column (importance matrix)",
    "text": "with second moments of a text",
}
KNOWN_UNITS = {
    "bits": "bits/weight",
    **{_key: _unit for given, how in GIVEN.items() for _key, _unit in (
        (f"kl_{given}" if given else "kl", f"nats, {how}"),
        (f"same_{given}" if given else "same", f"% of tokens with the same top token, {how}"),
    )},
}  # fmt: skip


def is_real(report: Json) -> bool:
    """Whether quality is that of a real model."""
    return bool(report["settings"]["model"] != EMBEDDED)


def rows(report: Json) -> tuple[list[Json], dict[str, str]]:
    """Rows and units: figures, and the reasons why some are not there."""
    quantities = list(FIXED)
    for kind in ("eager", "captured", "compiled"):
        for batch in report["settings"]["batches"]:
            quantities.append((f"{kind}_{batch}", f"{kind}/{batch}", "tokens_per_s", f"tokens/s, batch {batch}"))
    units = {quantity: unit for quantity, _, _, unit in quantities}
    out = []
    for row in order(report):
        if row.get("skipped") or variant_of(row).given and is_real(report):
            continue
        found: Json = {"peer": row["peer"], "variant": row["variant"]}
        for quantity, section, name, _ in quantities:
            figure = value(row, section, name)
            found[quantity] = why_not(row, section) if figure is None else figure
            beside = _beside(report, row, section)
            if figure is not None and beside is not None:
                units[f"{quantity}_of_bf16"] = "of bf16's tokens/s"
                found[f"{quantity}_of_bf16"] = figure / beside
        out.append(runs.row(row["label"], found, units))
    return out, units


def variant_of(row: Json) -> Variant:
    """The catalogue's entry of a row; one without more than names for a row of another catalogue."""
    known = PEERS[row["peer"]].variants
    return next((v for v in known if v.name == row["variant"]), Variant(row["variant"], row["label"]))


def qualities(report: Json, commit: str) -> list[Json]:
    """Quality on a real model: a row for each method and rate, with a figure for each thing that it may know."""
    out: dict[str, Json] = {}
    for row in order(report):
        bits, kl, variant = value(row, "quality", "bits"), value(row, "quality", "kl"), variant_of(row)
        if not variant.curve or kl is None:
            continue
        made = out.setdefault(row["label"], {"name": row["label"], "of": {"curve": variant.curve}, "values": {}})
        end = f"_{variant.given}" if variant.given else ""
        made["values"].update({
            "bits": runs.rounded(bits), f"kl{end}": runs.rounded(kl),
            f"same{end}": runs.rounded(100 * value(row, "quality", "same_top_token")),
        })  # fmt: skip
        if fell_back := value(row, "quality", "fell_back"):
            made["of"]["fell_back"] = fell_back
        peer = PEERS[row["peer"]]
        versions = report["peers"][row["peer"]].get("versions") or {}
        names = ("wcodec",) if peer.ours else peer.packages[-1:] if row["peer"] == "gguf" else peer.packages[:1]
        made["of"]["version"] = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
        made["of"]["measured"] = f"{datetime.date.today().isoformat()}, {commit}"
    return list(out.values())


def merged(old: list[Json], new: list[Json]) -> list[Json]:
    """Rows of both by name, the newer figures of each, with the most bits first.

    >>> one = {"name": "a", "of": {"curve": "x"}, "values": {"bits": 4, "kl": 1}}
    >>> two = {"name": "b", "of": {}, "values": {"bits": 5, "kl": 0.5}}
    >>> merged([one, two], [{"name": "a", "of": {}, "values": {"bits": 4, "kl_text": 0.1}}])[1]
    {'name': 'a', 'of': {'curve': 'x'}, 'values': {'bits': 4, 'kl': 1, 'kl_text': 0.1}}
    """
    out: dict[str, Json] = {row["name"]: json.loads(json.dumps(row)) for row in old}
    for row in new:
        mine = out.setdefault(row["name"], {"name": row["name"], "of": {}, "values": {}})
        mine["of"].update(row["of"])
        mine["values"].update(row["values"])
    return sorted(out.values(), key=lambda row: (-row["values"]["bits"], row["name"]))


def _beside(report: Json, row: Json, section: str) -> float | None:
    """The speed of bf16 that a speed is compared with: of the same process, or of the report's row for graphs."""
    kind = section.partition("/")[0]
    if row["peer"] == "bf16" or kind not in ("eager", "captured", "compiled"):
        return None
    if kind == "eager":
        found = value(row, section, "bf16_tokens_per_s")
    else:
        bf16 = report["rows"].get(BF16)
        found = None if bf16 is None else value(bf16, section, "tokens_per_s")
    return None if found is None else float(found)


def write(path: Path | None, report: Json) -> list[Json]:
    """Writes the file, if there is a path; returns rows of quality on a real model, with those that the file had."""
    device = report["settings"]["device"]
    card = report["machine"].get("gpu")
    about = {"card": card, "on_cpu": device == "cpu"}
    if is_real(report) and report["settings"]["sections"] == ["quality"]:
        windows = report["settings"]["windows"]
        subject = f"Quality per bit of SmolLM2-135M-Instruct, linear layers, {windows} windows of 512 tokens"
        old: list[Json] = []
        if path is not None and path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            old = before["rows"] if before["subject"] == subject else []
        found = merged(old, qualities(report, runs.commit()))
        command = "make peers-cpu" + (f" PEERS='--windows {windows}'" if windows != 16 else "")
        runs.write(path, subject, KNOWN_UNITS, found, command=command, **about)
        return found
    found, units = rows(report)
    subject = (
        f"wcodec beside its peers: quality of the model {report['settings']['model']}, speed of the shapes "
        f"{report['settings']['shapes']}"
    )
    runs.write(path, subject, units, found, command=report["command"], **about)
    return qualities(report, "") if is_real(report) else []
