"""The table of a run: every row says engine, mode and card, and every ratio is to bf16 of the same run."""

from __future__ import annotations

from typing import Any

from . import gpu_time
from .ranks_table import beside_plan
from .reference import FACTOR, judged, key_of
from .results import Json

NONE = "-"


def table(about: Json, lines: list[Json]) -> str:
    """Markdown: a row for each engine, then what was left out or failed."""
    engines = {key_of(line): line for line in lines if line["kind"] == "engine"}
    gaps = {key_of(found): found for found in judged(lines)}
    bits = {(line["model"], line["scheme"]): line["bits"] for line in lines if line["kind"] == "folder"}
    counts = sorted({line["sequences"] for line in lines if line["kind"] == "speed"})
    heads = ["model", "scheme", "bits", "engine", "ranks", "card of", *map(_sequences, counts)]
    heads += ["prefill of 2,048", "memory, GB", "4,096 tokens fit", "gap / deviation"]
    # One rank has what the file has.
    shared = any(engine["ranks"] > 1 and "rank_bytes" in engine for engine in engines.values())
    if shared:
        heads += ["weights of each rank / plan", "start, s"]
    # Other parts than vLLM have tables of their own.
    top = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"] if engines else []
    out = [_about(about), "", *top]
    for key, engine in engines.items():
        model, scheme, *names = _names(key, engine)
        stored = bits.get((model, scheme))
        cells = [model, scheme, NONE if stored is None else f"{stored:.2f}", *names]
        speeds = {line["sequences"]: line for line in lines if line["kind"] == "speed" and key_of(line) == key}
        for count in counts:
            base = _find(lines, "speed", key, sequences=count)
            cells.append(_rate(speeds.get(count), base, _gpu_ratio(lines, "gpu-step", key, sequences=count)))
        cells.append(
            _rate(_same(lines, "prefill", key), _find(lines, "prefill", key), _gpu_ratio(lines, "gpu-prefill", key))
        )
        held = memory(engine)
        cells.append(NONE if held is None else f"{held / 1e9:.2f}")
        cells.append(_fit(engine, engines.get(_plain(key))))
        cells.append(_gap(gaps.get(key)))
        if shared:
            cells += [beside_plan(engine) if "rank_bytes" in engine else NONE, f"{engine['start_s']:.0f}"]
        out.append(f"| {' | '.join(cells)} |")
    if engines:
        out += [
            "",
            "Tokens/s, medians; in parentheses over bf16 of the same model, engine and mode, and with GPU bf16's time "
            "of the GPU alone over the row's. Bits count all that is stored. Memory is what the card holds without the "
            "cache. The gap is how far a token is from the largest logit of transformers with the same weights; "
            f"{FACTOR:g} times bf16's own is accepted.",
        ]
    out += _gpu_table(lines, list(engines), counts)
    for line in lines:
        if line["kind"] == "failed":
            out.append(f"\nNot measured: {line['what']}: {line['reason']}")
    return "\n".join(out) + "\n"


def memory(engine: Json) -> int | None:
    """Bytes of the card that are taken, without the cache of keys and values. Nothing where the card is limited: there
    the cache is whatever is left.

    >>> memory({"used_bytes": 10, "cache_bytes": 4})
    6
    """
    return None if engine["cache_bytes"] is None else int(engine["used_bytes"] - engine["cache_bytes"])


def wrong(lines: list[Json]) -> list[str]:
    """The engines whose tokens are not those of the weights."""
    return [
        f"{found['model']} {found['scheme']} {found['mode']}, {found['ranks']} ranks: a token is {found['gap']:.3g} "
        f"from the largest logit, and {found['accepted']:.3g} is accepted"
        for found in judged(lines)
        if not found["fine"]
    ]


def _ranks(engine: Json) -> str:
    return f"{engine['ranks']}, experts by number" if engine.get("by_expert") else str(engine["ranks"])


def _about(about: Json) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    driver = f", driver {about['driver']}" if about.get("driver") else ""
    return f"{about['card']}{driver}; commit {about['commit']}; {versions}; {about['date']}"


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count} sequences"


def _plain(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key of the row of bf16 that a row is compared with."""
    return (key[0], "bf16", *key[2:])


def _same(lines: list[Json], kind: str, key: tuple[Any, ...], **more: Any) -> Json | None:
    for line in lines:
        if line["kind"] == kind and key_of(line) == key and all(line[k] == v for k, v in more.items()):
            return line
    return None


def _find(lines: list[Json], kind: str, key: tuple[Any, ...], **more: Any) -> Json | None:
    """The figure of bf16 beside one of a row; nothing for a row of bf16 itself."""
    return None if key[1] == "bf16" else _same(lines, kind, _plain(key), **more)


def _rate(found: Json | None, base: Json | None, more: str = "") -> str:
    if found is None:
        return NONE
    rate = found["tokens_per_s"]
    return f"{rate:,.0f}" + ("" if base is None else f" ({rate / base['tokens_per_s']:.2f}{more})")


def _gpu_ratio(lines: list[Json], kind: str, key: tuple[Any, ...], **more: Any) -> str:
    return gpu_time.ratio(_same(lines, kind, key, **more), _find(lines, kind, key, **more))


def _gpu_table(lines: list[Json], keys: list[tuple[Any, ...]], counts: list[int]) -> list[str]:
    """The times of the GPU in microseconds, and the engines that have none."""
    out = []
    if any(line["kind"].startswith("gpu-") for line in lines):
        heads = ["model", "scheme", "engine", "ranks", "card of", *map(_sequences, counts), "prefill of 2,048"]
        out += ["", gpu_time.NOTE, "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for key in keys:
            of = [("gpu-step", {"sequences": count}) for count in counts] + [("gpu-prefill", {})]
            cells = [gpu_time.cell(_same(lines, kind, key, **m), _find(lines, kind, key, **m)) for kind, m in of]
            out.append(f"| {' | '.join([*_names(key), *cells])} |")
    for line in lines:
        if line["kind"] == "no-gpu-time":
            out.append(f"\nNo GPU time: {_engine(line)}: {line['reason']}")
    return out


def _names(key: tuple[Any, ...], engine: Json | None = None) -> list[str]:
    model, scheme, mode, ranks, limit = key
    of = str(ranks) if engine is None else _ranks(engine)
    return [model, scheme, f"vLLM, {mode}", of, "all" if limit is None else f"{limit / 1e9:.0f} GB"]


def _fit(engine: Json, base: Json | None) -> str:
    """The sequences that fit, which a limited card decides and no other."""
    if engine["limit"] is None:
        return NONE
    count = engine["long_sequences"]
    beside = None if base is None or base is engine else base["long_sequences"]
    return f"{count} ({count / beside:.2f})" if beside else str(count)


def _gap(found: Json | None) -> str:
    if found is None:
        return NONE
    shown = f"{found['gap']:.3f} / {found['deviation']:.2f}"
    return shown if found["fine"] else f"{shown}, wrong"


def _engine(line: Json) -> str:
    model, scheme, mode, ranks, _ = _names(key_of(line))
    return f"{model} {scheme} {mode}, {ranks} ranks"
