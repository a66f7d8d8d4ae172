"""The command for people: widths and colours of terminals, what was meant, options without effect, paths that are not
there, completions and the manual. None of it needs torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import wcodec
from command import Cli
from wcodec._cli.parser import build_parser
from wcodec._cli.parsing import commands, options
from wcodec._core import paths, terminal

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers with long names, and one that is wide on a screen."""
    path = tmp_path_factory.mktemp("terminal") / "layers.wcodec"
    rng = np.random.default_rng(5)
    tensors = {f"model.layers.{i}.self_attn.{p}_proj.weight": rng.standard_normal((32, 64)).astype(np.float32)
               for i in range(11) for p in "qk"}  # fmt: skip
    wcodec.save_file({**tensors, "層" * 30: np.ones((2, 2), np.float32)}, path)
    return path


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_tables_fit(columns: int, file: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in (["inspect", file, "--all"], ["inspect", file], ["compare", file, file, "--all"]):
        status, out, _ = run(*arguments)
        assert status == 0
        for line in out.splitlines():
            # Words are not cut, however narrow it is.
            assert terminal.width(line) <= columns or " " not in line.strip(), line
    left_out = "not shown for want of room" in " ".join(out.split())
    assert left_out == (columns <= 80)


def test_sums_by_role_come_first(file: Path, run: Cli) -> None:
    out = run("inspect", file, "--all")[1].splitlines()
    assert out[0].split()[:2] == ["role", "tensors"]
    found = next(line for line in out if line.startswith("model.layers.*.self_attn.q_proj.weight"))
    assert found.split()[1] == "11"
    at = out.index("")
    assert out[at + 1].split()[:2] == ["tensor", "shape"] and "layers.2." in out[at + 6]
    summary = run("inspect", file, "--summary")[1].splitlines()
    assert summary[:at] == out[:at] and not any("layers.2." in line for line in summary)


def test_colors(file: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("inspect", file)[1]
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = run("inspect", file)[1]
    assert "\x1b[1mrole\x1b[0m" in colored and ESCAPES.sub("", colored) == plain
    assert "\x1b[32m" in run("verify", file)[1] and "\x1b[1;31m" in run("inspect", "no/such")[2]
    monkeypatch.setenv("NO_COLOR", "1")
    assert run("inspect", file)[1] == plain


def test_what_loses_most_comes_first(tmp_path: Path, file: Path, model: Path, run: Cli) -> None:
    """By the errors that the file states, which are shown then, in both programs; int8 states none."""
    rate = tmp_path / "rate.wcodec"
    assert run("encode", model, "-o", rate, "--bits", "3", "--quiet")[0] == 0
    table = run("inspect", rate, "--sort", "error")[1].split("\n\n")[1].splitlines()
    assert table[0].split()[-1] == "error"
    errors = [line.split()[-1] for line in table[1:]]
    known = [float(error) for error in errors if error != "-"]
    five = run("inspect", rate, "--sort", "error", "--top", "5")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in five[1:]] == [line.split()[0] for line in table[1:6]]
    found = json.loads(run("inspect", rate, "--sort", "error", "--top", "5", "--json")[1])["tensors"]
    assert [tensor["name"] for tensor in found] == [line.split()[0] for line in five[1:]]
    assert len(known) == 30 and known == sorted(known, reverse=True) and set(errors[len(known) :]) == {"-"}
    inspector = subprocess.run(
        [sys.executable, "-m", "wcodec._tui", str(rate), "--plain", "--sort", "error"],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout.splitlines()  # fmt: skip
    assert [line.split()[0] for line in table[1:]] == [line.split()[0] for line in inspector[1 : len(table)]]
    assert "error" not in run("inspect", file, "--sort", "error")[1].split("\n\n")[1].splitlines()[0]


def test_filter_and_sort_are_those_of_the_inspector(file: Path, run: Cli) -> None:
    def names(*arguments: str) -> list[str]:
        lines = run("inspect", file, *arguments)[1].splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith("tensor"))
        return [line.split()[0] for line in lines[begin + 1 : lines.index("", begin)]]

    assert names("--filter", "LAYERS.1.") == [f"model.layers.1.self_attn.{p}_proj.weight" for p in "kq"]
    assert len(names("--filter", r"layers\.(1|2)\.")) == 4
    inspector = subprocess.run(
        [sys.executable, "-m", "wcodec._tui", str(file), "--plain", "--filter", "q_proj", "--sort", "ratio"],
        capture_output=True, encoding="utf-8", check=True,
    ).stdout.splitlines()  # fmt: skip
    assert names("--filter", "q_proj", "--sort", "ratio") == [line.split()[0] for line in inspector[1:12]]


def test_what_was_meant(file: Path, run: Cli) -> None:
    for arguments, meant in (
        (["inpsect", file], "did you mean inspect?"),
        (["compress", file], "did you mean encode?"),
        (["run", file], "did you mean generate?"),
        (["inspect", file, "--fitler", "x"], "did you mean --filter?"),
        (["inspect", file, "--against", "x"], "--against is an option of wcodec verify"),
        (["verify", file, "--threads"], "expected one argument"),
        (["generate", file, "--promt", "x"], "did you mean --prompt?"),
        (["roundtrip", file, "--coder", "rnas"], "did you mean rans?"),
        (["inspect", file, "--plot", "x.nothing"], "end the name in .png"),
        (["inspect", file, "--plot", "no/such/x.png"], "no such folder"),
        (["inspect", file, "--sort", "storde"], "did you mean stored?"),
        (["inspect", file, "--filter", "*q_proj*"], "regular expression: q_proj"),
        (["inspect", file, "--filter", "model.layers.3.self_attn.q_prj.weight"], "3.self_attn.q_proj.weight'?"),
        (["inspect", file.with_name("layer.wcodec")], "cannot open the file"),
        (["encode", file, "-o", "x.wcodec"], "wcodec decode FILE"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, "") and meant in err, err


def test_patterns_that_match_nothing(run: Cli, model: Path, tmp_path: Path) -> None:
    for pattern, meant in (("lm_heat", "lm_head.weight"), ("*embed_token", "model.embed_tokens.weight")):
        status, _, err = run("encode", model, "-o", tmp_path / "x.wcodec", "--exclude", pattern)
        assert status == 2 and f"did you mean '{meant}'?" in err


def test_nothing_asked_for(run: Cli) -> None:
    status, out, err = run()
    assert (status, out) == (2, "") and err.startswith("Smaller LLMs") and "Start here:" in err
    assert run("--help")[1] == err


@pytest.mark.parametrize(
    "line",
    [
        "encode M -o x --level 9", "encode M -o x --coder zstd --layout byte", "encode M -o x --coder raw --tile 64",
        "encode M -o x --bits-per-tensor", "encode M -o x --scheme lossless --scale row",
        "encode M -o x --scheme raw --coder rans", "encode M -o x --coder zstd --table-bits 11",
        "roundtrip M --coder rans --level 9", "roundtrip M --scheme lossless --scale row",
        "roundtrip M --scale row --block 64", "inspect M --by bits", "inspect M --summary --json",
        "inspect M --summary --sort ratio", "inspect M --summary --top 3", "generate M --prompt x --residency host",
        "bench M --vram-budget 1GB --residency auto", "calibrate M -o x --steps-only --memory 1GB",
        "plan M --budget 1GB --windows 3",
    ],
)  # fmt: skip
def test_options_without_effect(line: str, run: Cli, model: Path) -> None:
    status, out, err = run(*(str(model) if word == "M" else word for word in line.split()))
    assert status == 2 and "has no effect" in err and "leave it out" in err
    assert "has no effect" in json.loads(out)["error"]["message"] if "--json" in line else out == ""


def test_options_with_an_effect_are_taken(run: Cli, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.wcodec"
    for words in ("--rule *norm*=int8,zstd --level 9 --include *down_proj*", "--coder zstd --level 9 --scale tensor"):
        assert run("encode", model, "-o", path, "--overwrite", "-q", *words.split()) == (0, "", "")


def test_paths_are_looked_at_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    code = (
        "import sys; from wcodec.cli import main\n"
        "for line in ('generate modle --prompt x', 'generate ./none --prompt x', 'eval model --text none.txt', "
        "'bench model --baseline a/b/c', 'frontier none --text x', 'plan none --budget 1GB', 'calibrate none -o x'):\n"
        "    assert main(line.split()) == 2\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert len(told) == 7 and all("there is no such" in line for line in told) and "did you mean 'model'?" in told[0]


def test_names_that_may_be_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    paths.check("owner/name", hub=True)
    paths.check("gpt2", hub=True)
    for name in ("models/name", "x.wcodec", "a/b/c", "/none", "~/none", "none/"):
        with pytest.raises(wcodec.FileError):
            paths.check(name, hub=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(wcodec.FileError):
        paths.check("owner/name", hub=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_everything(shell: str, run: Cli) -> None:
    pytest.importorskip("shtab")
    status, out, _ = run("--completions", shell)
    assert status == 0
    for name, sub in commands(build_parser()).items():
        assert name in out
        for option in options(sub):
            assert option.removeprefix("--") in out, f"{option} of {name}"


def test_completions_of_bash_work(run: Cli, tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    script = tmp_path / "wcodec.bash"
    script.write_text(run("--completions", "bash")[1])
    code = f'source {script}; COMP_WORDS=(wcodec inspect --su); COMP_CWORD=2; _shtab_wcodec; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert "--summary" in done.stdout, done.stderr


def test_manual_names_everything(run: Cli) -> None:
    pytest.importorskip("argparse_manpage")
    status, out, _ = run("--man")
    assert status == 0 and out.startswith(".TH WCODEC")
    for name, sub in commands(build_parser()).items():
        for option in set(options(sub)) - {"--help"}:
            assert option.replace("-", r"\-") in out, f"{option} of {name}"


def test_without_these_packages(run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, arguments in (("shtab", ["--completions", "bash"]), ("argparse_manpage.manpage", ["--man"])):
        monkeypatch.setitem(sys.modules, name, None)
        status, out, err = run(*arguments)
        assert (status, out) == (2, "") and "pip install" in err
