"""Layout `quad`: the Rust code against the reader and writer that were written from `codec/FORMAT.md` alone.

What it shares with other layouts is in the tests of those, where `quad` is one of the ways to code a plane.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from format_reader import FormatReader, FormatReaderError
from format_writer import VARIETIES, Tensor, write_container
from hostile import changed_index, reindexed, resized
from lossless_samples import VIEWS, read_checkpoint
from quad_samples import (
    BODIES,
    CUTS,
    PATCHES,
    QUAD_CONTENTS,
    QUAD_EDITS,
    QUAD_FORBIDDEN,
    SCHEMES,
    SHIFTS,
    TABLES,
    coded_body,
    forbidden_quad,
    quad,
    quad_tensors,
    table_of,
    values_of,
    with_body,
    with_chunk,
    with_patches,
    with_table,
    zeros,
)
from rate_mutations import cases, disagreement, refused
from rate_samples import same

from tests.released import reader_1_0


def weights() -> dict[str, np.ndarray]:
    """Weights that are worth a table of quads, and others."""
    rng = np.random.default_rng(8)
    made = {
        "plain": rng.standard_t(6, (48, 320)), "odd": rng.standard_t(6, (79, 319)), "zeros": np.zeros((20, 64)),
        "stack": rng.normal(size=(3, 31, 192)), "heavy": rng.standard_t(2, (64, 256)),
        "transposed": rng.normal(size=(191, 96)),
        "outliers": rng.normal(size=(64, 512)) * np.where(np.arange(512) % 97, 1, 30),
        "small": rng.normal(size=(3, 5)), "signs": rng.integers(0, 2, (64, 256)) - 0.5,
    }  # fmt: skip
    out: dict[str, np.ndarray] = {name: array.astype(np.float32) for name, array in made.items()}
    out |= {"half": out["odd"].astype(np.float16)}
    for spread in (0.5, 1, 2, 4, 8, 16):
        out[f"bytes {spread}"] = np.rint(rng.normal(0, spread, (48, 320))).astype(np.int8)
    return out


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "int8"}, {"scheme": "int8", "scale": "block"},
        {"scheme": "int8", "scale": "tensor", "table_bits": 9},
        *({"scheme": "rate", "bits": bits, "trellis": bits % 1 > 0} for bits in (2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6.5)),
        {"scheme": "rate", "bits": 3.0, "table_bits": 8, "tile": 64},
        {"scheme": "rate", "bits": 4.5, "trellis": True, "table_bits": 8, "tile": 1024},
    ],
    ids=str,
)  # fmt: skip
def test_the_page_reads_what_rust_writes(options: dict[str, Any]) -> None:
    given = weights()
    file, _ = wcodec.compress_to_bytes(given, coder="huffman", layout="quad", transpose=["transposed"], **options)
    assert file[8:12] == bytes([1, 0, 2, 0])
    page, container = FormatReader(file), wcodec.open(file)
    assert page.index["features"] == [] and sorted(page.names()) == sorted(container) == sorted(given)
    shifts = set()
    for name, entry in container.items():
        assert page.raw_bytes(name) == entry.numpy().tobytes(), name
        plane = page.entry(name)["planes"][0]
        shifts |= {plane["shift"]} if plane.get("layout") == "quad" else set()
        if entry.scheme == "raw":
            assert page.raw_bytes(name) == given[name].tobytes()
    assert len(shifts) > 2 and shifts <= set(SHIFTS)


def test_files_of_layout_quad_alone_are_of_version_1_2() -> None:
    given = {"w": np.random.default_rng(2).standard_t(6, (64, 512)).astype(np.float32)}
    for scheme, minor in (("int8", 0), ("rate", 1)):
        for layout in ("pair", "byte", "quad"):
            file, _ = wcodec.compress_to_bytes(given, coder="huffman", layout=layout, scheme=scheme)
            assert file[8:12] == bytes([1, 0, 2 if layout == "quad" else minor, 0])


def test_readers_of_earlier_versions() -> None:
    """They refuse the tensor by the layout, and read what is beside it."""
    given = {"q": np.random.default_rng(2).standard_t(6, (64, 512)).astype(np.float32), "ids": np.arange(9)}
    file, _ = wcodec.compress_to_bytes(given, coder="huffman", layout="quad")
    for old in (reader_1_0.FormatReader(file), FormatReader(file, minor=0), FormatReader(file, minor=1)):
        assert old.raw_bytes("ids") == given["ids"].tobytes()
        with pytest.raises(
            (reader_1_0.FormatReaderError, FormatReaderError), match="q: (bad layout 'quad'|plane keys .* out of place)"
        ):
            old.values("q")


def rust_reads(tensors: list[Tensor], folder: Path) -> None:
    """Everything that reads a container gives the tensors' values."""
    path, out = folder / "b.wcodec", folder / "b.safetensors"
    write_container(path, tensors)
    assert wcodec.verify(path, progress=False).ok
    wcodec.decompress(path, out, progress=False, overwrite=True)
    decoded = read_checkpoint(out)
    with wcodec.open(path) as container:
        part = wcodec.open(container.extract([tensors[-1].name]))
        assert part[tensors[-1].name].numpy().tobytes() == container[tensors[-1].name].numpy().tobytes()
        for t in tensors:
            assert t.matrix
            entry, values = container[t.name], values_of(t)

            def equal(array: np.ndarray, t: Tensor = t, values: np.ndarray = values) -> bool:
                return np.array_equal(array, values) if t.scheme == "raw" else same(array, values, t.dtype)

            array = entry.numpy()
            assert equal(array), t.name
            assert decoded[t.name] == (t.dtype, tuple(t.shape), array.tobytes()), t.name
            for isa in wcodec.instruction_sets()[0]:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("WCODEC_ISA", isa)
                    assert equal(entry.numpy()), (t.name, isa)
            if t.scheme != "raw":
                symbols = t.data[0].T if t.matrix[3] else t.data.reshape(t.shape)
                np.testing.assert_array_equal(entry.symbols(), symbols)
            rows = t.shape[0] if t.shape else 0
            for begin, end in {(0, rows), (rows // 3, rows // 2), (max(rows - 1, 0), rows)} if rows else ():
                assert entry.numpy_rows(begin, end).tobytes() == array[begin:end].tobytes(), (t.name, begin, end)


@pytest.mark.parametrize(("scheme", "name"), SCHEMES)
@pytest.mark.parametrize("shift", SHIFTS)
def test_rust_reads_what_the_page_writes(scheme: str, name: str | None, shift: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"scheme": scheme, "filter": name, "shift": shift}
    tensors = [quad("w", (2, 17, 150), (2, 17, 150, 0), raw_chunks=(1, 4), pad=253, bits=8 + shift, **options)]
    tensors += [quad("few", (33, 129), (1, 33, 129, 0), tile=1024, alphabet=200, **options)]
    tensors += [
        quad(f"{n}", shape, matrix, tile=(64, 128, 1024)[n % 3], **options)
        for n, (shape, matrix) in enumerate(VIEWS)
        if scheme != "raw" or matrix[3] == 0
    ]
    rust_reads(tensors, tmp_path)


@pytest.mark.parametrize("variety", range(len(VARIETIES)))
def test_rust_reads_what_writers_may_choose(variety: int, tmp_path: Path) -> None:
    """Headers and what streams leave of all kinds, tables of all sizes, and a table for all."""
    tensors = [
        quad(f"{scheme} {name} {shift} {bits}", (17, 300), (1, 17, 300, 0), scheme=scheme, filter=name, shift=shift,
             bits=bits, tile=256, variety=variety, table_key="all", raw_chunks=(1,))
        for (scheme, name), shift, bits in itertools.product(SCHEMES, (0, 3), (8, 10, 12))
    ]  # fmt: skip
    for t in tensors:
        if not t.filter:
            t.data.reshape(-1)[:600] //= 4  # streams of few bits
    rust_reads(tensors, tmp_path)


def test_rust_does_not_need_the_minor_version() -> None:
    t = quad("w", (5, 70), (1, 5, 70, 0))
    for version in ((1, 0), (1, 1), (1, 7)):
        assert same(wcodec.open(write_container(None, [t], version=version))["w"].numpy(), values_of(t), t.dtype)


# Files that both refuse


def refused_with_all_isas(file: bytes) -> None:
    """Every decoder of the bodies refuses them."""
    for isa in wcodec.instruction_sets()[0]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WCODEC_ISA", isa)
            refused(file)


@pytest.fixture(scope="module")
def good() -> bytes:
    return write_container(None, quad_tensors())


@pytest.mark.parametrize(("what", "table", "message"), TABLES, ids=[what for what, *_ in TABLES])
def test_rust_and_tables(what: str, table: bytes, message: str | None) -> None:
    file, t = with_table(table)
    if message:
        refused(file)
    else:
        assert same(wcodec.open(file)["w"].numpy(), values_of(t), t.dtype)


@pytest.mark.parametrize("bits", range(6, 15))
def test_rust_and_sizes_of_tables(bits: int) -> None:
    file, t = with_table(table_of(bits, {1: [3], 2: [4], 3: [0x1234, 0x7777]}), bits)
    if 8 <= bits <= 12:
        assert same(wcodec.open(file)["w"].numpy(), values_of(t), t.dtype)
    else:
        refused(file)


@pytest.mark.parametrize(("what", "width", "options", "message"), BODIES, ids=[what for what, *_ in BODIES])
def test_rust_and_bodies(what: str, width: int, options: dict[str, Any], message: str | None) -> None:
    file, t = with_body(width, options)
    if message:
        refused_with_all_isas(file)
    else:
        for isa in wcodec.instruction_sets()[0]:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("WCODEC_ISA", isa)
                assert wcodec.open(file)["w"].symbols().tobytes() == t.data.tobytes(), isa


@pytest.mark.parametrize(("length", "_reason"), CUTS)
def test_rust_refuses_bodies_that_are_cut(length: int, _reason: str) -> None:
    refused_with_all_isas(with_chunk(zeros(64), (bytes(4) + coded_body(4, least=4))[:length]))


@pytest.mark.parametrize(("what", "patches", "options", "message"), PATCHES, ids=[what for what, *_ in PATCHES])
def test_rust_and_patches(what: str, patches: list[Any], options: dict[str, Any], message: str | None) -> None:
    file, symbols = with_patches(patches, **options)
    if message:
        refused_with_all_isas(file)
    else:
        assert wcodec.open(file)["w"].symbols().tobytes() == symbols.tobytes()


def test_rust_refuses_wrong_indexes(good: bytes) -> None:
    for place, value, _ in QUAD_EDITS:
        assert len(str(refused(reindexed(good, changed_index(place, value))))) < 2000, (place, value)


@pytest.mark.parametrize(("role", "edit", "_reason"), QUAD_CONTENTS)
def test_rust_refuses_wrong_contents(role: str, edit: Callable[[bytes], bytes], _reason: str) -> None:
    file = write_container(None, quad_tensors(), edit_segment=lambda r, data: edit(data) if r == role else data)
    assert isinstance(refused(file), (wcodec.CorruptError, wcodec.FormatError))


@pytest.mark.parametrize("what", QUAD_FORBIDDEN)
def test_rust_refuses_what_no_writer_may_write(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.wcodec"
    path.write_bytes(forbidden_quad(what))
    with wcodec.open(path) as container:
        with pytest.raises((wcodec.FormatError, wcodec.UnsupportedError, wcodec.CorruptError)):
            container["w"].numpy()
        assert container["good"].numpy().shape == (16, 128)
    assert not wcodec.verify(path, progress=False).ok


def test_rust_allocates_nothing_from_sizes_alone(good: bytes) -> None:
    for place, shape in itertools.product(range(3), ((1 << 20, 1 << 20), (1, 1 << 40), (1 << 30, 1 << 30))):
        refused(reindexed(good, resized(place, shape)))


@pytest.mark.parametrize("seed", range(8))
def test_both_refuse_or_read_alike(seed: int) -> None:
    """Indexes that are wrong somewhere, and damaged bytes under hashes that are right."""
    for number, file in enumerate(cases(quad_tensors(), seed, 40)):
        assert disagreement(file) is None, number
