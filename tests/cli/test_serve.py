"""``wcodec serve``: which server it starts, with which arguments, and what it says where there is none."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from command import Cli
from wcodec._cli import serve

ROOT = Path(__file__).resolve().parents[2]
FAKE = """#!{python}
import json, os, sys
print(json.dumps({{"program": "vllm", "arguments": sys.argv[1:]}}))
sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that says of itself that it is compressed: servers look no further before they start."""
    folder = tmp_path / "small"
    folder.mkdir()
    record = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "quantization_config": {"quant_method": "wcodec", "file": "model.wcodec"}}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(record))
    (folder / "model.wcodec").write_bytes(b"")
    return folder


def served(tmp_path: Path, *arguments: object, vllm: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command, with these packages beside it: a vLLM of this version that tells its arguments, or none."""
    packages, programs = tmp_path / "packages", tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    packages.mkdir(exist_ok=True)
    for name in ("fastapi", "uvicorn", "openai", "pydantic"):
        (packages / f"{name}.py").write_text("")
    if vllm is not None:
        (packages / "vllm.py").write_text("")
        info = packages / f"vllm-{vllm}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm}\n")
        program = programs / "vllm"
        program.write_text(FAKE.format(python=sys.executable))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(ROOT / "pyext/python"), str(packages), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": path}
    command = [sys.executable, "-m", "wcodec", "serve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)


def test_vllm_is_taken_where_it_is(tmp_path: Path, folder: Path) -> None:
    done = served(tmp_path, folder, "--port", "81", "--", "--max-model-len", "64", "--port", vllm="0.33.0")
    # Its exit status is the command's: it has become that program.
    assert done.returncode == 7, done.stderr
    told = json.loads(done.stdout)
    assert told["arguments"] == ["serve", str(folder), "--host", "127.0.0.1", "--port", "81", "--max-model-len", "64",
                                 "--port"]  # fmt: skip
    assert f"vllm serve {folder} --host 127.0.0.1 --port 81" in done.stderr
    assert "http://127.0.0.1:81/v1" in done.stderr and "not compressed" not in done.stderr


def test_a_file_stands_for_its_folder(tmp_path: Path, folder: Path) -> None:
    done = served(tmp_path, folder / "model.wcodec", "--trust-remote-code", "--dtype", "float16", vllm="0.32.1")
    assert json.loads(done.stdout)["arguments"][1] == str(folder)
    assert {"--trust-remote-code", "--dtype", "float16"} <= set(json.loads(done.stdout)["arguments"])
    (tmp_path / "alone.wcodec").write_bytes(b"")
    assert "servers take the folder of a model" in served(tmp_path, tmp_path / "alone.wcodec").stderr


def test_a_vllm_that_does_not_fit(tmp_path: Path, folder: Path) -> None:
    done = served(tmp_path, folder, "--engine", "vllm", vllm="0.9.1")
    assert done.returncode == 2 and "vLLM 0.9.1 is none that compressed models run with" in done.stderr
    assert "--engine transformers" in done.stderr


def test_what_to_install(folder: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_is_there", lambda name: name == "transformers")
    status, out, err = run("serve", folder)
    assert (status, out) == (2, "") and "no server to start" in err
    assert "pip install 'vllm>=" in err and "pip install 'transformers[serving]'" in err
    assert "vLLM cannot be started: vLLM is not installed" in run("serve", folder, "--engine", "vllm")[2]
    assert "needs fastapi, uvicorn" in run("serve", folder, "--engine", "transformers")[2]
    assert "has no effect on vLLM" in run("serve", folder, "--engine", "vllm", "--device", "cpu")[2]
    assert "there is no such folder or file" in run("serve", "no/such/folder")[2]


def test_transformers_with_wcodec_in_it(folder: Path, model: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_is_there", lambda name: name != "vllm")
    started: list[list[str]] = []
    monkeypatch.setattr(serve, "_started", lambda command: started.append(list(command)) or 0)
    status, _, err = run("serve", folder, "--device", "cpu", "--", "--log-level", "info")
    assert status == 0 and "transformers (vLLM is not installed): " in err
    command = started[0]
    assert command[:3] == [sys.executable, "-m", "wcodec._cli.transformers_cli"]
    assert command[3:5] == ["serve", str(folder)] and command[-4:] == ["--device", "cpu", "--log-level", "info"]
    run("serve", model)
    assert "is not compressed, and served as it is" in run("serve", model)[2]


def test_the_module_is_transformers_command() -> None:
    pytest.importorskip("typer")
    pytest.importorskip("transformers.cli.transformers")
    done = subprocess.run(
        [sys.executable, "-m", "wcodec._cli.transformers_cli", "serve", "--help"],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    assert done.returncode == 0 and "--port" in done.stdout and "--device" in done.stdout
