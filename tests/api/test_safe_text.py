"""Nothing that a file, a path or a config says steers a terminal; JSON documents lose nothing, and are ASCII."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from hostile import SHOWN, STEERING, raw, steers, write_steering
from wcodec import _native
from wcodec._core import format as _format
from wcodec._core import progress

ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8"}


def run(program: str, *arguments: str | bytes | Path, cwd: Path) -> tuple[int, str, str]:
    module = {"wcodec": "wcodec", "wcodec-tui": "wcodec._tui"}[program]
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        capture_output=True,
        env=ENVIRONMENT,
        check=False,
        timeout=300,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert not steers(out) and not steers(err), (arguments, out[-2000:], err[-2000:])
    assert "Traceback" not in err and "internal error" not in err, err
    return done.returncode, out, err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steering")


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, Path]:
    return write_steering(folder)


# Cases by what is wrong with a file, and what its messages quote.
NAMES = (
    "names",
    "damaged",
    "feature",
    "format",
    "table",
    "target",
    "dtype",
    "scheme",
    "coder",
    "layout",
    "scales",
    "index",
)


@pytest.mark.parametrize("name", NAMES)
def test_no_command_is_steered_by_a_file(name: str, folder: Path, files: dict[str, Path]) -> None:
    path, told = str(files[name]), ""
    for arguments in (
        ["inspect", path], ["verify", path], ["compare", path, str(files["names"])],
        ["decode", path, "-o", str(folder / "out.safetensors"), "--overwrite"],
    ):  # fmt: skip
        status, out, err = run("wcodec", *arguments, cwd=folder)
        assert status in (0, 1, 2)
        told += out + err
    # serde quotes what it did not expect in its own way.
    assert any(text in told for text in (r"\x1b[31m", r"\u{1b}[31m")) and r"\u{202e}" in told and r"\r\n" in told
    for program, *command in (
        ["wcodec", "inspect", path], ["wcodec", "verify", path], ["wcodec", "compare", path, str(files["names"])],
        ["wcodec-tui", path], ["wcodec-tui", path, str(files["names"])],
    ):  # fmt: skip
        status, out, err = run(program, *command, "--json", cwd=folder)
        assert out.isascii() and (json.loads(out) if out else err)
    for arguments in ([path], [path, str(files["names"])], [path, "--tensor", STEERING[:-1]]):
        status, out, err = run("wcodec-tui", "--plain", *arguments, cwd=folder)
        assert out if status < 2 else "\\" in err


def test_documents_are_lossless(folder: Path, files: dict[str, Path]) -> None:
    for program, command in (("wcodec", ["inspect"]), ("wcodec-tui", [])):
        document = json.loads(run(program, *command, files["names"], "--json", cwd=folder)[1])
        assert document["writer"] == STEERING and document["metadata"] == {STEERING: STEERING}
        assert document["model"] == {"config": {STEERING: STEERING}}
        assert [t["name"] for t in document["tensors"]] == [STEERING, f"{STEERING}.0.{STEERING}"]
        assert document["aliases"] == {STEERING + "x": STEERING}
    table = run("wcodec", "inspect", files["names"], cwd=folder)[1]
    # A line for each tensor, alias and fact: none of them is broken, or made up by a name.
    assert (
        len(table.splitlines()) == 7
        and table.count(SHOWN) == 6
        and not any(line.startswith("fake line") for line in table.splitlines())
    )


def test_paths_are_shown(folder: Path, files: dict[str, Path]) -> None:
    odd = folder / f"x\x1b[31m\u202e{os.fsdecode(b'caf' + bytes([0xE9]))}.wcodec"
    shutil.copy(files["names"], odd)
    shown = r"x\x1b[31m\u{202e}caf\xe9.wcodec"
    for program, *arguments in (
        ["wcodec", "inspect", f"{odd}.no"], ["wcodec", "verify", odd], ["wcodec", "inspect", odd, "a" + str(odd)],
        ["wcodec", "verify", odd, "--against", f"{odd}.no"], ["wcodec", "decode", odd, "-o", odd],
        ["wcodec", "encode", odd, "-o", f"{odd}.2"], ["wcodec", "generate", odd, "--prompt", "x"],
        ["wcodec-tui", f"{odd}.no"], ["wcodec-tui", odd, "--tensor", "x"], ["wcodec-tui", odd, "--log", f"{odd}/x"],
    ):  # fmt: skip
        status, out, err = run(program, *map(os.fsencode, arguments), cwd=folder)
        assert shown in out + err, (arguments, out, err)
    document = json.loads(run("wcodec", "inspect", os.fsencode(odd), "--json", cwd=folder)[1])
    assert document["path"] == str(odd)
    assert json.loads(run("wcodec-tui", os.fsencode(odd), "--json", cwd=folder)[1])["path"] == str(odd)
    with pytest.raises(wcodec.WcodecError) as caught:
        wcodec.open(f"{odd}.no")
    assert shown in str(caught.value) and caught.value.file == f"{odd}.no"


def test_encode_and_roundtrip_show_names(folder: Path, write_safetensors: Any) -> None:
    source = write_safetensors(folder / "odd.safetensors", {STEERING: np.full((64, 64), np.nan, np.float32)})
    status, _, err = run("wcodec", "encode", source, "-o", "nan.wcodec", cwd=folder)
    assert status == 2 and SHOWN in err
    assert run("wcodec", "encode", source, "-o", "raw.wcodec", "--scheme", "raw", cwd=folder)[0] == 0
    status, out, _ = run("wcodec", "verify", "raw.wcodec", "--against", "odd.safetensors", cwd=folder)
    assert status == 0
    fine = write_safetensors(folder / "fine.safetensors", {STEERING: np.eye(64, dtype=np.float32)})
    status, out, _ = run("wcodec", "verify", "raw.wcodec", "--against", fine, cwd=folder)
    assert status == 1 and SHOWN in out
    assert run("wcodec", "roundtrip", fine, "--coder", "raw", "--scale", "row", "--keep", cwd=folder)[0] == 0
    status, _, err = run("wcodec", "encode", fine, "-o", "x.wcodec", "--include", STEERING + "[", cwd=folder)
    assert status == 2 and SHOWN in err
    for arguments in (
        ["encode", "a", "-o", "b", STEERING],
        [STEERING],
        ["encode", "a", "-o", "b", "--coder", STEERING],
    ):
        status, _, err = run("wcodec", *arguments, cwd=folder)
        assert status == 2 and r"\x1b[31m" in err and err.startswith("error: ")


@pytest.mark.parametrize("command", ["generate", "eval", "bench"])
def test_commands_that_run_models_show_names(command: str, folder: Path, files: dict[str, Path], model: Path) -> None:
    pytest.importorskip("transformers")
    place = folder / command
    place.mkdir()
    shutil.copy(files["names"], place / "model.wcodec")
    config = json.loads((model / "config.json").read_text())
    wanted = {"generate": ["--prompt", "x"], "eval": ["--text", str(model / "config.json")], "bench": []}[command]
    # Names of tensors; names of a config, of which transformers also logs some.
    changes: list[dict[str, Any]] = [{}]
    if command == "generate":
        rope = {"rope_type": STEERING}
        changes += [{"model_type": STEERING}, {STEERING: STEERING, "rope_scaling": rope}, {"dtype": STEERING}]
    for change in changes:
        (place / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1} | change))
        status, out, err = run("wcodec", command, place, *wanted, cwd=folder)
        assert status == 2 and out == "" and r"\x1b" in err, err


def test_nothing_of_python_is_steered(files: dict[str, Path]) -> None:
    with wcodec.open(files["names"]) as container:
        assert list(container)[0] == STEERING and container.writer == STEERING
        entry = container[STEERING]
        with pytest.raises(wcodec.TensorNotFoundError) as missing:
            container[STEERING + "!"]
        assert not any(map(steers, repr(container).split("\n") + repr(container.keys()).split("\n")))
        shown = [container._repr_html_(), repr(entry), entry._repr_html_(), str(missing.value)]
        shown += [repr(container[STEERING + "x"]), container[STEERING + "x"]._repr_html_(), repr(entry.segments)]
        assert missing.value.tensor == STEERING + "!"
    for report in (
        wcodec.verify(files["damaged"], progress=False),
        wcodec.compare(files["names"], files["scheme"]),
        wcodec.compress(
            {STEERING: np.eye(64, dtype=np.float32)}, files["names"].with_name(f"{STEERING[:9]}.wcodec"), progress=False
        ),
    ):
        shown += [repr(report), report._repr_html_()]
    for text in shown:
        assert not steers(text) and "\n" not in text, text
    # A traceback prints what str() gives.
    code = f"import wcodec; wcodec.open({str(files['table'])!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 1 and not steers(done.stderr.decode()) and SHOWN in done.stderr.decode()
    with pytest.raises(wcodec.FormatError) as caught:
        wcodec.open(files["table"])
    assert caught.value.tensor == STEERING


def test_the_bar_is_not_steered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0)
    with progress.reporter(True, "encode") as callback:
        assert callback is not None
        callback("first", 1, 2)
        # It is drawn ten times a second.
        time.sleep(0.2)
        callback(STEERING, 2, 2)
    shown = capsys.readouterr().err
    assert "a\\x1b]0;pwned" in shown and not set(steers(shown)) - {"\r"}
    monkeypatch.setattr(sys, "stderr", None)
    with progress.reporter(True, "encode") as callback:
        assert callback is None


def test_safe_text() -> None:
    assert _native.safe(STEERING) == SHOWN and _native.safe("größe 層 \\") == "größe 層 \\"
    assert _native.safe("\ud800\udcff") == r"\ud800\udcff" and _native.safe("a\udcff") == r"a\xff"
    assert _native.safe_lines("a\n\tb\x1b\udcff\nc") == "a\n\\tb\\x1b\\xff\nc"
    assert _native.safe_lines("a\n\tb\x1b") == "a\n\tb\\x1b"
    assert _native.ascii_json('["\x7fé"]') == '["\\u007f\\u00e9"]'
    assert _format.facts([("file", STEERING)]) == f"file: {SHOWN}"
    table = _format.text_table(["a", "b"], [[STEERING, "1"], ["x", "22"]])
    assert len({len(line) for line in table.splitlines()}) == 1 and not steers(table)


def test_plots_take_any_name(plt: Any, tmp_path: Path) -> None:
    from format_writer import write_container

    names = ["9" * 5000, "$\\frac{$", STEERING, "$x$ $"]
    file = tmp_path / "x.wcodec"
    write_container(file, [raw(name) for name in names])
    ax = wcodec.open(file).plot.ratio()
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert len(labels) == 4 and not any(steers(label) or len(label) > 110 for label in labels)
    ax.figure.savefig(tmp_path / "x.png")
    data, _ = wcodec.compress_to_bytes({name: np.eye(64, dtype=np.float32) for name in names})
    for name in names:
        for ax in (wcodec.open(data).plot.scales(name), wcodec.open(data).plot.symbols(name)):
            ax.figure.savefig(tmp_path / "x.png")
