"""Hostile files, configs and arguments: only WcodecError and OSError leave the package, a status the command."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from format_writer import Tensor, hex_hash, reseal, write_container
from hostile import (
    LOSSLESS_CONTENTS,
    LOSSLESS_EDITS,
    LOSSLESS_FORBIDDEN,
    STEERING,
    changed_index,
    forbidden_file,
    lossless_tensors,
    rate_tensors,
    raw,
    reindexed,
    resized,
)
from wcodec import cli

DIGITS = "9" * 5000
HUGE = 2**63


@contextlib.contextmanager
def only_ours() -> Iterator[None]:
    """Passes over the exceptions that may come."""
    try:
        yield
    except (wcodec.WcodecError, OSError) as error:
        # Also its text must be there.
        assert isinstance(str(error), str) and repr(error)


def command(*arguments: object) -> int:
    """The command within this process; whatever it prints, it is no traceback and no bug."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main([str(a) for a in arguments])
    assert "internal error" not in err.getvalue() and "Traceback" not in err.getvalue(), err.getvalue()
    assert status in (0, 1, 2)
    return status


def explore(path: Path, good: Path, out: Path) -> None:
    """All that can be asked of a file."""
    with only_ours():
        wcodec.verify(path, progress=False)
    with only_ours():
        wcodec.decompress(path, out / "x.safetensors", overwrite=True, progress=False)
    with only_ours():
        wcodec.load_file(path)
    for a, b in ((path, good), (good, path)):
        with only_ours():
            wcodec.compare(a, b)._repr_html_()
    with only_ours(), wcodec.open(path) as container:
        for ask in (repr, len, wcodec.Container._repr_html_, list, lambda c: (c.ratio, c.bits_per_weight, c.metadata)):
            with only_ours():
                ask(container)  # type: ignore[operator]
        with only_ours():
            container.model  # noqa: B018
        for name in [*list(container)[:4], "missing"]:
            calls: list[Callable[[wcodec.TensorEntry], object]] = [
                repr, wcodec.TensorEntry._repr_html_, wcodec.TensorInfo.to_dict,
                lambda e: e.numpy(), lambda e: e.numpy("float32"), lambda e: e.torch(), lambda e: e.torch("bfloat16"),
                lambda e: e.symbols(), lambda e: e.scales(), lambda e: e.numpy_rows(0, 1), lambda e: e.torch_rows(0, 1),
                lambda e: e._container.extract([e.name]),
            ]  # fmt: skip
            with only_ours():
                entry = container[name]
                for call in calls:
                    with only_ours():
                        call(entry)


# Values that stand in the place of others.
VALUES: list[Any] = [
    0, -1, 1, 3, 2**31, 2**40, HUGE - 1, HUGE, 2**64 - 1, 2**64, 10**400, 0.5, 1e308, float("nan"), None, True, "",
    "int8", "rans", STEERING, DIGITS, "\ud800", [], {}, [[]], [0, 0, "2d06800538d394c2"], {"a": {}}, [1] * 100, "BF16",
]  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Everything in a JSON document that can be something else, by what it is in and its key there."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        found += [(value, key), *places(part)]
    return found


def mutate(record: Any, random: random.Random) -> None:
    """Changes one to three things in a JSON document."""
    for _ in range(random.choice((1, 1, 2, 3))):
        holder, key = random.choice(places(record))
        way = random.random()
        if way < 0.15 and isinstance(holder, dict):
            del holder[key]
        elif way < 0.25 and isinstance(holder, dict):
            holder[random.choice(("extra", DIGITS, STEERING, ""))] = holder[key]
        elif way < 0.35 and isinstance(holder, list):
            holder.insert(0, holder[key])
        else:
            holder[key] = copy.deepcopy(random.choice(VALUES))


def text_of(record: Any) -> bytes:
    """JSON with characters as they are, halves of them as escapes."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small container of several kinds of tensors."""
    rng = np.random.default_rng(4)
    symbols = rng.integers(-9, 9, (1, 16, 64)).astype(np.int8)
    scales = np.ones(16, np.float32)
    tensors = [
        Tensor(
            "a.0.w",
            symbols,
            (16, 64),
            matrix=(1, 16, 64, 0),
            scales=scales,
            coder=coder,
            tile=64,
            bits=11,
            layout=layout,
        )
        for coder, layout in (("rans", "pair"),)
    ]
    tensors += [
        Tensor(
            "a.1.w", symbols, (16, 64), matrix=(1, 16, 64, 0), scales=scales, coder="zstd", chunk=512, filter="left"
        ),
        Tensor(
            "a.2.w", symbols, (16, 64), matrix=(1, 16, 64, 0), scales=scales, coder="huffman", layout="byte", tile=64
        ),
        raw("bias", 4),
        raw("empty", 0, shape=(0, 7)),
    ]
    path = tmp_path_factory.mktemp("good") / "good.wcodec"
    write_container(path, tensors, metadata={"m": "n"}, aliases={"tied": "a.0.w"})
    assert wcodec.verify(path, progress=False)
    return path


@pytest.fixture(scope="module")
def lossless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small container of several kinds of lossless tensors."""
    path = tmp_path_factory.mktemp("lossless") / "good.wcodec"
    tensors = lossless_tensors()
    write_container(path, tensors)
    assert wcodec.verify(path, progress=False)
    return path


@pytest.fixture(scope="module")
def rate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file with tensors of scheme rate, to be damaged."""
    path = tmp_path_factory.mktemp("rate") / "good.wcodec"
    write_container(path, rate_tensors())
    assert wcodec.verify(path, progress=False)
    return path


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["good", "lossless", "rate"])
def test_containers(kind: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    rng = random.Random(seed)
    good: Path = request.getfixturevalue(kind)
    data = good.read_bytes()
    begin = int.from_bytes(data[16:24], "little")
    for number in range(40):
        path = tmp_path / f"{number}.wcodec"
        if number % 4:
            index = json.loads(data[begin:])
            mutate(index, rng)
            text = text_of(index)
            head = data[:24] + len(text).to_bytes(8, "little") + data[32:64]
            path.write_bytes(reseal(head + data[64:begin] + text))
        else:
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 8)):
                damaged[rng.randrange(64, begin)] = rng.randrange(256)
            path.write_bytes(damaged[: rng.choice((len(damaged), rng.randrange(len(damaged))))])
        explore(path, good, tmp_path)
        for arguments in (["inspect"], ["inspect", "--json"], ["verify", "-q"], ["compare", good]):
            command(*arguments, path)
        path.unlink()


def refuses_one(path: Path) -> wcodec.WcodecError:
    """The error about the one tensor that is wrong, or about the whole file; the others decode to what they are."""
    expected = {t.name: t.data.tobytes() for t in lossless_tensors() if t.scheme != "int8"}
    found: dict[str, wcodec.WcodecError] = {}
    try:
        container = wcodec.open(path)
    except wcodec.FormatError as error:
        return error
    with container:
        for name, entry in container.items():
            try:
                data = entry.numpy().tobytes()
            except (wcodec.FormatError, wcodec.CorruptError, wcodec.UnsupportedError) as error:
                found[name] = error
                assert error.tensor == name
            else:
                assert data == expected.get(name, data)
    report = wcodec.verify(path, progress=False)
    assert len(found) == 1 and not report.ok
    return next(iter(found.values()))


@pytest.mark.parametrize(("place", "value", "_reason"), LOSSLESS_EDITS, ids=lambda value: str(value)[:40])
def test_lossless_tensors_that_contradict_themselves(
    place: str, value: Any, _reason: str, lossless: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.wcodec"
    path.write_bytes(reindexed(lossless.read_bytes(), changed_index(place, value)))
    assert len(str(refuses_one(path))) < 2000
    explore(path, lossless, tmp_path)
    assert command("verify", "-q", path) != 0
    command("inspect", "--json", path)


@pytest.mark.parametrize(("role", "edit", "_reason"), LOSSLESS_CONTENTS)
def test_lossless_tensors_of_wrong_contents(
    role: str, edit: Callable[[bytes], bytes], _reason: str, lossless: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.wcodec"
    write_container(path, lossless_tensors(), edit_segment=lambda r, data: edit(data) if r == role else data)
    error = refuses_one(path)
    assert isinstance(error, wcodec.CorruptError) and role.startswith(error.tensor or "?")
    explore(path, lossless, tmp_path)


@pytest.mark.parametrize("what", LOSSLESS_FORBIDDEN)
def test_lossless_tensors_that_no_writer_may_write(what: str, lossless: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.wcodec"
    path.write_bytes(forbidden_file(what))
    with wcodec.open(path) as container:
        with pytest.raises((wcodec.FormatError, wcodec.UnsupportedError)):
            container["w"].numpy()
        assert container["r"].numpy().tolist() == [0, 1]
    assert not wcodec.verify(path, progress=False).ok
    explore(path, lossless, tmp_path)


def test_more_runs_than_elements_have_bits(lossless: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.wcodec"
    edit = changed_index("tensors/0/planes/1/fields", [[8, 1]] * 100_000)
    path.write_bytes(reindexed(lossless.read_bytes(), edit))
    assert len(str(refuses_one(path))) < 2000


def test_lossless_tensors_without_end(lossless: Path, tmp_path: Path) -> None:
    """More planes than elements have bits, and sizes that no data support."""
    path = tmp_path / "x.wcodec"
    plane = {"coder": "raw", "hash": hex_hash(b""), "data": [0, 0, hex_hash(b"")], "fields": [[0, 8]]}
    planes = [plane] * 10_000
    path.write_bytes(reindexed(lossless.read_bytes(), lambda index: index["tensors"][0]["planes"].extend(planes)))
    assert len(str(refuses_one(path))) < 2000
    for place, shape in ((0, (1 << 20, 1 << 20)), (1, (1 << 19, 1 << 20)), (2, (1, 1 << 40)), (0, (1 << 30, 1 << 30))):
        path.write_bytes(reindexed(lossless.read_bytes(), resized(place, shape)))
        with wcodec.open(path) as container, pytest.raises(wcodec.WcodecError):
            container[list(container)[place]].numpy()
        explore(path, lossless, tmp_path)


SHAPES: list[tuple[int, ...]] = [
    (1,) * 33, (1,) * 65, (1,) * 200, (0,) * 65, (2**62, 0, 8), (0, HUGE - 1), (0, HUGE), (0, 2**64 - 1),
    (HUGE, HUGE, 0), (2**40, 2**40, 0),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_that_no_array_has(shape: tuple[int, ...], tmp_path: Path, good: Path) -> None:
    count = 0 if 0 in shape else 1
    path = tmp_path / "x.wcodec"
    write_container(path, [raw("t", count, shape=shape)])
    explore(path, good, tmp_path)
    try:
        container = wcodec.open(path)
    except wcodec.FormatError:
        return
    entry = container["t"]
    assert entry.shape == shape
    for library, call in (("NumPy", entry.numpy), ("torch", entry.torch)):
        try:
            assert tuple(call().shape) == shape
        except wcodec.UnsupportedError as error:
            assert f"{library} has no arrays of shape" in str(error) and ".safetensors" in str(error)
    for arguments in (["inspect"], ["verify"], ["compare", path], ["decode", "-o", tmp_path / "y", "--overwrite"]):
        command(*arguments, path)


def test_names_of_thousands_of_digits(tmp_path: Path, good: Path, plt: Any) -> None:
    names = [f"layers.{DIGITS}.w", f"layers.{DIGITS}", DIGITS, f"{DIGITS}.{DIGITS}", "layers.²", "layers.٣.w"]
    path = tmp_path / "x.wcodec"
    write_container(path, [raw(name) for name in names])
    explore(path, good, tmp_path)
    wcodec.open(path).plot.ratio()
    for sort in ("name", "file", "shape", "original"):
        assert command("inspect", path, "--sort", sort) == 0
    from wcodec._models.find import group_of

    assert group_of(f"layers.{DIGITS}.w") == f"layers.{DIGITS}"
    with pytest.raises(wcodec.InputError):
        wcodec.load_file(path, device=f"cuda:{DIGITS}")


W = {"w": np.ones((4, 64), np.float32)}
LONE = "a\ud800b"
ODD: dict[str, Callable[[], object]] = {
    "name": lambda: wcodec.compress_to_bytes({LONE: W["w"]}),
    "metadata": lambda: wcodec.compress_to_bytes(W, metadata={"a": LONE}),
    "metadata's key": lambda: wcodec.compress_to_bytes(W, metadata={LONE: "a"}),
    "metadata of another kind": lambda: wcodec.compress_to_bytes(W, metadata=5),
    "metadata of bytes": lambda: wcodec.compress_to_bytes(W, metadata={"a": b"b"}),
    "pattern": lambda: wcodec.compress_to_bytes(W, include=LONE),
    "patterns of another kind": lambda: wcodec.compress_to_bytes(W, skip=5),
    "path": lambda: wcodec.open(LONE),
    "path to write": lambda: wcodec.compress(W, LONE, progress=False),
    "path of a source": lambda: wcodec.compress(LONE, "x", progress=False),
    "path with a zero": lambda: wcodec.open("a\0b"),
    "path of another kind": lambda: wcodec.open(5),
    "path of bytes": lambda: wcodec.verify(b"x"),
    "source of another kind": lambda: wcodec.compress(None, "x", progress=False),
    "reference of another kind": lambda: wcodec.verify("x", against=5),
    "scheme": lambda: wcodec.compress_to_bytes(W, scheme=LONE),
    "coder of another kind": lambda: wcodec.compress_to_bytes(W, coder=[]),
    "threads": lambda: wcodec.compress_to_bytes(W, threads=10**5000),
    "block": lambda: wcodec.compress_to_bytes(W, scale="block", block=10**5000),
    "block without its scale": lambda: wcodec.compress_to_bytes(W, block=10**5000),
    "level": lambda: wcodec.compress_to_bytes(W, level=10**5000),
    "level of another kind": lambda: wcodec.compress_to_bytes(W, level="3"),
    "bits of a table": lambda: wcodec.compress_to_bytes(W, table_bits=2**40),
    "frame": lambda: wcodec.compress_to_bytes(W, coder="zstd", frame=2**62),
    "tile": lambda: wcodec.compress_to_bytes(W, tile=2**62),
    "array of one": lambda: wcodec.compress_to_bytes(W, tile=np.array([64, 64])),
    "isa": lambda: wcodec.Decoder(isa=LONE).decode_layer(wcodec.Encoder().encode_layer(np.ones((2, 2), np.int8))[0]),
    "device": lambda: wcodec.load_file("x", device=f"cuda:{DIGITS}"),
    "framework": lambda: wcodec.load_file("x", framework=LONE),
    "model": lambda: wcodec.load_model(LONE),
    "model of another kind": lambda: wcodec.load_model(5),
    "model with a zero": lambda: wcodec.load_model("a\0b"),
    "vram": lambda: wcodec.load_model("x", residency="auto", vram_budget=-(10**5000)),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_arguments(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((wcodec.WcodecError, OSError)) as caught:
        ODD[what]()
    assert len(str(caught.value)) < 2000
    assert os.listdir(tmp_path) == []


def test_odd_questions(good: Path) -> None:
    with wcodec.open(good) as container:
        for name in (LONE, 5, None, b"bias", ["bias"], (), object()):
            assert name not in container
            with pytest.raises(wcodec.TensorNotFoundError):
                container[name]  # type: ignore[index]
            with pytest.raises(wcodec.TensorNotFoundError):
                container.extract([name])  # type: ignore[list-item]
        entry = container["bias"]
        for rows in ((0.5, 1), ("a", "b"), (None, 1), (0, 10**5000), ([0], 1), (True, 2), (-1, 0)):
            for call in (entry.numpy_rows, entry.torch_rows):
                with pytest.raises(wcodec.InputError, match="it has 4"):
                    call(*rows)  # type: ignore[arg-type]
        assert entry.numpy_rows(np.int64(0), np.int8(2)).size == 2
        for dtype in (LONE, 5, object, "float8", np.dtype("int8")):
            with pytest.raises(wcodec.InputError):
                entry.numpy(dtype)  # type: ignore[arg-type]


def test_odd_arguments_of_the_command(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lone = os.fsdecode(b"\xff")
    for arguments in (
        ["inspect", good, "--filter", lone], ["inspect", good, "--filter", "[" * 500], ["inspect", "a\0b"],
        ["inspect", lone], ["encode", lone, "-o", lone], ["encode", good, "-o", "x", "--level", DIGITS],
        ["encode", good, "-o", "x", "--threads", DIGITS], ["verify", good, "--device", f"cuda:{DIGITS}"],
        ["generate", lone, "--prompt", lone], ["roundtrip", lone], ["compare", lone, lone],
        ["decode", good, "-o", "a\0b"], ["generate", good, "--prompt", "x", "--cache", DIGITS],
        ["bench", good, "--batch", DIGITS],
    ):  # fmt: skip
        command(*arguments)
    assert os.listdir(tmp_path) == []


# Models


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64, "dtype": "float32",
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "hidden_act": "silu", "tie_word_embeddings": False,
    "pad_token_id": 1, "id2label": {"0": "a"}, "auto_map": {"AutoModel": "x.Y"}, "attn_implementation": "sdpa",
    "quantization_config": {
        "quant_method": "wcodec", "file": "model.wcodec", "residency": "device", "cache": 0, "scheme": "int8",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as save_pretrained writes it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("tiny") / "model"
    given = {k: v for k, v in CONFIG.items() if k not in ("quantization_config", "auto_map", "model_type")}
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**given)).eval()
    wcodec.compress_(model, progress=False)
    wcodec.save_pretrained(model, place)
    (place / "config.json").write_text(json.dumps({**CONFIG, "transformers_weights": "model.wcodec"}))
    (place / "generation_config.json").write_text('{"max_length": 20, "eos_token_id": 2, "do_sample": false}')
    assert wcodec.load_model(place)
    return place


@pytest.mark.parametrize("seed", range(6))
def test_configs(seed: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place = tmp_path / "model"
    shutil.copytree(folder, place)
    rng = random.Random(seed)
    for _ in range(25):
        config = json.loads((folder / "config.json").read_text())
        mutate(config, rng)
        (place / "config.json").write_text(json.dumps(config))
        with only_ours():
            wcodec.load_model(place)


TEXTS = [
    b"", b"{", b"[]", b"5", b'"x"', b"null", b"\xff\xfe", b'\xef\xbb\xbf{"model_type": "llama"}', b"{}", b"[" * 100_000,
    b'{"a":' * 100_000, b'{"model_type": ' + b"9" * 5000 + b"}", b'{"model_type": NaN}',
    b'{"model_type": "llama", "a": 1e999}',
    b'{"model_type": "\\ud800"}', b'{"model_type": null}', b'{"model_type": []}', b'{"model_type": {}}', b"\0" * 100,
    b'{"model_type": "no such model"}', b'{"model_type": "bert"}',
    b'{"model_type": "llama", "num_hidden_layers": 10000000000}',
    b'{"model_type": "qwen2", "num_hidden_layers": 10000000000}',
    b'{"model_type": "llama", "num_hidden_layers": 99999}',
    b'{"configuration_files": ["config.4.0.0.json"]}', b'{"configuration_files": [5], "model_type": "llama"}',
    b'{"configuration_files": 5}', b'{"model_type": "llama", "auto_map": 5}', b'{"auto_map": {"AutoConfig": 5}}',
    b'{"model_type": "llama", "quantization_config": {"quant_method": "wcodec", "file": ["x"]}}',
    b'{"model_type": "llama", "quantization_config": {"quant_method": "wcodec", "file": "a\\u0000b"}}',
    b'{"model_type": "llama", "quantization_config": {"quant_method": "wcodec", "file": ".."}}',
    b'{"model_type": "llama", "quantization_config": {"quant_method": "wcodec", "residency": []}}',
    b'{"model_type": "llama", "quantization_config": {"quant_method": "wcodec", "cache": {}}}',
    b'{"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": "x"}}',
    b'{"model_type": "llama", "dtype": "float8_e4m3fn"}', b'{"model_type": "llama", "dtype": "hub"}',
]  # fmt: skip


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_texts_of_configs(name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place = tmp_path / "model"
    shutil.copytree(folder, place)
    for text in TEXTS:
        (place / name).write_bytes(text)
        try:
            wcodec.load_model(place)
        except wcodec.WcodecError as error:
            # The file or its folder is named.
            assert str(place) in str(error), error


def test_texts_of_configs_at_the_command(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place = tmp_path / "model"
    shutil.copytree(folder, place)
    for text in TEXTS[::5]:
        (place / "config.json").write_bytes(text)
        assert command("generate", place, "--prompt", "x") == 2
        assert command("bench", place) == 2
    shutil.copy(folder / "config.json", place)
    (place / "generation_config.json").write_text('{"penalty_alpha": 0.6, "top_k": 4, "num_beams": -3}')
    command("bench", place, "--batch", 1, "--prompt-tokens", 4, "--new-tokens", 2, "--repeats", 1, "-q")


def test_folders(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rng = random.Random(9)
    for number in range(60):
        place = tmp_path / str(number)
        shutil.copytree(folder, place)
        if number % 3 == 0:
            # An ordinary checkpoint, in shards or with an index that is not one.
            wcodec.decompress(place / "model.wcodec", place / "model.safetensors", progress=False)
            (place / "model.wcodec").unlink()
            shards = {
                "weight_map": {"model.norm.weight": "model.safetensors", "x": "model.safetensors"},
                "metadata": {},
            }
            mutate(shards, rng)
            (place / "model.safetensors.index.json").write_text(json.dumps(shards))
        victim = place / rng.choice(("model.wcodec", "model.safetensors", "config.json"))
        if victim.exists():
            data = bytearray(victim.read_bytes())
            for _ in range(rng.randint(1, 9)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            victim.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        with only_ours():
            wcodec.load_model(place)
        shutil.rmtree(place)


def test_the_config_of_a_container(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rng = random.Random(12)
    for number in range(40):
        config = json.loads((folder / "config.json").read_text())
        mutate(config, rng)
        path = tmp_path / f"{number}.wcodec"

        def edit(index: dict[str, Any], config: Any = config, number: int = number) -> None:
            index["model"] = {"config": config} if number % 5 else rng.choice(VALUES[:-1])

        try:
            write_container(path, [raw("t")], edit_index=edit)
        except UnicodeEncodeError:
            continue
        with only_ours():
            wcodec.load_model(path)
        with only_ours():
            wcodec.open(path).model  # noqa: B018


def test_weights_that_fit_nothing(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "model"
    shutil.copytree(folder, place)
    with wcodec.open(folder / "model.wcodec") as container:
        weights = {name: entry.numpy() for name, entry in container.items()}
    for change in (
        {f"model.layers.{DIGITS}.mlp.up_proj.weight": np.ones((2, 2), np.float32)},
        {"model.layers.0.self_attn.q_proj.weight": np.float32(1)},
        {"model.layers.0.self_attn.q_proj.weight": np.ones((64, 64, 1), np.float32)},
        {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones((2, 3), np.float32)},
        {"model.rotary_emb.inv_freq": np.ones((5,), np.float32)},
        {"\\g<9>.(": np.ones(3), "model..": np.ones(3), ".": np.ones(3)},
    ):
        wcodec.save_file({**weights, **change}, place / "model.wcodec")
        with only_ours():
            wcodec.load_model(place)


def test_experts_that_do_not_fit_together() -> None:
    torch = pytest.importorskip("torch")
    from wcodec._models.names import Match, check

    layer = torch.nn.Module()
    layer.stack = torch.nn.Parameter(torch.empty(2, 4, 8))
    layer.register_buffer("table", torch.zeros(3))
    shapes = {"a": (2, 8), "b": (2, 8), "c": (2, 9), "t": (4,)}
    fits = Match({}, {"stack": {0: ("a", "b"), 1: ("b", "a")}})
    check(layer, fits, shapes.__getitem__, None)
    for found in (
        Match({}, {"stack": {0: ("a", "b"), 1: ("a", "c")}}),
        Match({"table": "t"}, {"stack": {0: ("a", "b"), 1: ("b", "a")}}),
    ):
        with pytest.raises(wcodec.InputError, match="of another shape"):
            check(layer, found, shapes.__getitem__, None)
