"""What the README says, done word by word."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from wcodec.cli import main

REPOSITORY = Path(__file__).parent.parent
README = (REPOSITORY / "README.md").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that finds the model where the README does."""
    (tmp_path / "tests").symlink_to(REPOSITORY / "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_quick_start(folder: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3  # the last one needs a GPU: test_gpu_torch.py
    exec(compile(blocks[0], "README.md", "exec"), {})
    assert (folder / "model.wcodec").is_file()


def test_models_quick_start(folder: Path) -> None:
    pytest.importorskip("transformers")
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    found: dict[str, object] = {}
    exec(compile(blocks[1], "README.md", "exec"), found)
    assert tuple(found["logits"].shape[:2]) == (1, 3)  # type: ignore[attr-defined]
    assert sorted(p.suffix for p in (folder / "compressed").glob("*.wcodec")) == [".wcodec"]


def test_terminal_quick_start(folder: Path) -> None:
    (folder / "path/to").mkdir(parents=True)
    (folder / "path/to/checkpoint").symlink_to(REPOSITORY / "tests/data/doc-llama-3m")
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^(wcodec .*)$", README, re.MULTILINE)]
    assert {c[1] for c in commands} == {"encode", "inspect", "verify", "decode", "compare", "roundtrip"}
    for _, *arguments in commands:
        if "a.wcodec" in arguments:
            for name in ("a.wcodec", "b.wcodec"):
                (folder / name).write_bytes((folder / "model.wcodec").read_bytes())
        assert main(arguments) == 0, arguments


def test_make_targets_and_links_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) - {"sure"} <= targets
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (REPOSITORY / link).exists(), link
