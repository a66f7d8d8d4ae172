"""The table of products: microseconds of one matrix, and speed over bf16's in the same process."""

from __future__ import annotations

from statistics import median
from typing import Any

from .catalogue import ENGINES, Variant, width_key

Json = dict[str, Any]
KINDS = {"": "nothing between the products", "between_": "one small kernel before each product"}


def number(microseconds: float) -> str:
    """Three digits.

    >>> number(9.234), number(45.67), number(120.4)
    ('9.2', '45.7', '120')
    """
    return f"{microseconds:.0f}" if microseconds >= 100 else f"{microseconds:.1f}"


def rows() -> list[tuple[str, str, Variant]]:
    """Engine, key and variant of each row, in the catalogue's order."""
    return [(name, f"{name}/{v.name}", v) for name, engine in ENGINES.items() for v in engine.variants]


def table(found: Json) -> str:
    """Markdown: for each shape, two tables; then what is missing.

    :param found: ``sections`` by row and shape, ``skipped`` by engine, and ``kl`` by width.
    """
    parts, missing = [], []
    shapes = list(dict.fromkeys(shape for sections in found["rows"].values() for shape in sections))
    for shape in shapes:
        figures = {key: s[shape] for key, s in found["rows"].items() if "tokens" in s.get(shape, {})}
        missing += [
            f"{key}, {shape}: {s[shape]['failed']}" for key, s in found["rows"].items() if "failed" in s.get(shape, {})
        ]
        if figures:
            parts += [_one(found, shape, figures, kind) for kind in KINDS]
    if not parts and found["kl"]:
        parts.append(_kl(found["kl"]))
    return "\n\n".join([*parts, *(f"Products not measured: {text}" for text in missing)])


def _one(found: Json, shape: str, figures: Json, kind: str) -> str:
    tokens = list(dict.fromkeys(t for values in figures.values() for t in values["tokens"]))
    heads = [f"{shape}, {KINDS[kind]}", "bits", "KL of the width", *(f"{t} token{'s' * (t != '1')}" for t in tokens)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    plain = [_median(figures, t, f"bf16_{kind}us") for t in tokens]
    lines.append(f"| bf16 | 16.00 | 0 | {' | '.join(plain)} |")
    for engine, key, variant in rows():
        if key in figures:
            values = figures[key]
            kl = found["kl"].get(width_key(variant), {}).get("kl")
            cells = [f"{values['bits']:.2f}", "-" if kl is None else f"{kl:.3g}"]
            cells += [_cell(values["tokens"].get(t), kind) for t in tokens]
            lines.append(f"| {variant.label} | {' | '.join(cells)} |")
        elif engine in found["skipped"]:
            lines.append(f"| {variant.label} | not measured, see below |" + " |" * (len(heads) - 2))
    return "\n".join(lines)


def _median(figures: Json, tokens: str, name: str) -> str:
    """The middle of bf16's times beside all engines."""
    times = [values["tokens"][tokens][name] for values in figures.values() if tokens in values["tokens"]]
    return number(median(times))


def _cell(values: Json | None, kind: str) -> str:
    if values is None:
        return "-"
    own = values[f"{kind}us"]
    return f"{number(own)} ({values[f'bf16_{kind}us'] / own:.2f})"


def _kl(found: Json) -> str:
    """KL alone, which a CPU measures."""
    lines = ["| SmolLM2-135M-Instruct, weights alone | bits | KL |", "|---|---|---|"]
    for key, values in found.items():
        lines.append(f"| {key} | {values['bits']:.2f} | {values['kl']:.3g} |")
    return "\n".join(lines)
