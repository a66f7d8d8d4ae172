"""pyext/benches/peers: what peers cost, what is counted, and that no peer can take the others down."""

from __future__ import annotations

import doctest
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "pyext/benches"))

from peers import catalogue, command, decoding, environments, events, plan, processes, report, runner, turns, worker  # noqa: E402
from peers.adapters import base  # noqa: E402

SETTINGS: dict[str, Any] = {
    "device": "cpu", "shapes": "embedded", "layers": None, "tokens": 4, "repeats": 1, "text_tokens": 64,
    "prefill_tokens": 8, "batches": [1], "sections": ["quality", "load", "eager"], "model": "embedded", "windows": 16,
}  # fmt: skip


def made(**rows: dict[str, Any]) -> report.Json:
    """A report with these sections of these rows of wcodec."""
    out = report.empty(dict(SETTINGS), {"cpu": "a CPU", "cores": 2}, "python pyext/benches/peers", "2026-01-01")
    out["peers"]["wcodec"] = {"title": "wcodec", "versions": {"wcodec": "9.9"}}
    for name, sections in rows.items():
        variant = catalogue.Variant(name, f"wcodec {name}")
        report.add_row(out, "wcodec", variant)["sections"].update(sections)
    return out


@pytest.mark.parametrize("module", [catalogue, plan, report, runner, turns], ids=lambda m: m.__name__)
def test_examples_in_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_figures_are_taken_while_no_other_process_does_anything(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    lock, order = tmp_path / "turns", tmp_path / "order"
    script = (
        "import sys, time; from pathlib import Path; from peers.turns import Turns\n"
        "name, order = sys.argv[1], Path(sys.argv[2])\n"
        "def say(what):\n"
        "    with order.open('a') as out: out.write(f'{name} {what}\\n')\n"
        "with Turns(sys.argv[3]) as turns:\n"
        "    say('begins')\n"
        "    for time_ in range(2):\n"
        "        slow = name == 'slow' and not time_\n"
        "        while slow and order.read_text().count('is prepared') < 2: time.sleep(0.01)\n"
        "        say('is prepared')\n"
        "        with turns.alone():\n"
        "            say('measures'); time.sleep(0.2); say('has measured')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "pyext/benches")}
    started = []
    for name in ("slow", "quick", "other"):
        arguments = [sys.executable, "-c", script, name, str(order), str(lock)]
        started.append(subprocess.Popen(arguments, env=environment))
        while not (order.exists() and f"{name} begins" in order.read_text()):
            assert started[-1].poll() is None
            time.sleep(0.01)
    assert [process.wait(60) for process in started] == [0, 0, 0]
    lines = order.read_text().splitlines()
    # They prepare at once, and whoever measures is not disturbed; and nobody prepares what comes next before all who
    # were ready have measured.
    assert sorted(line.split(" ", 1)[1] for line in lines[:6]) == ["begins"] * 3 + ["is prepared"] * 3
    assert [line.split(" ", 1)[1] for line in lines[6:12]] == ["measures", "has measured"] * 3
    assert len(lines) == 21
    for line, after in zip(lines, lines[1:], strict=False):
        if line.endswith(" measures"):
            assert after == line.replace("measures", "has measured")


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "hqqq"], "did you mean hqq?"),
        (["--only", "bf16,xyz"], "there is no peer 'xyz' (there are bf16"),
        (["--sections", "speed"], "there is no section 'speed' (choose from quality"),
        (["--only", "gguf", "--rows", "Q9_K"], "there is no row 'Q9_K' of gguf (there are Q8_0"),
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
    # docs/peers.md names these, and nothing else, as ranges.
    needed = [r for peer in catalogue.PEERS.values() for r in (*peer.requirements, *peer.gpu_requirements)]
    assert [r for r in needed if "==" not in r] == ["accelerate>=1.0", "cupy-cuda{cuda}x>=13"]


def test_paths_of_the_machine_are_not_reported() -> None:
    given = ["--device", "cpu", "--json", "/somewhere/x.json", "--find-links=/elsewhere", "--quick"]
    assert command.without_paths(given) == ["--device", "cpu", "--quick"]


# Processes.


def process(tmp_path: Path, body: str, todo: runner.Todo, **limits: Any) -> tuple[list[events.Event], str | None]:
    """Events that a process in the place of a peer's tells, and the verdict."""
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
    """Reasons why sections were not measured, or nothing."""
    return {(e["row"], e["section"]): e.get("reason", "") for e in told if e["what"] in ("measured", "failed")}


def test_a_peer_that_crashes_is_a_reason_and_the_others_go_on(tmp_path: Path) -> None:
    body = "print('about to go'); sys.stdout.flush(); section == 'load' and os.kill(os.getpid(), signal.SIGSEGV)"
    told, verdict = process(tmp_path, body, {"int8": ["quality", "load", "eager/1"], "nf4": ["quality"]})
    found = outcome(told)
    assert verdict is None and len(found) == 4
    assert found[("int8", "load")] == "the process died of SIGSEGV (about to go)"
    assert [why for key, why in found.items() if key != ("int8", "load")] == ["", "", ""]


def test_a_peer_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    told, verdict = process(
        tmp_path, "row == 'slow' and time.sleep(60)", {"slow": ["load", "eager/1"], "quick": ["load"]}, row=2.5
    )
    assert verdict is None
    late = "stopped after 2.5 s, the limit of a row"
    assert outcome(told) == {("slow", "load"): late, ("slow", "eager/1"): late, ("quick", "load"): ""}


def test_what_a_row_waits_for_others_is_no_time_of_its_own(tmp_path: Path) -> None:
    body = "tell('waits'); time.sleep(3 if row == 'polite' else 0); tell('goes on'); row == 'slow' and time.sleep(60)"
    told, verdict = process(tmp_path, body, {"polite": ["load"], "slow": ["load"]}, row=1.5)
    late = "stopped after 1.5 s, the limit of a row"
    assert verdict is None and outcome(told) == {("polite", "load"): "", ("slow", "load"): late}


def test_a_row_has_its_limit_over_all_of_its_processes(tmp_path: Path) -> None:
    # Each section takes most of a second, and needs a process anew.
    body = "time.sleep(0.7); tell('failed', row=row, section=section, reason='x'); os._exit(75)"
    told, verdict = process(tmp_path, body, {"int8": [f"eager/{n}" for n in range(5)]}, row=1.6)
    whys = list(outcome(told).values())
    assert verdict is None and len(whys) == 5
    assert 1 <= whys.count("x") <= 2 and set(whys[2:]) == {"stopped after 1.6 s, the limit of a row"}


def test_bf16_beside_a_peer_has_the_limit_of_a_row(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, sys, time\nwith open(json.load(open(sys.argv[1]))['events'], 'w') as file:\n"
        "    print(json.dumps({'what': 'reference begins'}), file=file, flush=True)\n    time.sleep(60)\n"
    )
    told: list[events.Event] = []
    job = runner.Job("wcodec", {}, {"int8": ["eager/1"]}, tmp_path / "logs", True)
    assert runner.Runner([sys.executable, str(script)], job, runner.Limits(0.4), told.append).run() is None
    late = "stopped after 0.4 s, the limit of a row, in the bfloat16 beside it"
    assert outcome(told) == {("int8", "eager/1"): late} and runner.by_limit(late)


@pytest.mark.parametrize("how", ["os._exit(0)", "sys.exit()"])
def test_a_process_that_ends_well_in_mid_section_is_not_started_for_ever(tmp_path: Path, how: str) -> None:
    told, verdict = process(tmp_path, f"section == 'load' and {how}", {"int8": ["quality", "load", "eager/1"]})
    assert verdict is None
    assert outcome(told) == {
        ("int8", "quality"): "", ("int8", "load"): "the process ended without a result", ("int8", "eager/1"): "",
    }  # fmt: skip
    assert len(list((tmp_path / "logs").glob("*.log"))) == 2


def test_a_process_that_ends_well_with_nothing_is_one_reason(tmp_path: Path) -> None:
    job = runner.Job("wcodec", {}, {"int8": ["quality"]}, tmp_path)
    found = runner.Runner([sys.executable, "-c", "pass"], job, runner.Limits(60), lambda event: None).run()
    assert found == "the process ended without a result" and len(list(tmp_path.glob("*.log"))) == 1


def test_a_process_that_did_something_and_then_nothing_leaves_no_section_without_a_reason(tmp_path: Path) -> None:
    # The first one ends between two sections, the second one before it says what it begins.
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, sys\njob = json.load(open(sys.argv[1]))\nfile = open(job['events'], 'w')\n"
        "if job['events'].endswith('-0.events'):\n"
        "    print(json.dumps({'what': 'measured', 'row': 'int8', 'section': 'quality', 'values': {}}), file=file)\n"
    )
    told: list[events.Event] = []
    job = runner.Job("wcodec", {}, {"int8": ["quality", "load", "eager/1"]}, tmp_path / "logs")
    assert runner.Runner([sys.executable, str(script)], job, runner.Limits(60), told.append).run() is None
    without = "the process ended without a result"
    assert list(outcome(told).values()) == ["", without, without]


# The sections of a row, in the process of a peer.


class Told(list[tuple[str, str, Any]]):
    def __call__(self, what: str, **values: Any) -> None:
        self.append((what, values.get("section", ""), values.get("reason") or values.get("values")))


def raises(**errors: BaseException) -> Any:
    def run(section: str) -> dict[str, Any]:
        if section in errors:
            raise errors[section]
        return {"bits": 1}

    return run


def test_a_model_that_cannot_be_made_fails_what_needs_it() -> None:
    for error in (base.NotThere("only its encoder runs"), RuntimeError("x")):
        told = Told()
        assert worker.measure(told, "int8", ["quality", "load", "eager"], raises(load=error), lambda: True)
        why = "only its encoder runs" if isinstance(error, base.NotThere) else "RuntimeError: x"
        assert told == [
            ("begin", "quality", None), ("measured", "quality", {"bits": 1}), ("begin", "load", None),
            ("failed", "load", why), ("failed", "eager", why), ("done", "", None),
        ]  # fmt: skip


def test_a_library_that_calls_exit_fails_its_section() -> None:
    told = Told()
    assert worker.measure(told, "int8", ["quality", "load"], raises(quality=SystemExit(0)), lambda: True)
    assert ("failed", "quality", "SystemExit: 0") in told and ("measured", "load", {"bits": 1}) in told


def test_a_gpu_that_does_not_answer_ends_the_process() -> None:
    told = Told()
    assert not worker.measure(told, "int8", ["quality", "load"], raises(quality=ValueError("x")), lambda: False)
    assert told[-1] == ("failed", "quality", "ValueError: x")


def test_a_process_may_ask_for_another_one(tmp_path: Path) -> None:
    body = f"section == 'load' and (tell('failed', row=row, section=section, reason='x'), os._exit({worker.RESTART}))"
    told, verdict = process(tmp_path, body, {"int8": ["quality", "load", "eager/1"], "nf4": ["quality"]})
    assert verdict is None
    assert list(outcome(told).values()) == ["", "x", "", ""]
    assert len(list((tmp_path / "logs").glob("*.log"))) == 2


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_wcodec_has_as_many_threads_as_torch(tmp_path: Path) -> None:
    # Only torch's number is needed here, and importing torch takes seconds.
    code = (
        f"import os, sys, types; sys.path.append({str(REPOSITORY / 'pyext/benches')!r})\n"
        "import wcodec, numpy; from peers import worker\n"
        "sys.modules['torch'] = types.SimpleNamespace(get_num_threads=lambda: 3)\n"
        "worker.as_many_threads(); told = worker.machine('cpu'); del sys.modules['torch']\n"
        f"wcodec.compress({{'a': numpy.ones((64, 256), 'f')}}, {str(tmp_path / 'x.wcodec')!r}, progress=False)\n"
        "names = [open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')]\n"
        "print(told, sum(n.startswith('wcodec-') for n in names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "RAYON_NUM_THREADS": "7"},
    )  # fmt: skip
    assert done.stdout.strip() == "{'torch_threads': 3, 'wcodec_threads': 3} 3", done.stderr


# Leftovers of processes.


def leaves_one(tmp_path: Path) -> tuple[Path, Path]:
    """A command that starts another one and waits, and where it says which."""
    script, number = tmp_path / "starts", tmp_path / "number"
    script.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {number}.new; mv {number}.new {number}\nwait\n")
    script.chmod(0o755)
    return script, number


def is_gone(number: Path) -> bool:
    """Whether that process ends in a few seconds; one that nobody has waited for yet has ended."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{int(number.read_text())}/stat").read_text()
        except FileNotFoundError:
            return True
        if state.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_nothing_is_left_of_what_took_too_long(tmp_path: Path) -> None:
    script, number = leaves_one(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run([str(script)], 1.0)
    assert is_gone(number)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_nothing_is_left_after_ctrl_c(tmp_path: Path) -> None:
    script, number = leaves_one(tmp_path)

    def stop() -> None:
        while not number.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        processes.run([str(script)], 60)
    thread.join()
    assert is_gone(number)


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


# Counts.


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


def changed(where: str, values: dict[str, Any]) -> report.Json:
    """A report of which something is different."""
    out = made(int8={"quality": {"bits": 7.7}})
    out["peers"]["hqq"] = {"title": "HQQ", "versions": {"hqq": "1", "torch": "2", "transformers": "5", "numpy": "2"}}
    out["machine"].update({"torch_threads": 1, "wcodec_threads": 1, "gpu": "one"})
    (out["peers"]["hqq"]["versions"] if where == "versions" else out[where]).update(values)
    return out


@pytest.mark.parametrize(
    ("where", "values", "said"),
    [
        ("settings", {"shapes": "tinyllama"}, "shapes embedded and tinyllama"),
        ("settings", {"repeats": 5}, "repeats 1 and 5"),
        ("machine", {"cpu": "another"}, "CPU a CPU and another"),
        ("machine", {"cores": 4}, "cores 2 and 4"),
        ("machine", {"torch_threads": 2}, "threads of torch 1 and 2"),
        ("machine", {"wcodec_threads": 2}, "threads of wcodec 1 and 2"),
        ("versions", {"torch": "3"}, "torch 2 and 3"),
        ("versions", {"transformers": "6"}, "transformers 5 and 6"),
        ("versions", {"hqq": "1.1"}, "hqq 1 and 1.1"),
        ("versions", {"numpy": "1"}, "numpy of hqq 2 and 1"),
    ],
)
def test_runs_that_do_not_belong_together_are_not_merged(where: str, values: dict[str, Any], said: str) -> None:
    one, other = changed(where, {}), changed(where, values)
    with pytest.raises(report.ReportError) as error:
        report.merge([one, other])
    assert str(error.value) == f"these runs do not belong side by side: {said}"
    if where == "versions" and not {"torch", "transformers"} & set(values):
        # Packages of a peer are nothing to other peers.
        del other["peers"]["hqq"]
        report.merge([one, other])


def test_on_a_gpu_its_name_is_compared_and_not_that_of_the_cpu() -> None:
    one, other = changed("settings", {"device": "cuda"}), changed("settings", {"device": "cuda"})
    other["machine"].update({"cpu": "another", "torch_threads": 9})
    report.merge([one, other])
    other["machine"]["gpu"] = "another"
    with pytest.raises(report.ReportError, match="side by side: GPU one and another"):
        report.merge([one, other])


def test_captured_steps_are_compared_with_the_row_of_bf16() -> None:
    found = made(int8={"captured/8": {"tokens_per_s": 130.0}, "compiled/8": {"tokens_per_s": 50.0}})
    found["settings"].update({"device": "cuda", "batches": [8], "shapes": "tinyllama"})
    assert "| wcodec int8 | 130 | 50.0 |" in report.table(found).splitlines()
    bf16 = catalogue.PEERS["bf16"].variants[0]
    report.add_row(found, "bf16", bf16)["sections"]["captured/8"] = {"tokens_per_s": 100.0}
    lines = report.table(found).splitlines()
    assert "| bf16 | 100 |  |" in lines and "| wcodec int8 | 130 (1.30) | 50.0 |" in lines


def test_threads_of_a_cpu_are_told() -> None:
    found = made(int8={"quality": {"bits": 7.7}})
    found["machine"]["torch_threads"] = 1
    assert "threads: torch 1, wcodec one for each core" in report.table(found)
    found["machine"]["wcodec_threads"] = 1
    assert "threads: torch 1, wcodec 1." in report.table(found)


def test_what_had_no_time_is_measured_by_a_run_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    late, error = "stopped after 75 s, the limit of a row", "RuntimeError: no kernel"
    found = made(
        int8={"quality": {"bits": 7.7}, "load": {"failed": late}, "eager/1": {"failed": error}},
        lossless={"quality": {"failed": runner.NOT_RUN}, "load": {"failed": error}, "eager/1": {"failed": error}},
    )
    given = ["--device", "cpu", "--tokens", "4", "--repeats", "1", "--text-tokens", "64", "--prefill", "8"]
    given += ["--environments", str(tmp_path), "--json", str(path), "--rows", "int8,lossless", "--resume"]
    given += ["--model", "embedded", "--sections", "quality,load,eager"]
    args = command.parser().parse_args(given)
    args.given = given
    found["machine"] = command.machine("cpu")
    report.write(found, path)
    run = command.Run(args, ["wcodec"], "cpu", None)
    assert run.todo("wcodec") == {"int8": ["load"], "lossless": ["quality"]}

    # Events of a peer's process have to fit what was there.
    run.event("wcodec", {"what": "start", "versions": {"wcodec": "9.9"}})
    with pytest.raises(report.ReportError, match=r"wcodec 9\.9 and 10"):
        run.event("wcodec", {"what": "start", "versions": {"wcodec": "10"}})
    run.before = {**found, "machine": {**found["machine"], "torch_threads": 1}}
    with pytest.raises(report.ReportError, match="threads of wcodec one for each core and 1"):
        run.event("wcodec", {"what": "machine", "torch_threads": 1, "wcodec_threads": 1})

    # And this interpreter's packages before anything is started.
    found["peers"]["wcodec"]["versions"]["torch"] = "1.0"
    report.write(found, path)
    with pytest.raises(report.ReportError, match=r"torch 1\.0 and "):
        command.Run(args, ["wcodec"], "cpu", None)


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


def test_a_chart_of_a_gpu_marks_what_is_eager(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from peers import chart

    found = made(
        int8={"load": {"peak_bytes": 5e8}, "captured/1": {"tokens_per_s": 300.0}, "eager/1": {"tokens_per_s": 9.0}},
        **{
            "int8-host": {
                "load": {"peak_bytes": 2e8},
                "eager/1": {"tokens_per_s": 30.0, "bf16_tokens_per_s": 40.0},
                "captured/1": {"failed": "no graph"},
            }
        },
    )
    found["settings"]["device"] = "cuda"
    bf16 = report.add_row(found, "bf16", catalogue.PEERS["bf16"].variants[0])["sections"]
    bf16.update({"load": {"peak_bytes": 1e9}, "captured/1": {"tokens_per_s": 200.0}, "eager/1": {"tokens_per_s": 50.0}})
    points, across, up = chart.speeds(found)
    assert [(p.name, p.x, p.y, p.hollow) for p in points] == [
        ("bf16", 1.0, 1.0, False), ("wcodec int8", 0.5, 1.5, False), ("wcodec int8-host", 0.2, 0.75, True),
    ]  # fmt: skip
    assert across == "peak memory, of bf16's" and "a captured decode step" in up
    chart.draw(found, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_one_row_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--device", "cpu", "--only", "wcodec,nvcomp", "--rows", "4.0-plain,int8-host", "--sections", "quality",
        "--model", "embedded", "--text-tokens", "300", "--environments", str(tmp_path),
        "--json", str(tmp_path / "cpu.json"),
    ]  # fmt: skip
    assert command.main(arguments) == 0
    found = json.loads((tmp_path / "cpu.json").read_text())
    values = found["rows"]["wcodec/4.0-plain"]["sections"]["quality"]
    assert values["bits"] == pytest.approx(4.0, rel=0.005) and 0.01 < values["kl"] < 1
    assert values["weights"] == 2_359_296 and values["stored_bytes"] == values["bits"] * values["weights"] / 8
    assert found["rows"]["wcodec/int8-host"]["skipped"] == report.NEEDS_GPU
    assert found["peers"]["wcodec"]["versions"]["torch"] and found["peers"]["nvcomp"]["reason"] == report.NEEDS_GPU
    assert "| wcodec 4.0 bits, no trellis (1) | 4.00 |" in capsys.readouterr().out
    # Results that are there are not measured again.
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


def test_decoding_has_one_limit_for_all_of_it(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    # The first case takes one second of the second and a half.
    fast = benchmark(tmp_path, "nvCOMP 6.0.0")
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {fast} "$@"\n')
    slow.chmod(0o755)
    begin = time.monotonic()
    with pytest.raises(environments.Unavailable, match="stopped after 1.5 s, the limit of decoding alone"):
        decoding.run(tmp_path / "out", str(slow), True, 1.5)
    assert 1.4 < time.monotonic() - begin < 2.4


def test_a_benchmark_of_decoding_is_found_from_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark(tmp_path, "nvCOMP 6.0.0")
    monkeypatch.chdir(tmp_path)
    assert len(decoding.run(tmp_path / "out", "bench", True, 60)["rows"]) == 2


def test_no_environment_is_made_when_there_is_no_time_for_it(tmp_path: Path) -> None:
    peer = catalogue.Peer("x", "X", (), ("no-such-package-of-wcodec==1.0",))
    with pytest.raises(environments.Unavailable, match="there were only 0 s for it"):
        environments.prepare(peer, None, environments.Options(tmp_path), 0.0)
