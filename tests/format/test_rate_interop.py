"""Scheme `rate`: the Rust code against the reader and writer that were written from `codec/FORMAT.md` alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wcodec
from format_reader import FormatReader, FormatReaderError
from format_writer import VARIETIES, Tensor, write_container
from hostile import (
    RATE_CONTENTS,
    RATE_EDITS,
    RATE_FORBIDDEN,
    changed_index,
    forbidden_rate,
    rate_tensors,
    reindexed,
    resized,
)
from lossless_samples import VIEWS, read_checkpoint
from rate_mutations import cases, disagreement, refused
from rate_samples import (
    CODINGS,
    DTYPES,
    LARGE,
    NO_NUMBERS,
    SCALES,
    TILED,
    TOO_LARGE,
    WHOLE,
    expected,
    floats,
    rate,
    same,
)

Weights = dict[str, np.ndarray]


def weights() -> Weights:
    """Shapes and contents that take different ways through a writer; bfloat16 as ml_dtypes has it."""
    rng = np.random.default_rng(8)
    shapes: dict[str, tuple[int, ...]] = {
        "plain": (48, 320), "odd": (79, 319), "stack": (3, 31, 192), "conv": (8, 4, 3, 3), "vector": (700,),
        "scalar": (), "empty": (0, 4), "one": (1, 1), "transposed": (191, 96), "long": (1, 5000), "tall": (700, 3),
    }  # fmt: skip
    made = {name: np.asarray(rng.standard_t(6, shape) * 0.02) for name, shape in shapes.items()}
    some = rng.standard_t(6, (64, 256))
    made |= {"zeros": np.zeros((64, 256)), "heavy": rng.standard_t(2, (64, 256)), "huge": some * 1e36}
    made |= {"subnormal": some * 1e-40, "some rows": some * (np.arange(64) % 5 > 0)[:, None]}
    out = {name: array.astype(np.float32) for name, array in made.items()}
    half = {"odd": "float16", "transposed": "float16", "stack": "bfloat16", "heavy": "bfloat16", "tall": "bfloat16"}
    return out | {f"{name} of {dtype}": out[name].astype(to_dtype(dtype)) for name, dtype in half.items()}


def to_dtype(name: str) -> Any:
    """A dtype that NumPy may have from elsewhere."""
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def coded_bytes(page: FormatReader, name: str) -> np.ndarray:
    """Bytes that the filter of a tensor is undone on: its plane's bytes without the filter."""
    entry, shape, view = page._checked(name)
    plane = {key: value for key, value in entry["planes"][0].items() if key != "filter"}
    return page._decode_plane(name, plane, view, int(np.prod(shape)), 1, "rate")


def page_reads(file: bytes, given: Weights, trellis: bool) -> set[tuple[Any, ...]]:
    """The page's reader gives what wcodec does; how the planes of rate tensors are coded."""
    page, kinds = FormatReader(file), set()
    layouts = {plane.get("layout") for tensor in page.index["tensors"] for plane in tensor["planes"]}
    assert page.index["features"] == [] and file[8:12] == bytes([1, 0, 2 if "quad" in layouts else 1, 0])
    container = wcodec.open(file)
    assert sorted(page.names()) == sorted(container) == sorted(given)
    for name, entry in container.items():
        dtype = page.entry(name)["dtype"]
        array, plane = entry.numpy(), page.entry(name)["planes"][0]
        assert array.shape == given[name].shape and array.dtype == given[name].dtype
        assert page.raw_bytes(name) == array.tobytes(), name
        if entry.scheme == "raw":
            assert array.tobytes() == given[name].tobytes()
            continue
        symbols, axis = page.symbols(name), page.entry(name)["matrix"][3]
        kinds.add((plane["coder"], plane.get("layout"), plane.get("shift"), plane.get("filter"), axis))
        assert np.array_equal(symbols[0].T if axis else symbols.reshape(array.shape), entry.symbols())
        assert page.scales(name).tobytes() == entry.scales().ravel().tobytes()
        # what the page says of this project's writer
        assert symbols.min() >= -127 and symbols.max() <= 126 and dtype in DTYPES
        if plane.get("filter") == "trellis":
            assert trellis and max(min(b, b ^ 0xFF) for b in set(coded_bytes(page, name).tolist())) <= 62
        source, read = given[name].astype(np.float64), array.astype(np.float64)
        error = np.sqrt(((read - source) ** 2).sum() / ((source**2).sum() or 1))
        # of rows below the smallest normal float32 nothing is kept, and nothing counted
        assert name == "subnormal" or error <= page.entry(name)["quality"]["error"] <= 1.002 * error + 1e-9, name
    return kinds


@pytest.mark.parametrize("trellis", [False, True])
@pytest.mark.parametrize(
    ("coder", "layout"), [*itertools.product(("rans", "huffman"), ("pair", "byte")), ("huffman", "quad")]
)
def test_the_page_reads_what_rust_writes(coder: str, layout: str, trellis: bool) -> None:
    kinds, given = set(), weights()
    for bits in (2.5, 6.0):
        options: dict[str, Any] = {"coder": coder, "layout": layout, "bits": bits, "trellis": trellis}
        file, _ = wcodec.compress_to_bytes(given, scheme="rate", transpose=["transposed*"], **options)
        kinds |= page_reads(file, given, trellis)
    # Cases that the page says most about do occur.
    found = {kind[2:] for kind in kinds if kind[:2] == (coder, layout)}
    assert ("raw", None) in {kind[:2] for kind in kinds} and {axis for *_, axis in found} == {0, 1}
    assert not trellis or "trellis" in {name for _, name, _ in found}
    assert (
        layout == "byte"
        or {shift for shift, *_ in found} & {2, 3}
        and (0, None if not trellis else "trellis", 0) in found
    )


def test_the_page_reads_frames_that_rust_writes() -> None:
    given = weights()
    file, _ = wcodec.compress_to_bytes(given, scheme="rate", bits=6.0, coder="zstd", frame=999)
    assert {kind[0] for kind in page_reads(file, given, False)} == {"zstd", "raw"}


@pytest.mark.parametrize(
    "options",
    [
        {"tile": 64, "table_bits": 11},
        {"tile": 1024},
        {"coder": "huffman", "tile": 192},
        *({"coder": "huffman", "table_bits": bits} for bits in (8, 9, 10, 11, 12)),
        *({"coder": "huffman", "layout": "quad", "table_bits": bits} for bits in (8, 9, 10, 11, 12)),
        *({"coder": "huffman", "layout": "quad", "tile": tile} for tile in (64, 192, 1024)),
    ],
)
def test_the_page_reads_other_options(options: dict[str, Any]) -> None:
    given = weights()
    file, _ = wcodec.compress_to_bytes(given, scheme="rate", bits=3.0, trellis=True, **options)
    page_reads(file, given, True)


def test_small_tables_of_any_scheme_are_of_version_1_1() -> None:
    given = {"w": np.random.default_rng(2).standard_t(6, (64, 512)).astype(np.float32)}
    for scheme, coder in (("int8", "huffman"), ("rate", "huffman"), ("lossless", "huffman")):
        for bits in (8, 9, 10, 11, 12, None):
            file, _ = wcodec.compress_to_bytes(given, scheme=scheme, coder=coder, layout="pair", table_bits=bits)
            page = FormatReader(file)
            assert page.index["tables"][0]["bits"] == (bits or 12)
            newer = scheme != "int8" or (bits or 12) < 11
            assert page.index["features"] == [] and file[8:12] == bytes([1, 0, newer, 0])
            assert page.raw_bytes("w") == wcodec.open(file)["w"].numpy().tobytes()


def test_the_page_reads_the_real_model(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.wcodec"
    wcodec.compress(model, path, scheme="rate", bits=4.0, trellis=True, progress=False)
    page = FormatReader(path)
    with wcodec.open(path) as container:
        assert page.names() == list(container)
        for name, entry in container.items():
            assert page.raw_bytes(name) == entry.numpy().tobytes(), name
        assert "rate" in {entry.scheme for entry in container.values()}


def test_a_reader_of_version_1_0(tmp_path: Path) -> None:
    """It reads the int8 tensors of what this version writes, and refuses the others by their schemes."""
    given = {name: np.random.default_rng(2).standard_t(6, (48, 320)).astype(np.float32) for name in "irl"}
    file, _ = wcodec.compress_to_bytes(
        given, scheme="int8", optimize="size", rules={"r": {"bits": 4.0, "trellis": True}, "l": "lossless"}
    )
    page = FormatReader(file, minor=0)
    assert page.raw_bytes("i") == wcodec.open(file)["i"].numpy().tobytes()
    for name, scheme in (("r", "rate"), ("l", "lossless")):
        with pytest.raises(FormatReaderError, match=f"{name}: unknown scheme '{scheme}'"):
            page.values(name)


def rust_reads(tensors: list[Tensor], folder: Path, *, finite: bool = True) -> None:
    """Everything that reads a container gives the tensors' values."""
    path, out = folder / "b.wcodec", folder / "b.safetensors"
    write_container(path, tensors)
    assert wcodec.verify(path, progress=False).ok == finite
    wcodec.decompress(path, out, progress=False, overwrite=True)
    decoded = read_checkpoint(out)
    assert decoded.keys() == {t.name for t in tensors}
    with wcodec.open(path) as container:
        part = wcodec.open(container.extract([tensors[-1].name]))
        assert same(part[tensors[-1].name].numpy(), expected(tensors[-1]), tensors[-1].dtype)
        for t in tensors:
            assert t.matrix and t.scales is not None
            entry, values = container[t.name], expected(t)
            assert entry.scheme == "rate" and entry.shape == tuple(t.shape)
            array = entry.numpy()
            assert same(array, values, t.dtype), t.name
            dtype, shape, data = decoded[t.name]
            assert (dtype, shape, data) == (t.dtype, tuple(t.shape), array.tobytes())
            for isa in wcodec.instruction_sets()[0]:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("WCODEC_ISA", isa)
                    assert same(entry.numpy(), values, t.dtype), (t.name, isa)
            short = replace(t, dtype="F32")
            assert same(entry.numpy("float32"), expected(short), "F32"), t.name
            symbols = t.data[0].T if t.matrix[3] else t.data.reshape(t.shape)
            np.testing.assert_array_equal(entry.symbols(), symbols)
            assert same(entry.scales().ravel(), floats(t.scales), "F32")
            found = entry.column_factors()
            assert entry.columns == (found is not None) == (t.factors is not None)
            assert found is None or same(found.ravel(), floats(t.factors), "F32")
            rows = t.shape[0] if t.shape else 0
            for begin, end in {(0, rows), (rows // 3, rows // 2), (max(rows - 1, 0), rows)} if rows else ():
                some = entry.numpy_rows(begin, end)
                assert some.tobytes() == array[begin:end].tobytes(), (t.name, begin, end)


@pytest.mark.parametrize(("coder", "layout", "shift", "name"), CODINGS)
def test_rust_reads_what_the_page_writes(coder: str, layout: str, shift: int, name: str | None, tmp_path: Path) -> None:
    options: dict[str, Any] = {"coder": coder, "layout": layout, "shift": shift, "filter": name}
    rust_reads(
        [
            rate("w", (2, 17, 150), (2, 17, 150, 0), raw_chunks=(1, 4), pad=253, chunk=450, bits=11, **options),
            rate("t", (150, 33), (1, 33, 150, 1), tile=128, dtype="F16", chunk=150, wrap=61, **options),
            rate("e", (33, 129), (1, 33, 129, 0), tile=1024, dtype="F32", chunk=129 * 3, **options),
            *(rate(f"few {bits}", (33, 300), (1, 33, 300, 0), alphabet=100, bits=bits, tile=256, **options)
              for bits in (8, 9, 12) if layout == "quad" or (coder, layout) == ("huffman", "pair") and shift < 3),
        ],
        tmp_path,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["trellis", None])
def test_rust_reads_every_view(name: str | None, dtype: str, tmp_path: Path) -> None:
    options = [{"coder": coder, "layout": layout, "shift": shift} for coder, layout, shift in WHOLE]
    rust_reads(
        [
            rate(f"{n}", shape, matrix, dtype=dtype, filter=name, tile=(64, 128, 1024)[n % 3], **options[n % 5])
            for n, (shape, matrix) in enumerate(VIEWS)
        ],
        tmp_path,
    )


@pytest.mark.parametrize("variety", range(len(VARIETIES)))
def test_rust_reads_what_writers_may_choose(variety: int, tmp_path: Path) -> None:
    """Tables of both sizes, bodies of all kinds, bytes whose bit 6 is lost, and a table for all."""
    rust_reads(
        [
            rate(f"{n} {bits}", (17, 300), (1, 17, 300, 0), coder=coder, layout=layout, shift=shift, bits=bits, wrap=97,
                 tile=256, variety=variety, table_key=layout)
            for n, (coder, layout, shift) in enumerate(TILED)
            for bits in ((8, 10, 11, 12) if coder == "huffman" else (11, 12))
        ],
        tmp_path,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_rust_reads_all_scales(dtype: str, tmp_path: Path) -> None:
    """Values beyond the dtype are computed all the same; verifying says that no weights are."""
    tensors = [rate("usual", (3, 5, 70), (3, 5, 70, 0), scales=SCALES, dtype=dtype)]
    rust_reads(tensors, tmp_path)
    for n, scales in enumerate((LARGE, TOO_LARGE, NO_NUMBERS)):
        some = rate("some", (9, 70), (1, 9, 70, 0), scales=scales, dtype=dtype, coder=("rans", "huffman")[n % 2])
        rust_reads([*tensors, some], tmp_path, finite=n == 0 and dtype != "F16")
    rng = np.random.default_rng(4)
    every = rng.permutation(0x10000).astype(np.uint16)[:4096]
    some = rate("any", (4096, 9), (1, 4096, 9, 0), scales=every, dtype=dtype, coder="raw", filter=None)
    rust_reads([some], tmp_path, finite=False)


def test_rust_reads_all_symbols(tmp_path: Path) -> None:
    q = np.random.default_rng(2).permutation(np.repeat(np.arange(-128, 128), 4)).astype(np.int8).reshape(1, 4, 256)
    ways = [way for way in CODINGS if way[:3] in WHOLE or not way[1]]
    rust_reads(
        [
            rate(
                f"{n}",
                (4, 256),
                (1, 4, 256, 0),
                symbols=q,
                coder=c,
                layout=layout,
                shift=s,
                filter=f,
                chunk=512,
                dtype="F32",
            )
            for n, (c, layout, s, f) in enumerate(ways)
        ],
        tmp_path,
    )


def test_rust_does_not_need_the_minor_version() -> None:
    """It is for people; and files of drafts are refused, since their patches may say less."""
    t = rate("w", (5, 70), (1, 5, 70, 0))
    for version in ((1, 0), (1, 1), (1, 7)):
        file = write_container(None, [t], version=version)
        assert same(wcodec.open(file)["w"].numpy(), expected(t), t.dtype)


def test_files_of_the_draft_are_refused_with_what_to_do() -> None:
    file = write_container(None, rate_tensors(), features=["draft-1.1"])
    with pytest.raises(wcodec.UnsupportedError, match=r"a draft of format 1\.1 .*compress the model again"):
        wcodec.open(file)


def test_rust_ignores_a_key_that_version_1_0_ignores() -> None:
    """Scales of int8 are float32, whatever a key that version 1.0 does not know seems to say of them."""
    (place,) = (n for n, t in enumerate(rate_tensors()) if t.scheme == "int8")
    file = write_container(None, rate_tensors())
    for value in ("BF16", "F32", "F16"):
        changed = reindexed(file, changed_index(f"tensors/{place}/scales/dtype", value))
        assert wcodec.open(changed)["i"].numpy().tobytes() == wcodec.open(file)["i"].numpy().tobytes()


# Files that both refuse


#: Refusals of the page's reader where the page may be read otherwise: a filter of coder raw, and null for nothing.
OPEN = [("tensors/4/planes/0/filter", "left"), ("tensors/4/planes/0/filter", "trellis"),
        ("tensors/1/planes/0/fields", None), ("tensors/0/scales/block", None)]  # fmt: skip


@pytest.fixture(scope="module")
def good() -> bytes:
    return write_container(None, rate_tensors())


def test_rust_refuses_wrong_indexes(good: bytes) -> None:
    for place, value, _ in RATE_EDITS:
        if (place, value) not in OPEN:
            assert len(str(refused(reindexed(good, changed_index(place, value))))) < 2000, (place, value)


@pytest.mark.parametrize(("role", "edit", "_reason"), RATE_CONTENTS)
def test_rust_refuses_wrong_contents(role: str, edit: Callable[[bytes], bytes], _reason: str) -> None:
    file = write_container(None, rate_tensors(), edit_segment=lambda r, data: edit(data) if r == role else data)
    error = refused(file)
    assert isinstance(error, (wcodec.CorruptError, wcodec.FormatError)) and role.startswith(error.tensor or "?")


@pytest.mark.parametrize("what", [what for what in RATE_FORBIDDEN if not what.startswith("raw, ")])
def test_rust_refuses_what_no_writer_may_write(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.wcodec"
    path.write_bytes(forbidden_rate(what))
    with wcodec.open(path) as container:
        with pytest.raises((wcodec.FormatError, wcodec.UnsupportedError, wcodec.CorruptError)):
            container["w"].numpy()
        assert container["r"].numpy().tolist() == [0, 1]
    assert not wcodec.verify(path, progress=False).ok


def test_rust_allocates_nothing_from_sizes_alone(good: bytes) -> None:
    for place, shape in itertools.product((0, 3, 4), ((1 << 20, 1 << 20), (1, 1 << 40), (1 << 30, 1 << 30))):
        refused(reindexed(good, resized(place, shape)))


@pytest.mark.parametrize("seed", range(8))
def test_both_refuse_or_read_alike(seed: int) -> None:
    """Indexes that are wrong somewhere, and damaged bytes under hashes that are right."""
    for number, file in enumerate(cases(rate_tensors(), seed, 40)):
        assert disagreement(file) is None, number
