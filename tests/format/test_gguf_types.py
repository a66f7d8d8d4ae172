"""GGUF's types as numbers, bit for bit as the package ``gguf`` makes them; files of them encoded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import wcodec
import xxhash
from command import Cli, document
from gguf_files import BLOCKS, DATA, KINDS, Tensor, blocks, gguf_bytes, numbers
from wcodec._file.gguf import GgufFile, is_gguf

NAMES = json.loads((DATA / "types.json").read_text())


def test_the_data_has_every_type_that_is_decoded() -> None:
    file = GgufFile(DATA / "types.gguf")
    assert {tensor.kind for tensor in file.tensors} == set(KINDS) and set(NAMES) == set(BLOCKS)
    assert all(tensor.decoded for tensor in file.tensors) and file.architecture == "llama"
    for tensor in file.tensors:
        if tensor.kind in BLOCKS:
            digest = xxhash.xxh3_64_intdigest(file.read(tensor.name, "F32").tobytes())
            assert f"{digest:016x}" == NAMES[tensor.kind], tensor.kind


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_random_blocks_are_what_the_package_makes_of_them(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(7)
    shape = (5, 3, 3 * BLOCKS[kind].elements)
    data = blocks(kind, shape, rng)
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({}, [numbers("first", rng.normal(size=(3,)).astype(np.float32)),
                                     Tensor("w", kind, shape, data)]))  # fmt: skip
    found = GgufFile(path).read("w", "F32").view(np.float32)
    rows = np.frombuffer(data, np.uint8).reshape(-1, len(data) // (shape[0] * shape[1]))
    expected = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind]).reshape(-1)
    # Infinities of MXFP4's largest scales among them.
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "TQ1_0", "TQ2_0", "MXFP4"])
def test_what_the_package_quantizes_comes_back(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    weights = np.random.default_rng(3).normal(0, 0.02, (24, 512)).astype(np.float32)
    of = gguf.GGMLQuantizationType[kind]
    stored = gguf.quantize(weights, of)
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({}, [Tensor("w", kind, weights.shape, stored.tobytes())]))
    found = GgufFile(path).read("w", "F32").view(np.float32).reshape(weights.shape)
    np.testing.assert_array_equal(found, gguf.dequantize(stored, of))
    assert np.abs(found - weights).mean() < 0.02


def test_a_container_has_the_file_s_names_and_values(tmp_path: Path, run: Cli) -> None:
    rng = np.random.default_rng(5)
    halves, norm = rng.normal(size=(32, 64)).astype(np.float16), rng.normal(size=64).astype(np.float32)
    quantized = blocks("Q4_K", (32, 512), rng)
    path, out = tmp_path / "m.gguf", tmp_path / "m.wcodec"
    path.write_bytes(gguf_bytes({"general.architecture": "llama", "tokenizer.ggml.model": "gpt2"}, [
        Tensor("blk.0.ffn_up.weight", "Q4_K", (32, 512), quantized),
        numbers("blk.0.attn_q.weight", halves), numbers("output_norm.weight", norm),
    ]))  # fmt: skip
    assert is_gguf(path) and not is_gguf(tmp_path) and not is_gguf({"w": norm})
    wcodec.compress(path, out, scheme="lossless", progress=False)
    with wcodec.open(out) as container:
        assert list(container) == ["blk.0.ffn_up.weight", "blk.0.attn_q.weight", "output_norm.weight"]
        assert container.metadata["general.architecture"] == "llama"
        assert not any(key.startswith("tokenizer.") for key in container.metadata)
        entry = container["blk.0.ffn_up.weight"]
        assert (
            entry.dtype == "BF16"
            and entry._bytes(None, None).tobytes() == GgufFile(path).read("blk.0.ffn_up.weight", "BF16").tobytes()
        )
        assert np.array_equal(container["blk.0.attn_q.weight"].numpy(), halves)
        assert np.array_equal(container["output_norm.weight"].numpy(), norm)
    assert wcodec.verify(out, path, progress=False).ok
    status, text, _ = run("encode", path, "-o", out, "--overwrite", "--quiet", "--json")
    assert status == 0 and len(document(text, "encode")["tensors"]) == 3
    status, text, _ = run("encode", path, "-o", out, "--overwrite")
    assert status == 0 and "m.gguf is quantized already" in text and "adds to its error" in text
    # A file without blocks loses what any loses, and nothing is said.
    path.write_bytes(gguf_bytes({}, [numbers("w", halves)]))
    status, text, _ = run("encode", path, "-o", out, "--overwrite")
    assert status == 0 and "quantized already" not in text


def test_files_that_cannot_be_encoded_say_why(tmp_path: Path, run: Cli) -> None:
    path, out = tmp_path / "m.gguf", tmp_path / "m.wcodec"
    path.write_bytes(gguf_bytes({}, [Tensor("known", "Q8_0", (2, 32), bytes(68)), Tensor("w", 77, (4,), bytes(16))]))
    status, _, error = run("encode", path, "-o", out)
    assert status == 2 and "tensor 'w'" in error and "type 77, which is not decoded" in error
    status, _, _ = run("encode", path, "-o", out, "--skip", "w")
    assert status == 0 and list(wcodec.open(out)) == ["known"]
    path.write_bytes(gguf_bytes({"split.count": 2}, [Tensor("w", "Q8_0", (2, 32), bytes(68))]))
    status, _, error = run("encode", path, "-o", out, "--overwrite")
    assert status == 2 and "part 1 of 2 of a split GGUF file" in error and "llama-gguf-split --merge" in error
    path.write_bytes(gguf_bytes({}, [Tensor("w", "Q8_0", (64, 32), bytes(64 * 34))])[:-900])
    status, _, error = run("encode", path, "-o", out, "--overwrite")
    assert status == 2 and "bytes of it are missing" in error and "download it again" in error
