"""Single layers: containers and legacy blobs."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import wcodec


def layer(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.clip(np.rint(rng.standard_t(6, shape) * 22), -127, 127).astype(np.int8)


@pytest.mark.parametrize("coder", ["rans", "huffman", "zstd", "raw"])
@pytest.mark.parametrize("layout", ["pair", "byte"])
@pytest.mark.parametrize("shape", [(64, 512), (1, 1), (17, 65), (0, 8), (8, 0), (3, 20_000)])
def test_round_trip(coder: str, layout: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    symbols = layer(rng, shape)
    data, stats = wcodec.Encoder(coder, layout=layout).encode_layer(symbols)
    assert (stats.rows, stats.cols, stats.original_bytes, stats.stored_bytes) == (*shape, symbols.size, len(data))
    decoded, got = wcodec.Decoder().decode_layer(data, *shape)
    assert decoded.dtype == np.int8 and np.array_equal(decoded, symbols) and got.format == "container"


def test_all_byte_values(rng: np.random.Generator) -> None:
    symbols = rng.integers(-128, 128, (64, 256)).astype(np.int8)
    for coder in ("rans", "huffman", "zstd", "raw"):
        for fmt in ("container", "legacy"):
            encoder = wcodec.Encoder(None if fmt == "legacy" else coder, format=fmt)
            assert np.array_equal(wcodec.Decoder().decode_layer(encoder.encode_layer(symbols)[0])[0], symbols)


def test_legacy_blob(rng: np.random.Generator) -> None:
    zstandard = pytest.importorskip("zstandard")
    symbols = layer(rng, (30, 50))
    data, stats = wcodec.Encoder(format="legacy").encode_layer(symbols)
    header = struct.unpack("<IIIIIB", data[:21])
    assert header == (0x5A535444, 30, 50, 1500, len(data) - 21, 0) and stats.format == "legacy"
    assert zstandard.ZstdDecompressor().decompress(data[21:]) == symbols.tobytes()
    decoded, got = wcodec.Decoder().decode_layer(memoryview(data), 30, 50)
    assert np.array_equal(decoded, symbols) and got.format == "legacy"
    for damaged in (data[:20], data[:-1], data[:20] + b"\1" + data[21:], data + b"x"):
        with pytest.raises(wcodec.WcodecError):
            wcodec.Decoder().decode_layer(damaged)


def test_views_and_wrong_input(rng: np.random.Generator) -> None:
    symbols = layer(rng, (40, 90))
    encoder, decoder = wcodec.Encoder(), wcodec.Decoder()
    for view in (symbols.T, symbols[::3, ::2], np.asfortranarray(symbols)):
        assert np.array_equal(decoder.decode_layer(encoder.encode_layer(view)[0])[0], view)
    for wrong in (symbols.astype(np.int16), symbols[0], symbols.astype(np.uint8), [[1, 2]], None):
        with pytest.raises(wcodec.InputError, match="2-D int8"):
            encoder.encode_layer(wrong)
    data, _ = encoder.encode_layer(symbols)
    with pytest.raises(wcodec.InputError, match="40 x 90"):
        decoder.decode_layer(data, 90, 40)
    with pytest.raises(wcodec.InputError, match="zstd"):
        wcodec.Encoder("rans", format="legacy")
    with pytest.raises(wcodec.InputError, match="format"):
        wcodec.Encoder(format="zip")
    with pytest.raises(wcodec.InputError, match="layer"):
        decoder.decode_layer(wcodec.compress_to_bytes({"w": np.zeros((2, 2), np.float32)})[0])
    assert repr(encoder) == "Encoder(coder='huffman', format='container')" and "verify=True" in repr(decoder)
