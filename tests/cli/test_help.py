"""Help by group, errors before anything else, words of other tools, outputs that are proposed, errors as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import wcodec
from command import Cli
from wcodec._cli import failure, helping, hints
from wcodec._cli.parser import build_parser
from wcodec._cli.parsing import commands, options
from wcodec._core import terminal


def test_every_command_is_in_the_help_once(run: Cli) -> None:
    status, short, _ = run("help")
    assert status == 0 and run("--help")[1] == short
    everything = run("help", "--all")[1]
    assert run("--help", "--all")[1] == everything
    for name in commands(build_parser()):
        assert sum(line.startswith(f"  {name} ") for line in everything.splitlines()) == 1, name
    titles = [line for line in short.splitlines() if line in dict(helping.GROUPS)]
    assert titles == [title for title, _ in helping.GROUPS]
    assert "More: ranks, roundtrip" in short and "Exit status" in everything


@pytest.mark.parametrize("command", sorted(commands(build_parser())))
def test_help_of_a_command(command: str, run: Cli) -> None:
    short, everything = run("help", command)[1], run("help", command, "--all")[1]
    assert run("help", command)[0] == 0 and short.startswith(everything.splitlines()[0])
    sub = commands(build_parser())[command]
    assert all(f"{option}" in everything for option in options(sub))
    hidden = [option for option in options(sub) if option not in short]
    if command in helping.SHORT:
        known = {action.dest for action in sub._actions}
        assert len(hidden) >= 3 or command in ("decode", "compare", "inspect", "serve")
        assert "--help --all" in short or not hidden
        # A name that no option has yet is one of another branch's; most are there.
        assert len(known & set(helping.SHORT[command])) >= 2
    else:
        assert not hidden
    if command != "tui":
        assert run(command, "--help")[1] == short and run(command, "--help", "--all")[1] == everything


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_fits(columns: int, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in (["help"], ["help", "--all"], ["help", "encode"], ["help", "generate", "--all"]):
        lines = run(*arguments)[1].splitlines()
        # Examples are to be copied, and stay whole.
        assert all(terminal.width(line) <= columns or line.startswith("  wcodec ") for line in lines), arguments


MISTAKES = [
    ("encode {model} -o x/ --force", "unrecognized argument '--force'", "use --overwrite to replace what is there"),
    ("decode x.wcodec -o y --device cuda", "unrecognized argument '--device'", "decode works on the CPU"),
    ("encode {model} -o x/ --quantize 4", "unrecognized argument '--quantize'", "use --bits N, such as --bits 4"),
    ("encode {model} --bits 16 -o x/", "'16' is not a number of bits from 1 to 8", "use --scheme lossless"),
    ("encode {model} --scheme nf4 -o x/", "'nf4' is none of int8, rate, lossless, raw", "--bits 4 is the 4-bit"),
    ("encode {model}", "no output was named", "doc-llama-3m-int8/"),
    ("encode {model} --bits 3.5", "no output was named", "doc-llama-3m-3.5bit/ --bits 3.5"),
    ("encode {model} x/ -o y/", "two outputs were named", "leave one of them out"),
    ("encode --model {model} -o x/", "unrecognized argument '--model'", "name SRC without an option"),
    ("compress {model} x/", "there is no command 'compress'", "did you mean encode? (wcodec encode {model} x/)"),
    ("run {model}", "there is no command 'run'", "did you mean generate?"),
    ("list x.wcodec", "there is no command 'list'", "did you mean inspect?"),
    ("generate {model}", "no prompt was given", "wcodec generate {model}"),
    ("generate {model} x -p y", "prompts come from one place", "give one of"),
    ("generate {model} two words", "unrecognized argument 'words'", "quote text that has spaces"),
    ("generate {model} x --temp 1x", "'1x' is not a number from 0 on", "such as 0.7"),
    ("generate {model} x --max-tokens 3", "unrecognized argument '--max-tokens'", "use --max-new-tokens"),
    ("inspect x.wcodec --sort sized", "'sized' is none of", None),
    ("inspect x.wcodec --against y", "unrecognized argument '--against'", "is an option of wcodec verify"),
    ("help encde", "there is no command 'encde'", "did you mean encode?"),
    ("verify", "missing: FILE", None),
]


@pytest.mark.parametrize(("line", "wrong", "tip"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_errors_come_first(line: str, wrong: str, tip: str | None, model: Path, run: Cli) -> None:
    status, out, err = run(*line.format(model=model).split())
    lines = err.splitlines()
    assert (status, out) == (2, "") and "usage" not in err.lower()
    assert lines[0].startswith(("error: ", "wcodec: error: ")) and wrong in lines[0]
    assert tip is None or tip.format(model=model) in err
    assert len(lines) == 1 or lines[-1].startswith("For more information, try 'wcodec ")


def test_no_guess_is_wild() -> None:
    """The similarity of two options is not that of the dashes before them."""
    known = options(commands(build_parser())["encode"])
    for word in ("--force", "--chat", "--seed", "--verbose", "--fast", "--table"):
        assert hints.like(word, known) is None, word
    for word, meant in (("--exlude", "--exclude"), ("--ovewrite", "--overwrite"), ("--shceme", "--scheme")):
        assert hints.like(word, known) == meant
    everything = {option for sub in commands(build_parser()).values() for option in options(sub)}
    for option, names in hints._OPTIONS.items():
        assert everything & {name.split()[0] for name in names}, option
    assert not set(hints.COMMANDS) & set(commands(build_parser()))


def test_bits_with_their_unit(model: Path, tmp_path: Path, run: Cli) -> None:
    for number, bits in enumerate(("4bit", "4-bit", "4")):
        assert run("encode", model, tmp_path / f"{number}.wcodec", "--bits", bits, "-q", "--threads", "1")[0] == 0
    assert len({(tmp_path / f"{n}.wcodec").read_bytes() for n in range(3)}) == 1


def test_the_output_may_stand_anywhere(model: Path, tmp_path: Path, run: Cli) -> None:
    for number, words in enumerate((["{s}", "{o}"], ["--scale", "tensor", "{s}", "{o}"], ["{s}", "--level", "3", "{o}"],
                                    ["{s}", "--coder", "zstd", "-q", "{o}"], ["{s}", "-o", "{o}"])):  # fmt: skip
        out = tmp_path / f"{number}.wcodec"
        zstd = ["--coder", "zstd"] if "--level" in words else []
        assert run("encode", *(w.format(s=model, o=out) for w in words), *zstd)[0] == 0
        assert out.exists()


def test_sort_by_size(model: Path, tmp_path: Path, run: Cli) -> None:
    path = tmp_path / "m.wcodec"
    run("encode", model, path, "-q")
    assert run("inspect", path, "--sort", "size")[1] == run("inspect", path, "--sort", "stored")[1]


def test_errors_as_json(model: Path, tmp_path: Path, run: Cli) -> None:
    status, out, err = run("verify", tmp_path / "none.wcodec", "--json")
    record = json.loads(out)
    assert status == 2 and err.startswith("wcodec: error: ") and record["command"] == "verify"
    assert record["error"]["kind"] == "FileMissingError" and record["error"]["status"] == 2
    assert record["error"]["file"].endswith("none.wcodec") and record["error"]["message"] in err
    status, out, _ = run("encode", model, "--json", "--force")
    record = json.loads(out)["error"]
    assert (status, record["kind"]) == (2, "UsageError") and record["tip"].startswith("use --overwrite")
    # A report that goes into a file leaves standard output alone.
    assert run("roundtrip", tmp_path / "none", "--json", tmp_path / "r.json")[1] == ""
    assert json.loads(run("roundtrip", tmp_path / "none", "--json")[1])["error"]


def test_advice_is_of_the_command(model: Path, tmp_path: Path, run: Cli) -> None:
    path = tmp_path / "m.wcodec"
    assert run("encode", model, path, "-q")[0] == 0
    assert run("encode", model, path)[2].endswith("(use --overwrite to replace it) [O103]\n")
    error = wcodec.OutputExistsError("out exists (pass overwrite=True, or --overwrite, to replace it)")
    assert failure.text_of(error) == "out exists (use --overwrite to replace it) [O103]"


def test_version_and_the_inspector(model: Path, tmp_path: Path, run: Cli) -> None:
    assert run("version") == (0, f"wcodec {wcodec.__version__}\n", "")
    path = tmp_path / "m.wcodec"
    run("encode", model, path, "-q")
    calls = [[sys.executable, "-m", name, *more] for name, more in (("wcodec", ["tui"]), ("wcodec._tui", []))]
    shown = [subprocess.run([*c, str(path), "--plain", "--filter", "q_proj"], capture_output=True, check=True).stdout
             for c in calls]  # fmt: skip
    assert shown[0] == shown[1] and b"q_proj" in shown[0]


def test_the_next_command(tmp_path: Path) -> None:
    from wcodec._cli.beginning import next_command, tensors_of

    assert next_command(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert str(next_command(f"{tmp_path}/")).startswith("wcodec generate ")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert next_command(str(tmp_path)) == f"wcodec chat {tmp_path}/"
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    assert next_command(str(tmp_path)) == f"wcodec inspect {tmp_path}/"
    assert tensors_of(tmp_path) is None and tensors_of(tmp_path / "none.safetensors") is None
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 8)
    assert tensors_of(tmp_path / "a.safetensors") == 0


def test_tensors_are_counted(model: Path) -> None:
    from wcodec._cli.beginning import tensors_of

    assert tensors_of(model) == 39 and tensors_of(model / "model.safetensors") == 39
