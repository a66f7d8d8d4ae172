"""Turns the output of `cargo bench -p wcodec --bench coders` into a table and `target/bench/cpu.json`.

`make bench` runs both. Ratios to libzstd are of one run on one core and are results; GB/s hold for this machine only.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# Features that decide which decoder runs, and how fast.
FLAGS = ("sse4_2", "popcnt", "bmi2", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512_vbmi2")
MIB = 1 << 20


def main() -> int:
    target = target_folder()
    try:
        facts_path = target / "tmp" / "coders.json"
        facts = json.loads(facts_path.read_text())
        benchmarks, missing = read_benchmarks(criterion_folder(target), facts, facts_path.stat().st_mtime)
    except FileNotFoundError as e:
        print(f"{e.filename} is missing: run `cargo bench -p wcodec --bench coders` first", file=sys.stderr)
        return 1
    add_ratios(benchmarks)
    report = {
        "machine": machine(),
        "versions": {**facts["versions"], "rustc": run("rustc", "--version")},
        "sizes": facts["sizes"],
        "benchmarks": benchmarks,
        "targets": targets(facts["sizes"], benchmarks),
        "missing": missing,
    }
    out = target / "bench" / "cpu.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    show(report)
    print(f"\nwritten to {out}")
    if missing:
        print(f"no results of this run for {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()


def target_folder() -> Path:
    # Cargo considers CARGO_TARGET_DIR and its own configuration files.
    metadata = json.loads(run("cargo", "metadata", "--no-deps", "--offline", "--format-version=1"))
    return Path(metadata["target_directory"])


def criterion_folder(target: Path) -> Path:
    # Criterion reads its variables itself, from the crate's folder.
    crate = Path(__file__).resolve().parent.parent
    if home := os.environ.get("CRITERION_HOME"):
        return crate / home
    if folder := os.environ.get("CARGO_TARGET_DIR"):
        return crate / folder / "criterion"
    return target / "criterion"


def read_benchmarks(criterion: Path, facts: Json, began: float) -> tuple[list[Json], list[str]]:
    """Results of the run that wrote `facts`, in its order, and the names of missing ones."""
    found = {}
    for path in criterion.glob("**/new/benchmark.json"):
        estimates = path.with_name("estimates.json")
        if not estimates.exists() or estimates.stat().st_mtime < began:
            continue
        benchmark = json.loads(path.read_text())
        # Other benchmarks of the workspace store theirs here too, and not all of them count bytes.
        size = (benchmark["throughput"] or {}).get("Bytes")
        if benchmark["full_id"] in facts["benchmarks"] and size is not None:
            found[benchmark["full_id"]] = (size, json.loads(estimates.read_text()))
    benchmarks = []
    for full_id in facts["benchmarks"]:
        if full_id not in found:
            continue
        size, estimates = found[full_id]
        median = estimates["median"]
        job, name, *isa = full_id.split("/")
        interval = median["confidence_interval"]
        benchmarks.append(
            {
                "job": job,
                "name": name,
                # libzstd does not report its choice.
                "isa": isa[0] if isa and name != "zstd" else None,
                "bytes": size,
                "median_ns": median["point_estimate"],
                "interval_95_ns": [interval["lower_bound"], interval["upper_bound"]],
                "median_abs_dev_ns": estimates["median_abs_dev"]["point_estimate"],
                "gb_per_s": size / median["point_estimate"],
            }
        )
    return benchmarks, [b for b in facts["benchmarks"] if b not in found]


def add_ratios(benchmarks: list[Json]) -> None:
    peers = {b["job"]: b["median_ns"] for b in benchmarks if b["name"] == "zstd"}
    for b in benchmarks:
        b["ratio_to_zstd"] = peers[b["job"]] / b["median_ns"] if b["job"] in peers else None


def machine() -> Json:
    info: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        pairs = (line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
        info = {key.strip(): value.strip() for key, value in pairs}
    flags = info.get("flags", "").split()
    # The CPU names of virtual machines are uninformative; these numbers are not.
    numbers = {key: info.get(name) for key, name in [("family", "cpu family"), ("model", "model")]}
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        **numbers,
        "flags": [f for f in FLAGS if f in flags],
        "cores": os.cpu_count(),
        "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
    }


def targets(sizes: list[Json], benchmarks: list[Json]) -> list[Json]:
    """The targets; `met` is None if this machine, or this run, cannot decide."""

    def judge(what: str, value: float | None, want: float, unit: str) -> Json:
        met = None if value is None else value <= want if unit == "% over entropy" else value >= want
        return {"what": what, "value": value, "want": want, "unit": unit, "met": met}

    def timed(job: str, name: str, isa: str | None, key: str) -> float | None:
        return next((b[key] for b in benchmarks if (b["job"], b["name"], b["isa"]) == (job, name, isa)), None)

    result = []
    for isa, want in [("avx512", 2.5), ("avx2", 1.0)]:
        value = timed("decode", "rans-pair", isa, "ratio_to_zstd")
        result.append(judge(f"rans-pair decode, {isa}", value, want, "x libzstd"))
    value = timed("encode", "rans-pair", None, "gb_per_s")
    result.append(judge("rans-pair encode (this machine)", value and value * 1e3, 250, "MB/s"))
    wanted = {"rans-pair": (2.5, 1.5), "huffman-pair": (3.5, 2.2)}
    for s in sizes:
        if s["name"] in wanted:
            want = wanted[s["name"]][s["bytes"] >= 8 * MIB]
            result.append(judge(f"{s['name']} size, {s['bytes'] >> 10} KiB", s["over"] * 100, want, "% over entropy"))
    return result


def show(report: Json) -> None:
    m, v = report["machine"], report["versions"]
    print(f"{m['cpu']} (family {m['family']}, model {m['model']}), {m['cores']} cores: {' '.join(m['flags'])}")
    print(f"wcodec {v['wcodec']}, zstd {v['zstd']} (level 3, frames of 64 KiB), {v['rustc']}")
    if m["load_1min"] is not None and m["load_1min"] > 1.5:
        print(f"The load is {m['load_1min']:.1f}: other programs were running, and figures may be low.")

    print("\nspeed on one core, int8 bytes: median, median absolute deviation, 95 % interval of the median")
    print(f"{'':<28}{'isa':<8}{'GB/s':>8}{'+-':>8}{'interval':>16}{'x zstd':>9}")
    for b in report["benchmarks"]:
        spread = b["median_abs_dev_ns"] / b["median_ns"] * 100
        low, high = (b["bytes"] / ns for ns in reversed(b["interval_95_ns"]))
        ratio = "" if b["ratio_to_zstd"] is None else f"{b['ratio_to_zstd']:.2f}"
        print(
            f"{b['job'] + ' ' + b['name']:<28}{b['isa'] or '':<8}{b['gb_per_s']:>8.3f}{spread:>6.1f} %"
            f"{low:>9.3f}-{high:<6.3f}{ratio:>9}"
        )

    print("\nsize of planes of Student-t rows of 2048, scales not counted")
    print(f"{'':<16}{'plane':>10}{'tile':>8}{'bits/symbol':>14}{'entropy':>10}{'over':>10}")
    for s in report["sizes"]:
        bits = 8 * s["stored"] / s["bytes"]
        plane = f"{s['bytes'] >> 10} KiB"
        print(f"{s['name']:<16}{plane:>10}{s['tile'] or '':>8}{bits:>14.4f}{s['entropy']:>10.4f}{s['over']:>+10.2%}")

    print("\ntargets")
    for t in report["targets"]:
        sign = "at most" if t["unit"] == "% over entropy" else "at least"
        met = {True: "met", False: "NOT MET", None: "not measured here"}[t["met"]]
        value = "" if t["value"] is None else f"{t['value']:.2f}"
        print(f"{t['what']:<34}{value:>9}  {sign} {t['want']:g} {t['unit']}: {met}")


if __name__ == "__main__":
    sys.exit(main())
