"""Models whose configs bring code, or name some: unless allowed, it is neither run nor fetched, nor asked about."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 4096, "dtype": "float32",
}  # fmt: skip
# A module that tells that it was run.
CODE = """
import os
from pathlib import Path
Path(os.environ["WITNESS"]).touch()
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
OWN = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A folder that save_pretrained wrote, with a tokenizer."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    torch.manual_seed(0)
    config = {k: v for k, v in CONFIG.items() if k not in ("model_type", "architectures", "dtype")}
    tiny = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    wcodec.compress_(tiny, progress=False)
    wcodec.save_pretrained(tiny, folder)
    shutil.copy(model / "tokenizer.json", folder)
    return folder


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the code was run."""
    path = tmp_path / "witness"
    monkeypatch.setenv("WITNESS", str(path))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return path


def folder_with(place: Path, plain: Path, **config: Any) -> Path:
    """The folder with other keys in its config, and the code beside it."""
    shutil.copytree(plain, place)
    record = json.loads((plain / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**record, **config}))
    (place / "own.py").write_text(CODE)
    return place


def load(folder: Path, *, stdin: int | None, trust: bool = False) -> subprocess.CompletedProcess[str]:
    """The folder, loaded by a process of its own."""
    code = f"import wcodec; print(type(wcodec.load_model({str(folder)!r}, trust_remote_code={trust})).__name__)"
    return subprocess.run(
        [sys.executable, "-c", code],
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ,
    )


def test_code_that_comes_with_a_model(plain: Path, tmp_path: Path, witness: Path) -> None:
    folder = folder_with(tmp_path / "own", plain, model_type="own", auto_map=OWN)
    with pytest.raises(
        wcodec.InputError, match="the model is code that comes with it .*trust_remote_code=True"
    ) as caught:
        wcodec.load_model(folder)
    assert caught.value.file == str(folder)
    # A known model is loaded by transformers' own code, whatever its config names.
    known = folder_with(tmp_path / "known", plain, auto_map=OWN)
    assert type(wcodec.load_model(known)).__name__ == "LlamaForCausalLM"
    assert not witness.exists()


def test_nobody_is_asked(plain: Path, tmp_path: Path, witness: Path) -> None:
    folder = folder_with(tmp_path / "own", plain, model_type="own", auto_map=OWN)
    # Input comes from somebody who would say yes, and then from nobody.
    yes, out = os.pipe()
    os.write(out, b"y\n" * 100)
    os.close(out)
    for stdin in (yes, subprocess.DEVNULL):
        done = load(folder, stdin=stdin)
        assert done.returncode == 1 and "InputError" in done.stderr and "y/N" not in done.stdout + done.stderr
    os.close(yes)
    command = f"'{sys.executable}' -m wcodec generate '{folder}' --prompt x <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--trust-remote-code" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not witness.exists()


def test_code_that_is_trusted(plain: Path, tmp_path: Path, witness: Path) -> None:
    folder = folder_with(tmp_path / "own", plain, model_type="own", auto_map=OWN)
    done = load(folder, stdin=subprocess.DEVNULL, trust=True)
    assert (done.returncode, done.stdout) == (0, "OwnModel\n"), done.stderr
    assert witness.exists()
    witness.unlink()
    arguments = [folder, "--prompt", "The", "--max-new-tokens", "2", "--trust-remote-code", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "wcodec", "generate", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and len(json.loads(done.stdout)["tokens"]) == 2, done.stderr
    assert witness.exists()


FETCHED = [
    {"attn_implementation": "evil/kernel"}, {"_attn_implementation": "evil/kernel:f"},
    {"attn_implementation": {"": "a/b@c"}}, {"attn_implementation": "paged|a/b"}, {"experts_implementation": "a/b"},
    {"experts_implementation": "sonicmoe"}, {"_experts_implementation": "deepgemm"}, {"use_kernels": True},
    {"kernel_config": {"RMSNorm": "evil/kernel:RMSNorm"}}, {"backbone": "resnet50"}, {"use_pretrained_backbone": True},
    {"text_config": {"deep": [{"attn_implementation": "a/b"}]}}, {"vision_config": {"architecture": "hf-hub:a/b"}},
    # Another way to the same attribute.
    {"attribute_map": {"innocent": "_attn_implementation_internal"}, "innocent": "evil/kernel"},
]  # fmt: skip


@pytest.mark.parametrize("config", FETCHED, ids=lambda config: next(iter(config)))
def test_code_of_the_hub(config: dict[str, Any], plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path / "x", plain, **config)
    asked: list[Any] = []
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", lambda *a, **k: asked.append(a))
    monkeypatch.setattr("huggingface_hub.HfApi.repo_exists", lambda *a, **k: asked.append(a))
    with pytest.raises(wcodec.InputError, match="of the config asks for code from elsewhere: .*trust_remote_code=True"):
        wcodec.load_model(folder)
    # The config of a container without a folder is as hostile.
    record = json.loads((folder / "config.json").read_text())
    from wcodec._core.foreign import config_of

    with pytest.raises(wcodec.InputError, match="asks for code from elsewhere"):
        config_of("x.wcodec", record)
    assert asked == []


def test_flash_attention_is_no_kernel_of_the_hub(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path / "x", plain, attn_implementation="flash_attention_2")
    from wcodec._core import foreign

    # With the package `kernels` and without flash-attn transformers would fetch it.
    monkeypatch.setattr(foreign, "_has", lambda package: package == "kernels")
    with pytest.raises(wcodec.InputError, match="asks for code from elsewhere: 'flash_attention_2'"):
        wcodec.load_model(folder)
    monkeypatch.setattr(foreign, "_has", lambda package: False)
    with pytest.raises(wcodec.FormatError, match="transformers makes no model of its config: ImportError: Flash"):
        wcodec.load_model(folder)


def test_what_runs_nothing_is_allowed(plain: Path, tmp_path: Path) -> None:
    allowed = {
        "attn_implementation": "sdpa",
        "use_kernels": False,
        "kernel_config": None,
        "_name_or_path": "owner/name",
    }
    folder = folder_with(tmp_path / "x", plain, **allowed)
    assert wcodec.load_model(folder).config._attn_implementation == "sdpa"
    folder = folder_with(tmp_path / "y", plain, attn_implementation="eager")
    assert wcodec.load_model(folder).config._attn_implementation == "eager"


def test_parts_of_a_config_lose_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would ask on standard input about the code of a part that is none of its own models."""
    from wcodec._core.foreign import config_of

    part = {"model_type": "siglip_vision_model", "auto_map": {"AutoModel": "own.Own"}}
    record = {"model_type": "gemma3", "vision_config": part, "auto_map": OWN}
    config = config_of("x", record)
    assert not hasattr(config.vision_config, "auto_map")


def test_tokenizers_of_their_own(plain: Path, tmp_path: Path, witness: Path) -> None:
    folder = folder_with(tmp_path / "x", plain)
    own = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    (folder / "own.py").write_text(CODE.replace("OwnModel", "OwnTokenizer"))
    loaded = wcodec.load_model(folder)
    with pytest.raises(wcodec.InputError, match="no tokenizer was found at .*contains custom code"):
        wcodec.evaluate(loaded, "some text that is long enough")
    assert not witness.exists()


def test_a_baseline_brings_no_code(
    plain: Path, tmp_path: Path, witness: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from command import call

    baseline = tmp_path / "baseline"
    torch.manual_seed(0)
    config = {k: v for k, v in CONFIG.items() if k not in ("model_type", "architectures", "dtype")}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).save_pretrained(baseline)
    record = json.loads((baseline / "config.json").read_text())
    (baseline / "own.py").write_text(CODE)
    for change in ({"model_type": "own", "auto_map": OWN}, {"attn_implementation": "evil/kernel"}):
        (baseline / "config.json").write_text(json.dumps({**record, **change}))
        status, out, err = call(capsys, "generate", plain, "--prompt", "The", "--baseline", baseline)
        assert status == 2 and out == "" and "--trust-remote-code" in err
    (baseline / "config.json").write_text(json.dumps(record))
    status, out, err = call(
        capsys, "generate", plain, "--prompt", "The", "--baseline", baseline, "--max-new-tokens", "2"
    )
    assert status == 0, err
    assert not witness.exists()
