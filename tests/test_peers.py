"""pyext/benches/peers: what peers cost, what is counted, and that no peer can take the others down."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.append(str(REPOSITORY / "pyext/benches"))

from peers import catalogue, command, decoding, environments, events, plan, report, runner  # noqa: E402
from peers.adapters import base  # noqa: E402

SETTINGS: dict[str, Any] = {
    "device": "cpu", "shapes": "embedded", "layers": None, "tokens": 4, "repeats": 1, "text_tokens": 64,
    "prefill_tokens": 8, "batches": [1], "sections": ["quality", "load", "eager"],
}  # fmt: skip


def made(**rows: dict[str, Any]) -> report.Json:
    """A report with these sections of these rows of wcodec."""
    out = report.empty(dict(SETTINGS), {"cpu": "a CPU", "cores": 2}, "python pyext/benches/peers", "2026-01-01")
    out["peers"]["wcodec"] = {"title": "wcodec", "versions": {"wcodec": "9.9"}}
    for name, sections in rows.items():
        variant = catalogue.Variant(name, f"wcodec {name}")
        report.add_row(out, "wcodec", variant)["sections"].update(sections)
    return out


@pytest.mark.parametrize("module", [catalogue, plan, report], ids=lambda m: m.__name__)
def test_examples_in_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "hqqq"], "did you mean hqq?"),
        (["--only", "bf16,xyz"], "there is no peer 'xyz' (there are bf16"),
        (["--sections", "speed"], "there is no section 'speed' (choose from quality"),
        (["--only", "gguf", "--rows", "Q3_K"], "there is no row 'Q3_K' of gguf (there are Q8_0"),
        (["--batches", "1,x"], "'x' is no batch"),
        (["--from", "missing.json"], "missing.json is not there"),
    ],
)
def test_what_does_not_exist_is_an_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main([*arguments, "--device", "cpu", "--environments", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_peer_has_what_is_needed_to_run_it() -> None:
    for peer in catalogue.PEERS.values():
        assert (REPOSITORY / f"pyext/benches/peers/adapters/{peer.name}_.py").exists()
        assert all("==" in r or "<" in r or ">=" in r for r in (*peer.requirements, *peer.gpu_requirements)), peer.name
        assert len({v.name for v in peer.variants}) == len(peer.variants)
    assert catalogue.PEERS["dfloat11"].needs("13.2")[-1] == "cupy-cuda13x>=13"
    assert not any("cupy" in r for r in catalogue.PEERS["dfloat11"].needs(None))


def test_paths_of_the_machine_are_not_reported() -> None:
    given = ["--device", "cpu", "--json", "/somewhere/x.json", "--find-links=/elsewhere", "--quick"]
    assert command.without_paths(given) == ["--device", "cpu", "--quick"]


# Processes.


def process(tmp_path: Path, body: str, todo: runner.Todo, **limits: Any) -> tuple[list[events.Event], str | None]:
    """What a process in the place of a peer's tells, and the verdict."""
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, os, signal, sys, time\n"
        f"sys.path.append({str(REPOSITORY / 'pyext/benches')!r})\n"
        "from peers.events import Writer\n"
        "job = json.load(open(sys.argv[1]))\n"
        "tell = Writer(__import__('pathlib').Path(job['events'])).tell\n"
        "for row, sections in job['rows'].items():\n"
        "    tell('row', row=row)\n"
        "    for section in sections:\n"
        "        tell('begin', row=row, section=section)\n"
        f"        {body}\n"
        "        tell('measured', row=row, section=section, values={'bits': 1})\n"
    )
    told: list[events.Event] = []
    job = runner.Job("wcodec", {}, todo, tmp_path / "logs")
    found = runner.Runner([sys.executable, str(script)], job, runner.Limits(**{"row": 60, **limits}), told.append).run()
    return told, found


def outcome(told: list[events.Event]) -> dict[tuple[str, str], str]:
    """Of each section, the reason why it was not measured, or nothing."""
    return {(e["row"], e["section"]): e.get("reason", "") for e in told if e["what"] in ("measured", "failed")}


def test_a_peer_that_crashes_is_a_reason_and_the_others_go_on(tmp_path: Path) -> None:
    body = "print('about to go'); sys.stdout.flush(); section == 'load' and os.kill(os.getpid(), signal.SIGSEGV)"
    told, verdict = process(tmp_path, body, {"int8": ["quality", "load", "eager/1"], "nf4": ["quality"]})
    found = outcome(told)
    assert verdict is None and len(found) == 4
    assert found.pop("int8", None) is None
    assert found[("int8", "load")] == "the process died of SIGSEGV (about to go)"
    assert [why for key, why in found.items() if key != ("int8", "load")] == ["", "", ""]


def test_a_peer_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    told, verdict = process(
        tmp_path, "row == 'slow' and time.sleep(60)", {"slow": ["load", "eager/1"], "quick": ["load"]}, row=0.8
    )
    assert verdict is None
    late = "stopped after 0.8 s, the limit of a row"
    assert outcome(told) == {("slow", "load"): late, ("slow", "eager/1"): late, ("quick", "load"): ""}


def test_a_peer_that_cannot_even_start_has_one_reason(tmp_path: Path) -> None:
    job = runner.Job("wcodec", {}, {"int8": ["quality"]}, tmp_path)
    code = "raise SystemExit('no such library')"
    found = runner.Runner([sys.executable, "-c", code], job, runner.Limits(60), lambda event: None).run()
    assert found == "the process ended with exit status 1 (no such library)"


def test_nothing_begins_when_the_time_for_everything_is_up(tmp_path: Path) -> None:
    told, _ = process(tmp_path, "pass", {"int8": ["quality"]}, deadline=0.0)
    assert outcome(told) == {("int8", "quality"): "not run: the time for everything was up"}


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "events"
    reader = events.Reader(path)
    assert reader.new() == []
    path.write_text('{"what": "a"}\n{"wh')
    assert reader.new() == [{"what": "a"}]
    with path.open("a") as file:
        file.write('at": "b"}\n')
    assert reader.new() == [{"what": "b"}]


# Environments.


def test_what_is_not_installed_is_said(tmp_path: Path) -> None:
    peer = catalogue.Peer("x", "X", (), ("no-such-package-of-wcodec==1.0",))
    with pytest.raises(environments.Unavailable, match="not installed here: no-such-package-of-wcodec"):
        environments.prepare(peer, None, environments.Options(tmp_path, installed=True))


def test_an_environment_sees_what_this_interpreter_has_and_pip_says_why_not(tmp_path: Path) -> None:
    peer = catalogue.Peer("x", "X", (), ("no-such-package-of-wcodec==1.0",))
    options = environments.Options(tmp_path, find_links=str(tmp_path), no_index=True)
    with pytest.raises(environments.Unavailable, match="pip could not install it: ERROR: .*no-such-package"):
        environments.prepare(peer, None, options)
    python = tmp_path / "x/bin/python"
    code = "import importlib.util as u; print(all(map(u.find_spec, ('torch', 'wcodec', 'transformers'))))"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
    assert any(line.startswith("torch==") for line in (tmp_path / "x/constraints.txt").read_text().splitlines())


# What is counted.


def small() -> Any:
    torch.manual_seed(1)
    layers = {"a": torch.nn.Linear(64, 8, bias=False), "b": torch.nn.Linear(64, 4, bias=False)}
    return torch.nn.ModuleDict(layers).bfloat16().requires_grad_(False)


def test_bytes_of_a_matrix_with_scales_and_zeros() -> None:
    symbols, scales, zeros = torch.zeros(8, 64, dtype=torch.int8), torch.zeros(8), torch.zeros(8).half()
    assert base.total_bytes([symbols, scales, zeros, scales, "no tensor", None]) == 512 + 32 + 16


def test_bytes_of_a_tensor_that_is_made_of_others() -> None:
    class Pair(torch.Tensor):
        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["symbols", "scales"], None

    pair = torch.zeros(2, 4).as_subclass(Pair)
    pair.symbols, pair.scales = torch.zeros(2, 4, dtype=torch.int8), torch.zeros(2)
    assert base.tensor_bytes(pair) == 8 + 8


def test_bf16_counts_two_bytes_and_wcodec_what_it_stores() -> None:
    from peers.adapters import bf16_, wcodec_

    model = small()
    assert base.weights_in(model) == 64 * 12
    ready = bf16_.prepare(model, catalogue.Variant("bf16", "bf16"), "cpu")
    assert ready.stored_bytes == 2 * 64 * 12 and torch.equal(ready.decoded("a"), model["a"].weight)
    original = {name: model[name].weight.clone() for name in "ab"}
    exact = next(v for v in catalogue.WCODEC if v.name == "lossless")
    ready = wcodec_.prepare(model, exact, "cpu")
    assert ready.notes == ("coder rans",)
    assert all(torch.equal(ready.decoded(name), original[name]) for name in "ab")


def test_gguf_counts_blocks_with_their_scales() -> None:
    pytest.importorskip("gguf")
    from peers.adapters import gguf_

    for name, bits in (("Q8_0", 8.5), ("Q4_0", 4.5), ("Q5_1", 6.0)):
        variant = catalogue.Variant(name, name, {"type": name})
        assert gguf_.prepare(small(), variant, "cpu").stored_bytes == 64 * 12 * bits / 8


def test_a_weight_is_found_by_multiplying_the_identity() -> None:
    layer = small()["a"]
    assert torch.equal(base.multiplied(layer, 64, "cpu", at_once=48), layer.weight)
    assert base.left_as_they_are(small(), ["a", "b"]) == ["a", "b"]


# Results.


def test_the_table_has_figures_reasons_and_versions() -> None:
    found = made(
        int8={"quality": {"bits": 7.669, "kl": 0.0016019, "notes": ["coder rans"]}, "load": {"load_s": 0.1234}},
        lossless={"quality": {"bits": 10.62, "kl": 0}, "load": {"failed": "OutOfMemoryError: 7 | 8 <GB>"}},
    )
    report.add_row(found, "gptq", catalogue.Variant("int4", "GPTQ"))["skipped"] = "pip could not install it"
    report.add_row(found, "hqq", catalogue.Variant("x", "HQQ x"))["skipped"] = report.NEEDS_GPU
    text = report.table(found)
    lines = text.splitlines()
    assert lines[0] == "| | bits/weight | KL, weights | load, s |"
    assert "| wcodec int8 (1) | 7.67 | 0.00160 | 0.123 |" in lines
    assert "| wcodec lossless | 10.62 | 0 | no (2) |" in lines
    assert "| GPTQ | skipped (3) | | |" in lines
    assert "(2) OutOfMemoryError: 7 / 8 (GB)  " in lines and "(3) pip could not install it  " in lines
    assert "Rows that need a GPU are not here: HQQ x." in lines and "Versions: wcodec 9.9" in text
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_runs_are_merged_and_what_was_measured_stays() -> None:
    one = made(int8={"quality": {"bits": 7.7}, "load": {"failed": "time"}})
    other = made(int8={"quality": {"failed": "crash"}, "load": {"load_s": 1.0}}, lossless={"quality": {"bits": 10.6}})
    merged = report.merge([one, other])
    assert merged["rows"]["wcodec/int8"]["sections"] == {"quality": {"bits": 7.7}, "load": {"load_s": 1.0}}
    assert "wcodec/lossless" in merged["rows"] and "wcodec/lossless" not in one["rows"]
    other["settings"]["shapes"] = "tinyllama"
    with pytest.raises(report.ReportError, match="shapes embedded and tinyllama"):
        report.merge([one, other])


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, said in (("{", "is no JSON"), ('{"schema": 0}', "is no report"), ("[]", "is no report")):
        path.write_text(text)
        with pytest.raises(report.ReportError, match=said):
            report.read(path)


def test_table_and_chart_are_made_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    report.write(made(int8={"quality": {"bits": 7.7, "kl": 0.001}}), one)
    report.write(
        made(**{"4.0": {"quality": {"bits": 4.0, "kl": 0.1}}, "lossless": {"quality": {"bits": 10.6, "kl": 0}}}), other
    )
    merged = tmp_path / "all.json"
    assert command.main(["--from", str(one), str(other), "--json", str(merged)]) == 0
    assert "| wcodec int8 | 7.70 | 0.00100 |" in capsys.readouterr().out
    assert set(report.read(merged)["rows"]) == {"wcodec/int8", "wcodec/4.0", "wcodec/lossless"}
    assert (tmp_path / "all.md").exists() and (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_one_row_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--device", "cpu", "--only", "wcodec,nvcomp", "--rows", "4.0-plain,int8-host", "--sections", "quality",
        "--text-tokens", "300", "--environments", str(tmp_path), "--json", str(tmp_path / "cpu.json"),
    ]  # fmt: skip
    assert command.main(arguments) == 0
    found = json.loads((tmp_path / "cpu.json").read_text())
    values = found["rows"]["wcodec/4.0-plain"]["sections"]["quality"]
    assert values["bits"] == pytest.approx(4.0, rel=0.005) and 0.01 < values["kl"] < 1
    assert values["weights"] == 2_359_296 and values["stored_bytes"] == values["bits"] * values["weights"] / 8
    assert found["rows"]["wcodec/int8-host"]["skipped"] == report.NEEDS_GPU
    assert found["peers"]["wcodec"]["versions"]["torch"] and found["peers"]["nvcomp"]["reason"] == report.NEEDS_GPU
    assert "| wcodec 4.0 bits, no trellis (1) | 4.00 |" in capsys.readouterr().out
    # What is there is not measured again.
    assert command.main([*arguments, "--resume"]) == 0
    assert "wcodec: 4.0-plain" not in capsys.readouterr().err


# Decoding alone.


def benchmark(tmp_path: Path, said: str) -> str:
    """In the place of the benchmark in Rust: writes one row for each case that it is asked for."""
    script = tmp_path / "bench"
    row = {"what": "nvCOMP ANS 64K", "unit": "us", "value": 50.0, "spread": 0.0, "more": {"bits_per_weight": 6.71}}
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nrow = {row!r}\n"
        "row['case'] = sys.argv[sys.argv.index('--only') + 1]\n"
        f"print({said!r})\njson.dump({{'device': 'x', 'results': [row]}}, open(os.environ['WCODEC_BENCH_OUT'], 'w'))\n"
    )
    script.chmod(0o755)
    return str(script)


def test_rows_of_decoding_are_taken_over(tmp_path: Path) -> None:
    found = decoding.run(tmp_path / "out", benchmark(tmp_path, "nvCOMP 6.0.0"), True, 60)
    assert found["nvcomp"] == "6.0.0" and found["reason"] is None
    assert [row["case"] for row in found["rows"]] == list(decoding.CASES)
    report_of_it = made()
    report_of_it["decoding"] = found
    assert "| TinyLlama block | nvCOMP ANS 64K | 6.71 | 50.0 us |" in report.table(report_of_it)
    found = decoding.run(tmp_path / "out", benchmark(tmp_path, "without nvCOMP: not found"), True, 60)
    assert found["nvcomp"] is None and found["reason"] == "without nvCOMP: not found"


def test_a_benchmark_of_decoding_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(environments.Unavailable, match="No such file"):
        decoding.run(tmp_path, str(tmp_path / "missing"), True, 60)
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'libcuda was not found' >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(environments.Unavailable, match="libcuda was not found"):
        decoding.run(tmp_path, str(failing), True, 60)
