"""Errors have codes, codes are raised, and docs/messages.md is what docs/messages.py makes of the catalogue."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from wcodec._core.codes import catalogue

ROOT = Path(__file__).resolve().parents[2]
GPU_PAGE = ROOT / "docs/gpu-setup.md"
MODEL = ROOT / "tests/data/doc-llama-3m"

CLASSES = {
    name: value
    for name, value in vars(wcodec._core.errors).items()
    if isinstance(value, type) and issubclass(value, wcodec.WcodecError)
}
LETTERS = {
    "F": wcodec.FormatError,
    "C": wcodec.CorruptError,
    "U": wcodec.UnsupportedError,
    "O": wcodec.FileError,
    "D": wcodec.DeviceError,
    "I": wcodec.InputError,
}


def _sources(ending: str, *folders: str) -> Iterator[tuple[str, str]]:
    """Files without those of tests, and without the tests at their end."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob(f"*.{ending}")):
            place = path.relative_to(ROOT).as_posix()
            if "tests" not in path.stem and not {"tests", "emulated"} & set(path.parts):
                text = path.read_text(encoding="utf-8")
                yield place, re.split(r"\n#\[cfg\(test\)\]\nmod \w+ \{", text)[0]


def _rust() -> Iterator[tuple[str, str]]:
    return _sources("rs", "codec/src", "pyext/src", "tui/src")


def _made() -> Iterator[tuple[str, str, str | None]]:
    """Errors that Python makes: the place, the class, and the code."""
    for place, text in _sources("py", "pyext/python/wcodec"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in CLASSES:
                    codes = [ast.unparse(k.value).strip("'\"") for k in node.keywords if k.arg == "code"]
                    yield f"{place}:{node.lineno}", name, codes[0] if codes else None


def test_the_page_is_what_the_catalogue_says() -> None:
    spec = importlib.util.spec_from_file_location("messages", ROOT / "docs/messages.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run python docs/messages.py"


def test_every_error_of_python_has_a_code_of_its_class() -> None:
    made = list(_made())
    assert len(made) > 400
    # A helper's callers give it the code.
    assert not [(place, code) for place, _, code in made if code not in catalogue() and code != "code"]
    for place, name, code in made:
        if code is not None and code != "code" and name != "WcodecError":
            assert issubclass(CLASSES[name], LETTERS[code[0]]), f"{place}: {name} with {code}"


def test_every_error_of_rust_has_a_code() -> None:
    # Constructors by kind have general codes: they are for programs that use the crate.
    bare = re.compile(r"\bError::(?:new|format|corrupt|unsupported|input|device)\b")
    places = [place for place, text in _rust() for line in text.splitlines() if bare.search(line.partition("//")[0])]
    assert not [place for place in places if place != "codec/src/error.rs"]


def test_every_code_is_raised() -> None:
    rust = "\n".join(text for place, text in _rust() if not place.startswith("codec/src/error/code/"))
    used = set(re.findall(r"\bcoded!\(\s*([A-Z0-9_]+)", rust)) | set(re.findall(r"\bCode::([A-Z0-9_]+)\b", rust))
    used |= set(re.findall(r"\bSelf::([A-Z0-9_]+)\b", (ROOT / "codec/src/error/code.rs").read_text(encoding="utf-8")))
    python = "\n".join(text for _, text in _sources("py", "pyext/python/wcodec"))
    raised = set(re.findall(r"\bcode ?= ?\"([A-Z]\d{3})\"", python))
    names = dict(line.split() for line in (ROOT / "codec/src/error/code/released.txt").read_text().splitlines())
    assert len(used) > 130 and len(raised) > 100
    assert not [id for id in catalogue() if id not in raised and names[id] not in used]


def test_codes_are_explained() -> None:
    code = wcodec.explain("f102")
    assert (code.id, code.exception) == ("F102", "FormatError")
    assert str(code).startswith("F102: ") and code.cause in str(code) and code.remedy in str(code)
    for id, known in catalogue().items():
        expected = LETTERS.get(id[0], wcodec.WcodecError).__name__
        assert wcodec.explain(f"[{id}]") is known and known.exception == expected
    with pytest.raises(wcodec.InputError, match=r"no error code 'F19' \(perhaps F1") as raised:
        wcodec.explain("F19")
    assert wcodec.explain(raised.value).id == raised.value.code == "I302"


def test_the_variables_of_the_environment_are_explained() -> None:
    used = set()
    for folder, end in (("codec/src", "rs"), ("pyext/src", "rs"), ("tui/src", "rs"), ("pyext/python", "py")):
        for path in (ROOT / folder).rglob(f"*.{end}"):
            if "tests" not in path.name and not {"emulated", "emulated.rs"} & set(path.parts):
                used |= set(re.findall(r"WCODEC_[A-Z0-9_]+", path.read_text(encoding="utf-8")))
    # Variables of tests inside of sources.
    used -= {"WCODEC_REQUIRE_GPU", "WCODEC_NVCOMP_WHEELS", "WCODEC_TEST_FULL_DISK"}
    assert {"WCODEC_ISA", "WCODEC_NVCOMP"} <= used
    page = GPU_PAGE.read_text(encoding="utf-8")
    assert not {name for name in used if f"`{name}`" not in page}


# Texts that say what to do without parentheses, and why others have nothing to say.
WITHOUT_ADVICE = {
    "level must be a whole number, not ",
    " must be a whole number of at least , not ",
    " must be whole numbers of at least 1, not ",
    "new_tokens must be at least 2: the first one belongs to the prompt's time",
    ": move both to one device, or their speeds say nothing about each other",
    "names of tensors must be text and not empty, not ",
    # Messages of torch follow, and their advice with them.
    "torch: ",
}


def _texts(node: ast.expr) -> str:
    """The fixed parts of a message."""
    return "".join(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def test_every_message_of_python_says_what_to_do() -> None:
    silent = set()
    for _, text in _sources("py", "pyext/python/wcodec"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CLASSES and node.args:
                said = node.args[0]
                if isinstance(said, ast.Constant | ast.JoinedStr | ast.BinOp) and " (" not in _texts(said):
                    silent.add(_texts(said))
    assert silent == WITHOUT_ADVICE


# Errors that really happen. The helpers are called in an empty folder with a container and the model.


def _write(data: bytes, name: str = "broken.wcodec") -> str:
    Path(name).write_bytes(data)
    return name


def _container() -> bytes:
    return Path("model.wcodec").read_bytes()


def _flipped(at: int) -> bytes:
    data = bytearray(_container())
    data[at] ^= 0xFF
    return bytes(data)


def _damaged() -> bytes:
    with wcodec.open("model.wcodec") as container:
        segment = next(s for s in container["lm_head.weight"].segments if s.role == "data")
    return _flipped(segment.offset + segment.length // 2)


def _closed() -> wcodec.Container:
    with wcodec.open("model.wcodec") as container:
        return container


def _raw(name: str, value: Any, **options: Any) -> None:
    wcodec.compress({name: value}, "new.wcodec", progress=False, **options)


REAL: dict[str, Callable[[], Any]] = {
    "O101 cannot open the file": lambda: wcodec.open("nope.wcodec"),
    "F102 the file is empty": lambda: wcodec.open(_write(b"")),
    "F102 the file has only bytes": lambda: wcodec.open(_write(_container()[:20])),
    "F103 the header is empty: writing this file was interrupted": lambda: wcodec.open(_write(bytes(100))),
    "F101 this is , not a wcodec container": lambda: wcodec.open("model/model.safetensors"),
    "F101 not a wcodec container: the magic bytes are wrong": lambda: wcodec.open(b"?" * 100),
    "C101 the file has bytes, and should have": lambda: wcodec.open(_write(_container()[:-100])),
    "C103 the header's hash does not match": lambda: wcodec.open(_write(_flipped(20))),
    "C103 the index's hash does not match": lambda: wcodec.open(_write(_flipped(-5))),
    "C104 the hash of a segment of bytes does not match": lambda: wcodec.open(_write(_damaged()))[
        "lm_head.weight"
    ].numpy(),
    "O103 the output exists already": lambda: wcodec.compress("model", "model.wcodec", progress=False),
    "I107 the output is a folder": lambda: wcodec.compress("model", ".", progress=False),
    "I102 the output is , which is not replaced": lambda: (
        Path("link").symlink_to("model.wcodec"),
        wcodec.compress("model", "link", overwrite=True, progress=False),
    ),
    "I103 the output is one of the files that are read": lambda: wcodec.decompress(
        "model.wcodec", "model.wcodec", overwrite=True, progress=False
    ),
    "I108 the ending . is not that of": lambda: wcodec.compress("model", "new.gguf", progress=False),
    "I213 there are no tensors to encode": lambda: wcodec.save_file({}, "new.wcodec"),
    "O101 cannot create a file in its folder": lambda: wcodec.compress("model", "no/new.wcodec", progress=False),
    "I204 no .safetensors file in the folder": lambda: wcodec.compress(".", "new.wcodec", progress=False),
    "F104 a safetensors header of bytes does not fit the file": lambda: wcodec.compress(
        _write(b"version https://git-lfs", "a.safetensors"), "new.wcodec", progress=False
    ),
    "I302 unknown": lambda: wcodec.compress("model", "new.wcodec", coder="lz4", progress=False),
    "I403 at row , column": lambda: _raw("w", np.full((64, 64), np.nan, np.float32)),
    "I317 the pattern ' ' matches no tensor": lambda: _raw("w", np.ones((64, 64), np.float32), include="v*"),
    "I313 blocks of scales have a multiple of 16 columns, not": lambda: _raw(
        "w", np.ones((64, 64), np.float32), scale="block", block=17
    ),
    "I313 tile width is not a multiple of 64 from 64 to 1024": lambda: _raw(
        "w", np.ones((64, 64), np.float32), tile=65
    ),
    "I405 dtype cannot be stored": lambda: _raw("w", np.array(["a"])),
    "I421 no tensor": lambda: wcodec.open("model.wcodec")["lm_heat.weight"],
    "I320 cannot decode to device": lambda: wcodec.load_file("model.wcodec", device="tpu"),
    "I423 cannot decode to dtype": lambda: wcodec.load_file("model.wcodec", dtype="int3"),
    "I313 zstd is not used at level": lambda: _raw("w", np.ones((64, 64), np.float32), coder="zstd", level=99),
    "I424 a tensor of scheme has no scales": lambda: wcodec.open("model.wcodec")["model.norm.weight"].scales(),
    "I221 the container is closed": lambda: _closed()["lm_head.weight"].numpy(),
    "I642 the layer has x symbols, not": lambda: wcodec.Decoder().decode_layer(
        wcodec.Encoder().encode_layer(np.ones((2, 3), np.int8))[0], rows=3
    ),
    "F111 a legacy blob of bytes": lambda: wcodec.Decoder().decode_layer(b"DTSZ"),
    "I642 this container does not hold a single layer": lambda: wcodec.Decoder().decode_layer(_container()),
    "I641 a layer is a 2-D int8 array, not of shape": lambda: wcodec.Encoder().encode_layer(np.ones(3)),
}


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("errors") / "model.wcodec"
    wcodec.compress(MODEL, path, progress=False)
    return path


@pytest.fixture()
def place(container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").symlink_to(MODEL)
    shutil.copy(container, "model.wcodec")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("case", REAL)
def test_real_errors_have_their_codes(case: str) -> None:
    with pytest.raises(wcodec.WcodecError) as raised:
        REAL[case]()
    assert raised.value.code == case[:4], raised.value
    # Advice is in parentheses, the code behind it.
    assert re.search(rf" \(.+\) \[{case[:4]}\]$", str(raised.value)), raised.value


@pytest.mark.usefixtures("place")
def test_the_error_of_a_machine_without_a_gpu_has_its_code() -> None:
    if wcodec.doctor().devices:
        pytest.skip("there is a GPU")
    with pytest.raises(wcodec.DeviceError) as raised:
        wcodec.verify("model.wcodec", device="cuda")
    assert wcodec.explain(raised.value).exception == "DeviceError" and not raised.value.code.endswith("00")


@pytest.mark.usefixtures("place")
def test_errors_of_models_have_their_codes() -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64))
    with pytest.raises(wcodec.InputError) as raised:
        wcodec.compress_(layers, exclude="*", progress=False)
    assert raised.value.code == "I501" and "among exclude" in str(raised.value)
    wcodec.compress_(layers, progress=False)
    Path("bare").mkdir()
    shutil.copy("model/config.json", "bare")
    cases: dict[str, Callable[[], Any]] = {
        "I501 nothing to compress in": lambda: wcodec.compress_(layers, progress=False),
        "I502 compress_ replaces layers of a model, and a has none": lambda: wcodec.compress_(torch.nn.Linear(4, 4)),
        "I531 compressed weights cannot be trained": lambda: layers[0].requires_grad_(),
        "I538 the input has features, and the layer takes": lambda: layers(torch.zeros(1, 63)),
        "I538 the input is , and the layer computes in": lambda: layers(torch.zeros(1, 64, dtype=torch.float16)),
        "I515 a has no config to save": lambda: wcodec.save_pretrained(layers, "out"),
        "I307 goes with residency 'auto', not with": lambda: wcodec.load_model(
            "model", residency="host", vram_budget="3GB"
        ),
        "I309 must be a size, not": lambda: wcodec.load_model("model", residency="auto", vram_budget="3G"),
        "O301 there is no .wcodec and no .safetensors file in it": lambda: wcodec.load_model("bare"),
    }
    for name, case in cases.items():
        with pytest.raises(wcodec.WcodecError) as seen:
            case()
        assert seen.value.code == name[:4], seen.value
