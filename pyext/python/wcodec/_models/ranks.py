"""The memory that each rank would need for a model shared by tensor parallelism, computed without its weights."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.coding import CodingOptions
from .._core.errors import InputError, UnsupportedError
from .._core.keywords import given, keywords, renamed
from .._core.options import path_of, patterns
from .._file.container import Container, TensorEntry
from .._file.encode import compress_in_memory
from .._file.shards import Shard, even, narrow
from ..nn._layers.parts import Rank, part_of, parts_of_experts
from .already import refuse_encoding
from .checkpoint import Stored
from .choose import of_container
from .find import Candidate, find
from .names import Match, matched, shared_names, tie
from .parallel import check_heads, styles_of
from .skeleton import skeleton
from .source import computing_dtype_of, config_at, located

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._plot.reports import RanksPlots

# Weights that are encoded to find out how many bytes one takes.
_SAMPLE = 1 << 22


@dataclass(frozen=True)
class RankBytes:
    """The bytes that the fullest rank holds, where ``ranks`` share a model."""

    ranks: int
    shared: int
    """Its parts of compressed weights."""
    replicated: int
    """Compressed weights that each rank has all of."""
    plain: int
    """Weights that are not compressed: norms, biases, layers left out."""
    uncompressed: int
    """Its share of the model if nothing were compressed."""

    @property
    def total(self) -> int:
        """All of the model's weights that it holds."""
        return self.shared + self.replicated + self.plain


@dataclass(frozen=True, repr=False)
class RanksReport:
    """The result of :func:`wcodec.plan_ranks`: a row for each number of ranks, one rank alone first."""

    model: str
    parameters: int
    measured: bool
    """Whether bytes are those of a compressed model; otherwise weights were taken to be normally distributed."""
    rows: tuple[RankBytes, ...]
    refused: tuple[tuple[int, str], ...] = ()
    """Numbers of ranks that cannot share the model, and why."""

    plot: ClassVar[Accessor[RanksPlots]] = Accessor(
        "wcodec._plot.reports:RanksPlots",
        "Plots: ``report.plot()``, the same as ``report.plot.memory()``.",
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        one = self.rows[0].total
        rows = [{**asdict(row), "total": row.total, "share": row.total / one} for row in self.rows]
        return {"model": self.model, "parameters": self.parameters, "measured": self.measured, "rows": rows,
                "refused": [{"ranks": count, "why": why} for count, why in self.refused]}  # fmt: skip

    def table(self) -> str:
        """The rows as a table."""
        one = self.rows[0].total
        heads = ("ranks", "bytes a rank", "of one", "shared", "replicated", "not compressed", "uncompressed model")
        cells = [
            (
                str(r.ranks),
                fmt.size(r.total),
                f"{100 * r.total / one:.1f} %",
                fmt.size(r.shared),
                fmt.size(r.replicated),
                fmt.size(r.plain),
                fmt.size(r.uncompressed),
            )
            for r in self.rows
        ]
        return fmt.text_table(heads, cells, left=0)

    def __repr__(self) -> str:
        of = "compressed bytes" if self.measured else "weights taken to be normally distributed"
        refusals = "".join(f"\n{count} ranks: {why}" for count, why in self.refused)
        return f"RanksReport({self.model}, {self.parameters:,} parameters, {of})\n{self.table()}{refusals}"


@keywords(CodingOptions)
def plan_ranks(
    model: str | os.PathLike[str],
    ranks: Iterable[int] = (2, 4, 8),
    *,
    scheme: str | None = None,
    bits: float | None = None,
    trellis: bool | None = None,
    coder: str | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    embeddings: bool = True,
    dtype: Any = None,
    trust_remote_code: bool = False,
    **options: Unpack[CodingOptions],
) -> RanksReport:
    """Bytes of weights that each rank would hold of a model under transformers' tensor parallelism, those among them
    that every rank has. No weights are needed, and none are read: the model is built on the meta device::

        print(wcodec.plan_ranks("path/to/llama-70b", bits=4))    # a folder with a config.json will do

    Sizes of a compressed model are those of its file, in proportion. For other models a sample of each shape is
    encoded, with normally distributed weights, and cut as ranks would cut it.

    :param model: a folder that :func:`wcodec.save_pretrained` wrote, a ``.wcodec`` file with a ``config.json`` beside
        it, or any folder with a ``config.json``.
    :param ranks: the number of ranks, or several such numbers.
    :param scheme: the scheme for a model that is not compressed, as for :func:`wcodec.compress_`; so are ``bits``,
        ``trellis``, ``coder``, ``include``, ``exclude``, ``embeddings`` and ``options``.
    :param dtype: the dtype of weights that are not compressed; that of the config if left out.
    :raises InputError: if the model has no plan.
    """
    counts = sorted({int(n) for n in ranks} | {1})
    if counts[0] < 1:
        raise InputError(f"{counts[0]} ranks (ask for 1 or more)", code="I521")
    path = path_of(model)
    folder, file = (Path(path), None) if _is_only_config(path) else located(path, trust_remote_code)
    config = config_at(folder, file, False, trust_remote_code)
    place = folder or path
    compute = computing_dtype_of(config, place, dtype)
    made = skeleton(config, compute, place, trust_remote_code)
    plan = dict(getattr(made, "_tp_plan", None) or {})
    if not plan and counts[-1] > 1:
        raise InputError(
            f"{type(made).__name__} has no tp_plan (ranks cannot share it in this transformers)", code="I521"
        )
    encoding: dict[str, Any] = {"scheme": scheme, "bits": bits, "trellis": trellis, "coder": coder, **options}
    if file is not None:
        container = Container.open(file)
        refuse_encoding(container, file, {**encoding, "include": include, "exclude": exclude}, embeddings)
        matching = matched(made, Stored(container), whole=False)
        candidates = of_container(made, matching, container).layers
        weigh = _by_file(container)
    else:
        tie(made)
        candidates, _ = find(made, patterns("include", include), patterns("exclude", exclude), embeddings)
        weights = sum({id(p): p.numel() for c in candidates for p in c.parameters.values()}.values())
        matching, weigh = Match({}, {}), _by_samples(given(encoding), weights)
    rows: list[RankBytes] = []
    refused: list[tuple[int, str]] = []
    for count in counts:
        try:
            check_heads(config, plan, count)
            rows.append(_row(made, plan, candidates, count, weigh, compute))
        except (InputError, UnsupportedError) as error:
            if count == 1:
                raise
            refused.append((count, str(error)))
    parameters = sum(p.numel() for p in made.parameters())
    return RanksReport(type(made).__name__, parameters, file is not None, tuple(rows), tuple(refused))


def _is_only_config(path: str) -> bool:
    folder = Path(path)
    return folder.is_dir() and (folder / "config.json").is_file() and not list(folder.glob("*.wcodec"))


# Bytes of a part: the tensors' names, the shape of one of them, the dimension that is cut, and its ranges.
Weigh = Callable[[tuple[str, ...], tuple[int, int], Shard], float]


def _row(
    model: Any, plan: Mapping[str, str], candidates: list[Candidate], count: int, weigh: Weigh, dtype: torch.dtype
) -> RankBytes:
    shared_bytes: dict[Any, float] = {}
    whole_bytes: dict[Any, float] = {}
    uncompressed = 0
    compressed: set[int] = set()
    stored = shared_names(model)
    for candidate in candidates:
        styles = styles_of(plan, candidate.name) if count > 1 else {}
        for name, shape, shard, times, names in _parts(candidate, styles, count):
            key = stored.get(name, name), shard
            part = shard.shape(shape)
            into = whole_bytes if part == shape else shared_bytes
            if key not in into:
                into[key] = times * weigh(names, shape, shard)
                uncompressed += times * math.prod(part) * dtype.itemsize
        compressed.update(id(p) for p in candidate.parameters.values())
    plain = 0
    for name, parameter in model.named_parameters():
        if id(parameter) not in compressed:
            owner, _, leaf = name.rpartition(".")
            style = styles_of(plan, owner).get("", "") if count > 1 and leaf == "bias" else ""
            share = count if style.startswith(("colwise", "packed_colwise")) else 1
            plain += -(-parameter.numel() // share) * parameter.element_size()
    return RankBytes(
        count, round(sum(shared_bytes.values())), round(sum(whole_bytes.values())), plain, uncompressed + plain
    )


def _parts(
    candidate: Candidate, styles: Mapping[str, str], count: int
) -> Iterable[tuple[str, tuple[int, int], Shard, int, tuple[str, ...]]]:
    """The matrices of a layer. Each has: the parameter, the matrix's shape as ``[out, in]``, the part of the first
    rank, how many there are of it, and the stored tensors."""
    first = Rank(0, count)
    for place, (name, parameter) in enumerate(candidate.parameters.items()):
        shape = tuple(parameter.shape)
        if candidate.kind == "experts":
            axis, pieces = parts_of_experts(candidate.name, styles)[place] if styles else (None, 1)
            names = tuple(n for expert in candidate.tensors for n in _of_stack(expert, candidate.parts, place))
            yield name, shape[1:], _shard(name, shape[1:], axis, pieces, first), shape[0], names
        else:
            if candidate.kind == "conv1d":
                shape = shape[::-1]
            axis, pieces = part_of(candidate.kind == "embedding", candidate.name, styles.get(""))
            names = tuple(n for tensors in candidate.tensors for n in tensors)
            yield name, shape, _shard(name, shape, axis, pieces, first), 1, names


def _of_stack(names: tuple[str, ...], parts: tuple[int, ...], place: int) -> tuple[str, ...]:
    return names[sum(parts[:place]) : sum(parts[: place + 1])]


def _shard(name: str, shape: tuple[int, ...], axis: int | None, pieces: int, rank: Rank) -> Shard:
    if axis is None or rank.of == 1:
        return Shard(name, 0, ((0, shape[0]),))
    return Shard(name, axis, even(shape[axis], rank.number, rank.of, pieces))


def _by_file(container: Container) -> Weigh:
    def weigh(names: tuple[str, ...], shape: tuple[int, int], shard: Shard) -> float:
        entries = {entry.name: entry for entry in (_stored(container, name) for name in names)}
        stacked = sum(entry.stored_bytes for entry in entries.values())
        # Experts are asked about one at a time.
        each = len(names) * math.prod(entries[next(iter(entries))].shape) / math.prod(shape)
        return stacked / max(each, 1) * math.prod(shard.shape(shape)) / math.prod(shape)

    return weigh


def _stored(container: Container, name: str) -> TensorEntry:
    entry = container[name]
    return entry if entry.alias_of is None else container[entry.alias_of]


def _by_samples(options: Mapping[str, Any], weights: int) -> Weigh:
    made: dict[tuple[int, int | None], Container] = {}
    bytes_per_weight: dict[Any, float] = {}

    def weigh(names: tuple[str, ...], shape: tuple[int, int], shard: Shard) -> float:
        rows, cols = shape
        tile = _tile(rows, cols)
        if (cols, tile) not in made:
            made[cols, tile] = _sample(cols, tile, options, min(weights, _SAMPLE))
        container = made[cols, tile]
        # A cut through rows leaves columns as they are.
        ranges = shard.ranges if shard.axis == 1 else ((0, cols),)
        key = (cols, tile, ranges)
        if key not in bytes_per_weight:
            entry = (container if ranges == ((0, cols),) else narrow(container, [Shard("w", 1, ranges)]))["w"]
            tables = sum(segment.length for segment in entry.segments if segment.role == "table")
            bytes_per_weight[key] = (entry.stored_bytes - tables) / math.prod(entry.shape)
        return bytes_per_weight[key] * math.prod(shard.shape(shape))

    return weigh


def _sample(cols: int, tile: int | None, options: Mapping[str, Any], size: int) -> Container:
    """A sample of at least ``size`` weights, since the encoding's parameters are chosen by their number."""
    rows = (size // cols // 16 + 1) * 16
    weights = torch.randn(rows, cols, generator=torch.Generator().manual_seed(cols)).mul_(0.02).to(torch.bfloat16)
    tiles = {} if tile is None or "tile" in options else {"tile": tile}
    return compress_in_memory({"w": weights}, progress=False, **tiles, **options)


def _tile(rows: int, cols: int) -> int | None:
    """The tile of matrices so large that a sample would have a narrower one; none of others."""
    if rows * cols < 32 << 20:
        return None
    blocks = -(-cols // 64)
    return -(-blocks // -(-blocks * 64 // 512)) * 64


# The name of the command.
ranks = renamed("ranks", plan_ranks)

__all__ = ["RankBytes", "RanksReport", "plan_ranks", "ranks"]
