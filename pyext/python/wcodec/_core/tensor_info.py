"""The entries of a container's index as records, and the table that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from . import format as fmt

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._native import Facts


@dataclass(frozen=True)
class Segment:
    """A range of bytes in the file, and what it holds."""

    role: str
    offset: int
    length: int
    hash: str


@dataclass(frozen=True)
class PlaneInfo:
    """A plane of a tensor: an array that is stored by itself."""

    bits: tuple[tuple[int, int], ...] | None
    """The bits that it holds of each element (of each symbol, for scheme ``int8``), the most significant first: runs,
    each as its lowest bit and its width. ``None`` where the scheme is one that this version does not know."""
    coder: str
    layout: str | None
    """``byte``, ``pair``, ``quad`` or ``split``, for coders ``rans`` and ``huffman``."""
    shift: int | None
    """Uncoded low bits of layouts ``pair`` and ``quad``; uncoded bits of layout ``split``."""
    filter: str
    tile: int | None
    """Width of a tile in columns, for coders ``rans`` and ``huffman``."""
    frame: int | None
    """Decoded bytes of a frame, for coder ``zstd``."""
    chunks: int
    """Chunks that can be decoded by themselves."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        return {**asdict(self), "bits": None if self.bits is None else [list(run) for run in self.bits]}


@dataclass(frozen=True)
class TensorInfo:
    """The entry of one tensor in a container's index.

    ``stored_bytes`` counts everything that the tensor takes: coded data, raw bits, scales, offsets and its table (a
    shared one at its first user).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scheme: str
    scale: str | None
    """``row``, ``tensor`` or ``block N`` for scheme ``int8``."""
    columns: bool
    """Whether columns have factors, too, by which values are multiplied: for scheme ``rate``."""
    makes_symbols: bool
    """Whether the scheme makes symbols, which become values, as ``int8`` does; if not, the elements are stored."""
    planes: tuple[PlaneInfo, ...]
    """The planes that its elements, or the symbols that the scheme makes of them, are stored in."""
    count: int
    rows: int
    cols: int
    row_axis: int
    cut: int
    """Entries of the first dimension that are decoded together: rows can be had from any multiple of it on, up to
    another one or the end. 0 where only the whole can be had, as of a tensor that is stored transposed."""
    elements: int
    original_bytes: int
    stored_bytes: int
    entropy: float | None
    """Order-0 entropy of the symbols in bits per weight, where the file records it."""
    error: float | None
    """Root mean square of decoded - source over that of the source, for scheme ``rate``, where the file records it."""
    segments: tuple[Segment, ...]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # There may be a hundred thousand tensors of which one fact is asked for: those of a container's index are
            # fetched when the first one is.
            source = self.__dict__.get("_source")
            if source is not None and name in TensorInfo.__dataclass_fields__:
                facts, place = source
                if name == "segments":
                    known = {name: tuple(Segment(*segment) for segment in facts.segments(place))}
                elif name == "planes":
                    known = {name: tuple(PlaneInfo(bits and tuple(bits), *rest) for bits, *rest in facts.planes(place))}
                else:
                    known = facts.record(place)
                # Values given at construction stay: the name of a tied tensor is its own.
                self.__dict__.update({**known, **self.__dict__})
            return object.__getattribute__(self, name)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def _at(cls, facts: Facts, place: int, **known: Any) -> Self:
        """The tensor at a place of an index."""
        info = object.__new__(cls)
        info.__dict__.update(known, _source=(facts, place))
        return info

    @property
    def coder(self) -> str:
        """The coder of its first plane: ``rans``, ``huffman``, ``zstd`` or ``raw``."""
        return self.planes[0].coder if self.planes else ""

    @property
    def layout(self) -> str | None:
        """The layout of its first plane: see :class:`PlaneInfo`."""
        return self.planes[0].layout if self.planes else None

    @property
    def shift(self) -> int | None:
        """The shift of its first plane: see :class:`PlaneInfo`."""
        return self.planes[0].shift if self.planes else None

    @property
    def filter(self) -> str:
        """The filter of its first plane: ``none``, ``left`` or ``up``."""
        return self.planes[0].filter if self.planes else "none"

    @property
    def tile(self) -> int | None:
        """The width of tiles of its first plane: see :class:`PlaneInfo`."""
        return self.planes[0].tile if self.planes else None

    @property
    def chunks(self) -> int:
        """Chunks of all planes."""
        return sum(plane.chunks for plane in self.planes)

    @property
    def ratio(self) -> float | None:
        """Original bytes per stored byte; ``None`` where nothing is stored."""
        return fmt.ratio(self.original_bytes, self.stored_bytes)

    @property
    def bits_per_weight(self) -> float | None:
        """Stored bits per weight, everything counted; ``None`` for an empty tensor."""
        return fmt.bits(self.stored_bytes, self.elements)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the command's JSON."""
        record = {f.name: getattr(self, f.name) for f in fields(TensorInfo)}
        record["shape"] = list(self.shape)
        record["planes"] = [p.to_dict() for p in self.planes]
        record["segments"] = [asdict(s) for s in self.segments]
        return {**record, "ratio": self.ratio, "bits_per_weight": self.bits_per_weight}

    @classmethod
    def _from_native(cls, record: dict[str, Any]) -> TensorInfo:
        """Out of the native module's JSON; what a newer one adds is left out."""
        known = {f.name for f in fields(TensorInfo)}
        out = {k: v for k, v in record.items() if k in known}
        out["scale"] = record["scales"]
        out["shape"] = tuple(record["shape"])
        planes = [{**p, "bits": None if p["bits"] is None else tuple(map(tuple, p["bits"]))} for p in record["planes"]]
        out["planes"] = tuple(PlaneInfo(**p) for p in planes)
        out["segments"] = tuple(Segment(s["role"], s["offset"], s["length"], s["hash"]) for s in record["segments"])
        return TensorInfo(**out)


TABLE_HEADINGS = ("tensor", "shape", "dtype", "scheme", "coder", "original", "stored", "ratio", "bits/weight")
TABLE_LEFT = 5
# Columns that a narrow terminal leaves out, the most dispensable first.
TABLE_DISPENSABLE = ("dtype", "original", "coder", "shape", "ratio", "scheme", "stored")


def table_row(info: TensorInfo) -> tuple[str, ...]:
    """One line of the tables of tensors."""
    scheme = info.scheme if info.scale is None else f"{info.scheme}/{info.scale}"
    if info.columns:
        scheme += "/column"
    coder = info.coder if info.layout is None else f"{info.coder}/{info.layout}"
    if info.filter != "none":
        coder += f"/{info.filter}"
    return (
        info.name,
        fmt.shape(info.shape),
        info.dtype,
        scheme,
        coder,
        fmt.size(info.original_bytes),
        fmt.size(info.stored_bytes),
        fmt.number(info.ratio),
        fmt.number(info.bits_per_weight),
    )


def tensor_table_html(tensors: Iterable[TensorInfo], count: int) -> str:
    """The table of ``count`` tensors for notebooks; no more are looked at than are shown."""
    return fmt.html_table(TABLE_HEADINGS, map(table_row, tensors), TABLE_LEFT, count=count)


def error_of(tensors: Iterable[TensorInfo]) -> float | None:
    """Root mean square of decoded - source over that of the source: the mean square over the tensors of which it is
    known, each as it counts; ``None`` if there are none."""
    known = [(t.error, t.elements) for t in tensors if t.error is not None]
    weights = sum(n for _, n in known)
    return (sum(e * e * n for e, n in known) / weights) ** 0.5 if weights else None
