"""The figures of a run as a file of docs/results."""

from __future__ import annotations

from pathlib import Path

import runs

from .reference import key_of
from .results import Json
from .table import memory

FIXED = {"memory": "bytes of the card without the cache", "start": "s", "bits": "bits/weight"}
FIGURES = {"speed": ("tokens_per_s", "tokens/s"), "gpu-step": ("us", "us of the GPU")}
PROMPT = {"prefill": ("tokens_per_s", "tokens/s"), "gpu-prefill": ("us", "us of the GPU")}


def rows(lines: list[Json]) -> tuple[list[Json], dict[str, str]]:
    """Rows and units: a row for each engine, and for each model that ranks of transformers share."""
    bits = {(line["model"], line["scheme"]): line["bits"] for line in lines if line["kind"] == "folder"}
    units = dict(FIXED)
    out = []
    for engine in (line for line in lines if line["kind"] == "engine"):
        key = key_of(engine)
        settings = dict(zip(("model", "scheme", "mode", "ranks", "limit"), key, strict=True))
        found: Json = {"bits": bits.get(key[:2]), "memory": memory(engine), "start": engine.get("start_s")}
        for line in lines:
            if line["kind"] in (*FIGURES, *PROMPT) and key_of(line) == key:
                quantity, unit = {**FIGURES, **PROMPT}[line["kind"]]
                what = "prompt" if line["kind"] in PROMPT else str(line["sequences"])
                name = f"{line['kind'].removesuffix('-step').removesuffix('-prefill')}_{what}"
                name = name.replace("prefill", "speed")
                units[name] = f"{unit}, a prompt of 2,048" if what == "prompt" else f"{unit}, {what} sequences"
                found[name] = line[quantity]
        out.append(runs.row(" ".join(str(part) for part in key if part is not None), {**settings, **found}, units))
    for shared in (line for line in lines if line["kind"] == "shared"):
        key = (shared["model"], shared["scheme"], shared["ranks"])
        found = {"model": key[0], "scheme": key[1], "ranks": key[2], "start": shared["start_s"]}
        found |= {"memory": max(shared["rank_bytes"])}
        for line in lines:
            if line["kind"] == "shared_speed" and (line["model"], line["scheme"], line["ranks"]) == key:
                units[f"speed_{line['sequences']}"] = f"tokens/s, {line['sequences']} sequences"
                found[f"speed_{line['sequences']}"] = line["tokens_per_s"]
        row = runs.row(f"{key[0]} {key[1]} transformers {key[2]}", found, units)
        if row["name"] not in [other["name"] for other in out]:
            out.append(row)
    return out, units


def write(path: Path | None, about: Json, lines: list[Json]) -> None:
    """Writes the file, if there is a path."""
    found, units = rows(lines)
    runs.write(path, "Speed and memory of served models", units, found, command=about["command"], card=about["card"])
