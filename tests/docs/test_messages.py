"""docs/messages.md explains every message that the package can raise, and none that it cannot."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import error_messages
import numpy as np
import pytest
import wcodec
from error_messages import CLASSES, GAP, ROOT, Message

PAGE = ROOT / "docs/messages.md"
GPU_PAGE = ROOT / "docs/gpu-setup.md"
MODEL = ROOT / "tests/data/doc-llama-3m"

# Sections whose tables hold messages, and what the extraction calls their kind; "*" takes messages of every kind.
SECTIONS = {
    **{name: name for name in set(CLASSES.values()) if name.endswith("Error")},
    "Reasons inside messages": "Reason",
    "Findings in reports": "Report",
    "The command line": "Command line",
    "wcodec-tui": "Inspector",
    "Python's own exceptions": "Python",
    "Bugs in wcodec": "*",
}
# The driver's names, which NVIDIA chose.
NOT_OURS = "What the driver's error names mean"


def documented() -> dict[tuple[str, str], int]:
    """The patterns of the page, by kind, and the line of each."""
    found: dict[tuple[str, str], int] = {}
    kind, skip = "", False
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("## "):
            kind = SECTIONS.get(line[3:], "")
        if line.startswith("#"):
            skip = line.lstrip("# ") == NOT_OURS
        if kind and not skip and line.startswith("| `"):
            for pattern in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                assert (kind, pattern) not in found, f"line {number}: {pattern} is explained twice"
                found[kind, pattern] = number
    return found


def matching(text: str) -> list[tuple[str, str]]:
    """The patterns of the page that a message has, the most specific one first."""

    def expression(pattern: str) -> str:
        return ".+?".join(map(re.escape, pattern.split(GAP))).replace(r"\ ", r"\s+")

    patterns = [p for p in documented() if re.fullmatch(rf"(?:.*?: )?{expression(p[1])}(?: \(.*\))?", text, re.DOTALL)]
    return sorted(patterns, key=lambda p: -len(p[1].replace(GAP, "")))


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return error_messages.found().messages


def test_every_place_that_raises_is_read() -> None:
    found = error_messages.found()
    assert found.open_ends == [], "neither a text nor an entry of PASSED_ON"
    # As many as a reader of the sources would expect: the scanners have not gone blind.
    assert len(found.messages) > 400
    rust = [m for m in found.messages if ".rs" in m.where]
    assert len(rust) > 200 and {m.kind for m in rust} >= {"FormatError", "CorruptError", "DeviceError", "InputError"}


def test_every_class_that_is_raised_is_known() -> None:
    # Functions that return errors, which are read where they make them.
    functions = {"_missing", "_no_such_gpu", "_replaced", "_fetched", "no_such_shape", "nothing_to_compress",
                 "missing", "_nothing", "_adapter", "_not_there", "_unreachable", "_unwritable", "unwritten",
                 "refused", "folder_exists", "_not_safetensors"}  # fmt: skip
    # A signal is no error, and the parser tells itself what it refuses: the command catches both.
    known = {*CLASSES, *error_messages.HELPERS, *functions, "NotImplementedError", "Terminated", "Refused"}
    for path in (ROOT / "pyext/python/wcodec").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func).rpartition(".")[2]
                assert name in known, f"{path.name}:{node.lineno}: {name}"


def test_what_no_rule_finds_is_still_in_the_sources() -> None:
    for place, code, _, _ in error_messages.ELSEWHERE:
        assert code in (ROOT / place).read_text(encoding="utf-8"), f"{place}: {code}"


def test_what_is_passed_on_still_is() -> None:
    raw = error_messages.Found()
    error_messages.python_messages(raw)
    error_messages.rust_messages(raw)
    places = {(place, code) for place, _, code in raw.open_ends}
    assert set(error_messages.PASSED_ON) <= places
    texts = {m.text for m in raw.messages}
    for _, again in error_messages.PASSED_ON.values():
        assert set(again) <= texts
    assert set(error_messages.NEVER) <= texts


# Texts that say what to do without parentheses, and why others have nothing to say.
WITHOUT_ADVICE = {
    "level must be a whole number, not …",
    "… must be a whole number of at least …, not …",
    "… must be whole numbers of at least 1, not …",
    "new_tokens must be at least 2: the first one belongs to the prompt's time",
    "move both to one device, or their speeds say nothing about each other",
    "names of tensors must be text and not empty, not …",
    # Messages of torch and others follow, and their advice with them.
    "torch: …",
    "counted from row … on, …",
    # Containers never get so large, and metadata is checked before.
    "the container would be larger than 2^64 bytes",
    "metadata cannot be written: …",
}


def test_every_message_says_what_to_do(messages: list[Message]) -> None:
    bugs = {text for kind, text in documented() if kind == "*"}
    errors = [m for m in messages if m.kind.endswith("Error") and m.text not in bugs]
    silent = {m.text: m for m in errors if not m.advice}
    missing = [m for text, m in silent.items() if text not in WITHOUT_ADVICE]
    assert not missing, "\n".join(f"{m.kind}: `{m.text}` ({m.where})" for m in missing)
    assert set(silent) >= WITHOUT_ADVICE


def test_every_message_is_explained(messages: list[Message]) -> None:
    known = documented()
    missing = [m for m in messages if (m.kind, m.text) not in known and ("*", m.text) not in known]
    assert not missing, "\n".join(f"{m.kind}: `{m.text}` ({m.where})" for m in missing)


def test_every_explained_message_exists(messages: list[Message]) -> None:
    kinds = {(m.kind, m.text) for m in messages}
    texts = {m.text for m in messages}
    stale = [p for p in documented() if p not in kinds and not (p[0] == "*" and p[1] in texts)]
    assert not stale, "\n".join(f"line {documented()[p]}: {p[0]}: `{p[1]}`" for p in stale)


@pytest.mark.parametrize("page", [PAGE, GPU_PAGE], ids=lambda page: page.name)
def test_every_row_of_messages_has_all_cells(page: Path) -> None:
    columns = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            assert len(cells) == columns, f"line {number}: {len(cells)} cells of {columns}"
            assert all(cells) or cells[0].startswith("`") and not cells[-1] and page == GPU_PAGE, f"line {number}"
        elif line.startswith("|---"):
            columns = line.count("|") - 1


def test_the_drivers_advice_is_explained() -> None:
    source = (ROOT / "codec/src/gpu/driver.rs").read_text(encoding="utf-8")
    body = source[source.index("fn advice_for") : source.index("#[cfg(test)]")]
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    begin = page.index(f"### {NOT_OURS}")
    section = page[begin : page.index(" ## ", begin)].lower()
    # Text before the first comma, colon or semicolon is on the page in the same words.
    for token in error_messages.tokens(body):
        if token.kind == "text":
            words = re.sub(r"\s+", " ", re.split(r"[:;,]", token.text)[0]).replace("`", "").lower()
            assert words in section.replace("`", ""), words


def test_every_device_error_is_in_the_gpu_page(messages: list[Message]) -> None:
    page = GPU_PAGE.read_text(encoding="utf-8")
    missing = {m.text for m in messages if m.kind == "DeviceError" and f"`{m.text}`" not in page}
    known = {pattern for kind, pattern in documented() if kind == "*"}
    assert not missing - known


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
    "cannot open the file: …": lambda: wcodec.open("nope.wcodec"),
    "the file is empty": lambda: wcodec.open(_write(b"")),
    "the file has only … bytes": lambda: wcodec.open(_write(_container()[:20])),
    "the header is empty: writing this file was interrupted": lambda: wcodec.open(_write(bytes(100))),
    "this is …, not a wcodec container": lambda: wcodec.open("model/model.safetensors"),
    "not a wcodec container: the magic bytes are wrong": lambda: wcodec.open(b"?" * 100),
    "the file has … bytes, and should have …": lambda: wcodec.open(_write(_container()[:-100])),
    "the header's hash does not match": lambda: wcodec.open(_write(_flipped(20))),
    "the index's hash does not match": lambda: wcodec.open(_write(_flipped(-5))),
    "the hash of a segment of … bytes does not match": lambda: wcodec.open(_write(_damaged()))[
        "lm_head.weight"
    ].numpy(),
    "the output exists already": lambda: wcodec.compress("model", "model.wcodec", progress=False),
    "the output is a folder": lambda: wcodec.compress("model", ".", progress=False),
    "the output is …, which is not replaced": lambda: (
        Path("link").symlink_to("model.wcodec"),
        wcodec.compress("model", "link", overwrite=True, progress=False),
    ),
    "the output is one of the files that are read": lambda: wcodec.decompress(
        "model.wcodec", "model.wcodec", overwrite=True, progress=False
    ),
    "the ending .… is not that of …": lambda: wcodec.compress("model", "new.gguf", progress=False),
    "there are no tensors to encode": lambda: wcodec.save_file({}, "new.wcodec"),
    "cannot create a file in its folder: …": lambda: wcodec.compress("model", "no/new.wcodec", progress=False),
    "no .safetensors file in the folder": lambda: wcodec.compress(".", "new.wcodec", progress=False),
    "a safetensors header of … bytes does not fit the file": lambda: wcodec.compress(
        _write(b"version https://git-lfs", "a.safetensors"), "new.wcodec", progress=False
    ),
    "unknown … '…'": lambda: wcodec.compress("model", "new.wcodec", coder="lz4", progress=False),
    "… at row …, column …": lambda: _raw("w", np.full((64, 64), np.nan, np.float32)),
    "the pattern '…' matches no tensor": lambda: _raw("w", np.ones((64, 64), np.float32), include="v*"),
    "blocks of scales have a multiple of 16 columns, not …": lambda: _raw(
        "w", np.ones((64, 64), np.float32), scale="block", block=17
    ),
    "tile width … is not a multiple of 64 from 64 to 1024": lambda: _raw("w", np.ones((64, 64), np.float32), tile=65),
    "dtype … cannot be stored": lambda: _raw("w", np.array(["a"])),
    "no tensor '…'": lambda: wcodec.open("model.wcodec")["lm_heat.weight"],
    "cannot decode to device …": lambda: wcodec.load_file("model.wcodec", device="tpu"),
    "cannot decode to dtype …": lambda: wcodec.load_file("model.wcodec", dtype="int3"),
    "zstd is not used at level …": lambda: _raw("w", np.ones((64, 64), np.float32), coder="zstd", level=99),
    "a tensor of scheme … has no scales": lambda: wcodec.open("model.wcodec")["model.norm.weight"].scales(),
    "the container is closed": lambda: _closed()["lm_head.weight"].numpy(),
    "the layer has … x … symbols, not …": lambda: wcodec.Decoder().decode_layer(
        wcodec.Encoder().encode_layer(np.ones((2, 3), np.int8))[0], rows=3
    ),
    "a legacy blob of … bytes": lambda: wcodec.Decoder().decode_layer(b"DTSZ"),
    "this container does not hold a single layer": lambda: wcodec.Decoder().decode_layer(_container()),
    "a layer is a 2-D int8 array, not … of shape …": lambda: wcodec.Encoder().encode_layer(np.ones(3)),
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


def _check(error: wcodec.WcodecError, pattern: str) -> None:
    """The section of the error's class explains it, best by that pattern."""
    classes = {CLASSES.get(c.__name__) for c in type(error).__mro__}
    found = [known for kind, known in matching(str(error)) if kind in classes]
    assert found and found[0] == pattern, f"{type(error).__name__}: {error}: {found}"


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("pattern", REAL)
def test_real_errors_are_found(pattern: str) -> None:
    with pytest.raises(wcodec.WcodecError) as raised:
        REAL[pattern]()
    _check(raised.value, pattern)
    # Advice is in parentheses.
    assert re.search(r" \(.+\)", str(raised.value)), raised.value


@pytest.mark.usefixtures("place")
def test_the_error_of_a_machine_without_a_gpu_is_found() -> None:
    if wcodec.doctor().devices:
        pytest.skip("there is a GPU")
    with pytest.raises(wcodec.DeviceError) as raised:
        wcodec.verify("model.wcodec", device="cuda")
    found = matching(str(raised.value))
    assert found and found[0][0] == "DeviceError"


@pytest.mark.usefixtures("place")
def test_errors_of_models_are_found() -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64))
    with pytest.raises(wcodec.InputError) as raised:
        wcodec.compress_(layers, exclude="*", progress=False)
    _check(raised.value, "nothing to compress in …: …")
    assert matching(str(raised.value).rpartition(": ")[2])[0] == ("Reason", "among exclude")
    wcodec.compress_(layers, progress=False)
    Path("bare").mkdir()
    shutil.copy("model/config.json", "bare")
    cases: dict[str, Callable[[], Any]] = {
        "nothing to compress in …: …": lambda: wcodec.compress_(layers, progress=False),
        "compress_ replaces layers of a model, and a … has none": lambda: wcodec.compress_(torch.nn.Linear(4, 4)),
        "compressed weights cannot be trained": lambda: layers[0].requires_grad_(),
        "the input has … features, and the layer takes …": lambda: layers(torch.zeros(1, 63)),
        "the input is …, and the layer computes in …": lambda: layers(torch.zeros(1, 64, dtype=torch.float16)),
        "a … has no config to save": lambda: wcodec.save_pretrained(layers, "out"),
        "… goes with residency 'auto', not with …": lambda: wcodec.load_model(
            "model", residency="host", vram_budget="3GB"
        ),
        "… must be a size, not …": lambda: wcodec.load_model("model", residency="auto", vram_budget="3G"),
        "there is no .wcodec and no .safetensors file in it": lambda: wcodec.load_model("bare"),
    }
    for pattern, case in cases.items():
        with pytest.raises(wcodec.WcodecError) as seen:
            case()
        _check(seen.value, pattern)
