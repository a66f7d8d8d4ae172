"""The figures of a report as a file of docs/results."""

from __future__ import annotations

from pathlib import Path

import runs

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


def rows(report: Json) -> tuple[list[Json], dict[str, str]]:
    """Rows and units: figures, and the reasons why some are not there."""
    quantities = list(FIXED)
    for kind in ("eager", "captured", "compiled"):
        for batch in report["settings"]["batches"]:
            quantities.append((f"{kind}_{batch}", f"{kind}/{batch}", "tokens_per_s", f"tokens/s, batch {batch}"))
    units = {quantity: unit for quantity, _, _, unit in quantities}
    out = []
    for row in order(report):
        if row.get("skipped"):
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


def write(path: Path | None, report: Json) -> None:
    """Writes the file, if there is a path."""
    found, units = rows(report)
    shapes, device = report["settings"]["shapes"], report["settings"]["device"]
    subject = f"wcodec beside its peers: quality of the model of the repository, speed of the shapes {shapes}"
    card = report["machine"].get("gpu")
    runs.write(path, subject, units, found, command=report["command"], card=card, on_cpu=device == "cpu")
