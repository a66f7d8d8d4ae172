"""The tables of models that several ranks share: each rank's memory beside the plan, and what was the same bits."""

from __future__ import annotations

from typing import Any

from .results import Json

KINDS = ("shared", "shared_logits", "map")
WITHIN = 0.03
"""The part of the plan by which a rank's memory may differ from it."""
FACTOR = 1.5
"""Logits may be so many times as far from those of the dequantized weights in float32 as these weights' own are in
bfloat16."""
NONE = "-"


def table(lines: list[Json]) -> str:
    """Markdown: a row for each model that was shared, then the checks of those that were cut."""
    out = []
    shared = [line for line in lines if line["kind"] == "shared"]
    if shared:
        counts = sorted({line["sequences"] for line in lines if line["kind"] == "shared_speed"})
        heads = ["model", "scheme", "ranks", "memory of each rank / plan", "start, s"]
        heads += [f"{count} at once, tokens/s" for count in counts]
        heads += ["same bits: all ranks / again / other process", "error of logits / of dequantized weights"]
        out += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        # A model that was run in two processes has one row.
        for key in dict.fromkeys(_key(line) for line in shared):
            out.append(f"| {' | '.join(_row(key, lines, counts))} |")
    for line in lines:
        if line["kind"] == "map":
            where = ", ".join(f"{place} {held / 1e9:.2f} GB" for place, held in line["held"].items())
            same = f"logits {_yes(line['same_logits'])}, tokens {_yes(line['same_text'])}"
            out.append(f"\n{line['model']} {line['scheme']} by a map ({where}), the bits of one card: {same}")
    return "\n".join(out) + "\n"


def beside_plan(line: Json) -> str:
    """Bytes of each rank, and how far they are from the plan.

    >>> beside_plan({"rank_bytes": [8_100_000_000, 8_200_000_000], "plan_bytes": 8_000_000_000})
    '8.10, 8.20 of 8.00 GB (+1.2 to +2.5 %)'
    """
    held, plan = line["rank_bytes"], line.get("plan_bytes")
    shown = ", ".join(f"{size / 1e9:.2f}" for size in held)
    if plan is None:
        return f"{shown} GB, without a plan"
    off = [100 * (size / plan - 1) for size in held]
    text = f"{shown} of {plan / 1e9:.2f} GB ({min(off):+.1f} to {max(off):+.1f} %)"
    # The plan is of the file. Before there is one, weights are taken to be normally distributed.
    before = line.get("config_bytes")
    return text if before is None else f"{text}; of the config alone {before / 1e9:.2f} GB"


def wrong(lines: list[Json]) -> list[str]:
    """All that is not as it should be."""
    out = []
    for line in lines:
        name = f"{line.get('model')} {line.get('scheme')}"
        if line["kind"] in ("shared", "engine") and "plan_bytes" in line:
            plan = line["plan_bytes"]
            if any(abs(held / plan - 1) > WITHIN for held in line["rank_bytes"]):
                out.append(f"{name}, {line['ranks']} ranks: memory is {beside_plan(line)}")
        if line["kind"] == "shared" and not line["same_again"]:
            out.append(f"{name}, {line['ranks']} ranks: other bits the second time")
        if line["kind"] == "shared_logits" and not line["error"] <= FACTOR * line["own_error"]:
            out.append(f"{name}, {line['ranks']} ranks: logits are {_errors(line)} from those in float32")
        if line["kind"] == "map" and not (line["same_logits"] and line["same_text"]):
            out.append(f"{name}: a map over several cards computes other bits than one card")
    for key in dict.fromkeys(_key(line) for line in lines if line["kind"] == "shared"):
        if len(_digests(key, lines)) > 1:
            out.append(f"{key[0]} {key[1]}, {key[2]} ranks: other bits in another process or rank")
    return out


def _row(key: tuple[Any, ...], lines: list[Json], counts: list[int]) -> list[str]:
    runs = [line for line in lines if line["kind"] == "shared" and _key(line) == key]
    speeds = {line["sequences"]: line for line in lines if line["kind"] == "shared_speed" and _key(line) == key}
    plain = {
        line["sequences"]: line
        for line in lines
        if line["kind"] == "shared_speed" and _key(line) == (key[0], "bf16", key[2])
    }
    cells = [*map(str, key), beside_plan(runs[0]), f"{runs[0]['start_s']:.0f}"]
    for count in counts:
        found, base = speeds.get(count), None if key[1] == "bf16" else plain.get(count)
        rate = NONE if found is None else f"{found['tokens_per_s']:,.1f}"
        cells.append(rate if found is None or base is None else f"{rate} ({_over(found, base):.2f})")
    all_ranks = all(len(set(run["digests"])) == 1 for run in runs)
    other = NONE if len(runs) < 2 else _yes(len(_digests(key, lines)) == 1)
    cells.append(f"{_yes(all_ranks)} / {_yes(all(run['same_again'] for run in runs))} / {other}")
    logits = [line for line in lines if line["kind"] == "shared_logits" and _key(line) == key]
    cells.append(_errors(logits[0]) if logits else NONE)
    return cells


def _errors(line: Json) -> str:
    return f"{line['error']:.2%} / {line['own_error']:.2%}"


def _key(line: Json) -> tuple[Any, ...]:
    return line["model"], line["scheme"], line["ranks"]


def _digests(key: tuple[Any, ...], lines: list[Json]) -> set[str]:
    return {one for line in lines if line["kind"] == "shared" and _key(line) == key for one in line["digests"]}


def _over(found: Json, base: Json) -> float:
    return float(found["tokens_per_s"] / base["tokens_per_s"])


def _yes(fine: bool) -> str:
    return "yes" if fine else "no"
