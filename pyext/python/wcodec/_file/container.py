"""Open containers: lazy mappings from names to tensors."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from .. import _native
from .._core import dtypes
from .._core import format as fmt
from .._core.accessor import Accessor
from .._core.errors import InputError, TensorNotFoundError
from .._core.metadata import lines as plan_facts
from .._core.opened import missing, open_native
from .._core.options import as_whole, decode_options, path_of, shown
from .._core.tensor_info import TensorInfo, table_row

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from torch import Tensor
    from torch import dtype as TorchDtype

    from .._native import Facts
    from .._plot.container import ContainerPlots
    from .._plot.entry import EntryPlots


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TensorEntry(TensorInfo):
    """One tensor of an open container. Its facts cost nothing; its data are decoded when a method asks for them."""

    alias_of: str | None
    """The name of the stored tensor that holds a tied tensor's data."""
    _container: Container = field(repr=False)

    @property
    def _stored_name(self) -> str:
        return self.alias_of or self.name

    def symbols(self, *, threads: int | None = None) -> npt.NDArray[np.int8]:
        """The quantized symbols, -127 to 127, in the tensor's shape (scheme ``int8``, or 8-bit tensors stored raw)."""
        flat = self._container._open.symbols(self._stored_name, decode_options(threads))
        if self.row_axis == 1:
            return dtypes.reshaped(flat, (self.rows, self.cols)).T
        return dtypes.reshaped(flat, self.shape)

    def scales(self) -> npt.NDArray[np.float32]:
        """The scales (scheme ``int8``), with a dimension for each of the tensor's.

        Per row and per tensor they broadcast: ``symbols() * scales()`` is the tensor in float32. Per block, the axis of
        the columns has one entry for each block.
        """
        flat = self._container._open.scales(self._stored_name)
        if self.scale == "tensor":
            return dtypes.reshaped(flat, (1,) * len(self.shape))
        per_row = flat.size // max(self.count * self.rows, 1)
        if self.row_axis == 1:
            return dtypes.reshaped(flat, (self.rows, per_row)).T
        if self.shape[-1:] == (self.cols,):
            return dtypes.reshaped(flat, (*self.shape[:-1], per_row))
        if not self.shape:
            return dtypes.reshaped(flat, ())
        # Rows that span several axes, as those of a convolution: the first of these axes counts the scales.
        return dtypes.reshaped(flat, (-1, *(per_row if i == 1 else 1 for i in range(1, len(self.shape)))))

    def column_factors(self) -> npt.NDArray[np.float32] | None:
        """The factors of columns, which some tensors of scheme ``rate`` have; ``None`` where there are none.

        They have a dimension for each of the tensor's, and ``(symbols() + 0.5) * scales() * column_factors()`` is the
        tensor in float32.
        """
        flat = self._container._open.columns(self._stored_name)
        if flat is None:
            return None
        if self.row_axis == 1:
            return dtypes.reshaped(flat, (self.cols, 1))
        # Matrices may span several axes, and so may columns, as those of a convolution.
        axes = range(len(self.shape) + 1)
        stack = next((i for i in axes if math.prod(self.shape[:i]) == self.count), None)
        inner = next((i for i in reversed(axes) if math.prod(self.shape[i:]) == self.cols), None)
        if stack is None or inner is None or stack > inner:
            # A view of the tensor that has none of its axes.
            return dtypes.reshaped(flat, (self.count, self.cols))
        return dtypes.reshaped(flat, (*self.shape[:stack], *(1 for _ in range(inner - stack)), *self.shape[inner:]))

    def numpy(self, dtype: npt.DTypeLike | str | None = None, *, threads: int | None = None) -> npt.NDArray[Any]:
        """The decoded tensor.

        In its own dtype by default; bf16 is ``ml_dtypes.bfloat16`` where that package is installed and float32 where it
        is not. With ``dtype`` float32, float16 or bfloat16, scheme ``int8`` computes symbol x scale in float32 and
        rounds once to what was asked for, so float32 then has more digits than a bf16 tensor.
        """
        name = None if dtype is None else dtypes.requested(dtype)
        if name is None or self.makes_symbols:
            return dtypes.view_bytes(self._bytes(name, threads), name or self.dtype, self.shape)
        self._must_be_float()
        target = dtypes.numpy_dtype(name)
        array = dtypes.view_bytes(self._bytes(None, threads), self.dtype, self.shape)
        return array.astype("float32" if target is None else target, copy=False)

    def torch(
        self,
        dtype: torch.dtype | str | None = None,
        *,
        device: str | torch.device = "cpu",
        threads: int | None = None,
    ) -> torch.Tensor:
        """The decoded tensor as a torch tensor; ``dtype`` as in :meth:`numpy`, or int8 for the symbols of scheme
        ``int8``.

        On ``device="cuda"`` the GPU decodes, straight into the new tensor, in torch's current stream. Each call reads
        the tensor, sends it there and waits: for decoding again and again see :class:`GpuDecoder`.
        """
        from .._gpu import decodable, devices
        from .._gpu import decoder as _gpu_decoder
        from .._gpu import torch as _torch

        number = devices.parse(device)
        if number is not None:
            decoder = _gpu_decoder.GpuDecoder(self._container, [self._stored_name], device, threads=threads)
            out = decoder.decode(self._stored_name, dtype)
            decoder.check()
            return out
        wanted = None if dtype is None else decodable.wanted_dtype(self, dtype)
        if wanted == "I8" and self.makes_symbols:
            symbols = dtypes.bytes_of(self.symbols(threads=threads))
            return _torch.from_bytes(symbols, "I8", self.shape)
        if wanted is None or self.makes_symbols:
            return _torch.from_bytes(self._bytes(wanted, threads), wanted or self.dtype, self.shape)
        decoded = decodable.decoded_dtype(self, wanted)
        tensor = _torch.from_bytes(self._bytes(None, threads), decoded, self.shape)
        return tensor if wanted == decoded else _torch.cast(tensor, wanted)

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Rows of the decoded tensor in its own dtype, as ``numpy()[key]`` has them: of a slice or a number only the
        strips of 16 rows are decoded that hold them, of anything else the whole tensor.

        >>> import numpy as np, wcodec
        >>> data, _ = wcodec.compress_to_bytes({"w": np.eye(64, 256, dtype=np.float32)})
        >>> entry = wcodec.open(data)["w"]
        >>> entry[0:2].shape, entry[-1].shape, entry[:4, 0].tolist()
        ((2, 256), (256,), [1.0, 0.0, 0.0, 0.0])
        """
        first, *others = key if isinstance(key, tuple) and key else (key,)
        rest = tuple(others)
        row = None if isinstance(first, bool) else as_whole(first)
        count = self.shape[0] if self.shape else 0
        if row is not None and self.shape:
            if not -count <= row < count:
                raise IndexError(f"row {row:,} of tensor {shown(self.name)}, which has {count:,}")
            begin = row % count
            place = (0, *rest)
            return self.numpy_rows(begin, begin + 1)[place]
        if isinstance(first, slice) and self.shape:
            wanted = range(*first.indices(count))
            begin, end = (min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1]) + 1) if wanted else (0, 0)
            # Every row that lies between is decoded with its strip anyway, unless steps are large.
            inner = (slice(None, None, wanted.step), *rest)
            return self.numpy_rows(begin, end)[inner]
        return self.numpy()[key]

    def numpy_rows(
        self, begin: int, end: int, dtype: npt.DTypeLike | str | None = None, *, threads: int | None = None
    ) -> npt.NDArray[Any]:
        """Rows ``begin`` to ``end`` of the decoded tensor: ``numpy(dtype)[begin:end]``, but only the strips of 16 rows
        that hold them are decoded (of a tensor that is stored transposed, everything).

        :param begin: first row, counted over the first dimension. Unlike in a slice, it must be one that there is.
        :param end: one past the last row; ``end == begin`` gives an array without rows.
        :param dtype: as in :meth:`numpy`.
        """
        name = None if dtype is None else dtypes.requested(dtype)
        shape = self._shape_of_rows(begin, end)
        if name is None or self.makes_symbols:
            return dtypes.view_bytes(self._bytes_of_rows(begin, end, name, threads), name or self.dtype, shape)
        self._must_be_float()
        target = dtypes.numpy_dtype(name)
        array = dtypes.view_bytes(self._bytes_of_rows(begin, end, None, threads), self.dtype, shape)
        return array.astype("float32" if target is None else target, copy=False)

    def torch_rows(
        self, begin: int, end: int, dtype: TorchDtype | str | None = None, *, threads: int | None = None
    ) -> Tensor:
        """Rows ``begin`` to ``end`` as a torch tensor on the CPU: ``torch(dtype)[begin:end]``, decoded as in
        :meth:`numpy_rows`. On a GPU, :meth:`GpuDecoder.decode` takes ``rows``::

            entry = container["model.embed_tokens.weight"]
            some = entry.torch_rows(1000, 1003, torch.float32)   # [3, hidden]

        :param dtype: as in :meth:`torch`; int8 for the symbols of scheme ``int8``.
        """
        from .._gpu import decodable
        from .._gpu import torch as _torch

        shape = self._shape_of_rows(begin, end)
        wanted = None if dtype is None else decodable.wanted_dtype(self, dtype)
        if wanted is None or self.makes_symbols:
            return _torch.from_bytes(self._bytes_of_rows(begin, end, wanted, threads), wanted or self.dtype, shape)
        decoded = decodable.decoded_dtype(self, wanted)
        tensor = _torch.from_bytes(self._bytes_of_rows(begin, end, None, threads), decoded, shape)
        return tensor if wanted == decoded else _torch.cast(tensor, wanted)

    def decode_into(self, out: Tensor, *, threads: int | None = None) -> None:
        """Decodes into a torch tensor, on the CPU or a GPU: contiguous, of the tensor's shape, and of the dtype to
        decode to (float32, float16 or bfloat16 for floats; int8 for the symbols of scheme ``int8``; otherwise its own).

        The device that the tensor is on decodes. On a GPU that is in torch's current stream, which is waited for::

            weight = torch.empty(entry.shape, dtype=torch.bfloat16, device="cuda")
            entry.decode_into(weight)
        """
        from .._gpu import decodable, devices
        from .._gpu import decoder as _gpu_decoder
        from .._gpu import torch as _torch

        name = _torch.check_output(out, self.name, self.shape)
        if devices.parse(out.device) is None:
            decodable.decoded_dtype(self, name)
            _torch.overwrite(out, self.torch(out.dtype, threads=threads))
        else:
            decoder = _gpu_decoder.GpuDecoder(self._container, [self._stored_name], out.device, threads=threads)
            decoder.decode(self._stored_name, out=out)
            decoder.check()

    def _bytes(self, dtype: str | None, threads: int | None) -> npt.NDArray[np.uint8]:
        words, length = self._container._open.read(self._stored_name, dtype, decode_options(threads))
        return words.view("uint8")[:length]

    def _shape_of_rows(self, begin: int, end: int) -> tuple[int, ...]:
        rows = self.shape[0] if self.shape else 0
        first, last = as_whole(begin), as_whole(end)
        if not self.shape or first is None or last is None or not 0 <= first <= last <= rows:
            has = f"it has {rows:,}" if self.shape else "a scalar has none"
            raise InputError(
                f"tensor '{self.name}': rows {shown(begin)} to {shown(end)} ({has})", tensor=self.name, code="I425"
            )
        return (last - first, *self.shape[1:])

    def _bytes_of_rows(self, begin: int, end: int, dtype: str | None, threads: int | None) -> npt.NDArray[np.uint8]:
        options = decode_options(threads)
        words, length = self._container._open.read_rows(self._stored_name, begin, end, dtype, options)
        return words.view("uint8")[:length]

    def _must_be_float(self) -> None:
        if self.dtype not in (*dtypes.FLOATS, "F64"):
            raise InputError(
                f"tensor '{self.name}': its dtype {self.dtype} is no float to convert (leave dtype out)",
                tensor=self.name,
                code="I423",
            )

    plot: ClassVar[Accessor[EntryPlots]] = Accessor(
        "wcodec._plot.entry:EntryPlots",
        "Plots: ``entry.plot()`` (its symbols, or its values where it has none), ``entry.plot.symbols()``, "
        "``entry.plot.scales()``, ``entry.plot.values()``.",
    )

    def _facts(self) -> list[tuple[str, str]]:
        cells = dict(zip(("shape", "dtype", "scheme", "coder", "original", "stored", "ratio", "bits/weight"),
                         table_row(self)[1:], strict=True))  # fmt: skip
        if self.alias_of:
            cells["tied to"] = self.alias_of
        return list(cells.items())

    def __repr__(self) -> str:
        return f"TensorEntry({self.name!r}, {fmt.facts(self._facts())})"

    def _repr_html_(self) -> str:
        return fmt.html_block(self.name, self._facts())


class Container(Mapping[str, TensorEntry]):
    """An open ``.wcodec`` file: a read-only mapping from names to :class:`TensorEntry`.

    Opening reads the header and the index only. Tied tensors appear under each of their names. Use it in a ``with``
    block, or :meth:`close` it, to let go of the file.
    """

    def __init__(self, native: _native.Container) -> None:
        self._native: _native.Container | None = native
        self._aliases = native.aliases()
        self._tensors = native.facts()
        path = native.path()
        self._path = None if path is None else path_of(path)

    @classmethod
    def open(
        cls, source: str | os.PathLike[str] | bytes | bytearray | memoryview, *, trusted: bool = False
    ) -> Container:
        """Opens a file, or a container that is in memory; ``trusted`` as in :func:`wcodec.open`."""
        return cls(open_native(source, trusted))

    # Mapping

    @cached_property
    def _names(self) -> dict[str, None]:
        """All names: a dictionary for its order and its fast look-up."""
        return dict.fromkeys([*self._tensors.names(), *self._aliases])

    def __getitem__(self, name: str) -> TensorEntry:
        if name not in self:
            raise self._missing(name)
        native = self._open
        return self._entry(native.facts(), native.place(name), name, self._aliases.get(name))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def keys(self) -> KeysView[str]:
        """The names of all tensors, in the order of the file; it shows them."""
        from .display import Names

        return Names(self)

    def _ipython_key_completions_(self) -> list[str]:
        """Names that notebooks complete after ``container["``."""
        return list(self._names)

    def read_rows(
        self,
        name: str,
        begin: int,
        end: int,
        dtype: npt.DTypeLike | str | None = None,
        *,
        threads: int | None = None,
    ) -> npt.NDArray[Any]:
        """Rows ``begin`` to ``end`` of a tensor, of which no more is decoded than needed: see
        :meth:`TensorEntry.numpy_rows`.

        >>> import numpy as np, wcodec
        >>> data, _ = wcodec.compress_to_bytes({"w": np.eye(64, 256, dtype=np.float32)})
        >>> wcodec.open(data).read_rows("w", 30, 33).shape
        (3, 256)
        """
        return self[name].numpy_rows(begin, end, dtype, threads=threads)

    def extract(self, names: Iterable[str]) -> bytes:
        """A complete container with these tensors and no others, as bytes for :meth:`open` or a file.

        Stored segments are copied as they are, after a comparison with their hashes: nothing is decoded or encoded.
        Tied tensors stay tied where several of their names are given; one name alone holds the data itself. Metadata is
        kept; :attr:`model`, which describes the whole checkpoint, is not, nor where the rest of a model is::

            layer = wcodec.open(container.extract(["lm_head.weight"]))

        :raises TensorNotFoundError: if there is no such tensor.
        :raises CorruptError: if one of them is damaged.
        """
        if isinstance(names, str):
            raise InputError(f"names takes several names, not {shown(names)} (put it into a list)", code="I422")
        wanted = list(names)
        for name in wanted:
            if name not in self:
                raise self._missing(name)
        if not wanted:
            raise InputError("names is empty (name at least one tensor)", code="I422")
        return self._open.extract(wanted)

    def _missing(self, name: object) -> TensorNotFoundError:
        return missing(name, self._native, self._path)

    def _entry(self, facts: Facts, place: int, name: str, alias_of: str | None = None) -> TensorEntry:
        return TensorEntry._at(facts, place, name=name, alias_of=alias_of, _container=self)

    # Facts

    @property
    def stored(self) -> list[TensorEntry]:
        """Every tensor that has data of its own, in the order of the file."""
        facts = self._open.facts()
        return [self._entry(facts, place, name) for place, name in enumerate(facts.names())]

    @property
    def aliases(self) -> dict[str, str]:
        """Tied tensor -> the stored tensor that holds its data."""
        return dict(self._aliases)

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the checkpoint, and what was added when encoding."""
        return self._open.metadata()

    @property
    def model(self) -> dict[str, Any] | None:
        """The model's ``config`` and the names of its other ``files``, if the checkpoint had them."""
        record = json.loads(self._open.model() or "null")
        # Any other value that a file may have there is of no use.
        return record if isinstance(record, dict) else None

    @property
    def path(self) -> str | None:
        """The path of the file; ``None`` for a container in memory."""
        return self._path

    @property
    def trusted(self) -> bool:
        """Whether it was opened as trusted: see :func:`wcodec.open`."""
        return self._open.trusted()

    @property
    def version(self) -> tuple[int, int]:
        """Version of the format, major and minor."""
        return self._open.version()

    @property
    def writer(self) -> str:
        """The program that wrote the file."""
        return self._open.writer()

    @property
    def original_bytes(self) -> int:
        """Bytes of the tensors before encoding, tied ones counted once."""
        return self._open.facts().totals()[2]

    @property
    def stored_bytes(self) -> int:
        """Length of the file."""
        return self._open.file_len()

    @property
    def elements(self) -> int:
        """Number of weights, tied ones counted once."""
        return self._open.facts().totals()[1]

    @property
    def ratio(self) -> float | None:
        """Original bytes per stored byte (larger is better), the whole file counted."""
        return fmt.ratio(self.original_bytes, self.stored_bytes)

    @property
    def bits_per_weight(self) -> float | None:
        """Stored bits per weight, the whole file counted."""
        return fmt.bits(self.stored_bytes, self.elements)

    # Life time

    @property
    def _open(self) -> _native.Container:
        if self._native is None:
            raise InputError(
                "the container is closed (open it again, or read inside the with block)", file=self._path, code="I221"
            )
        return self._native

    def close(self) -> None:
        """Lets go of the file. Arrays that were decoded stay valid."""
        self._native = None

    def __enter__(self) -> Container:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Display

    plot: ClassVar[Accessor[ContainerPlots]] = Accessor(
        "wcodec._plot.container:ContainerPlots",
        "Plots: ``container.plot()``, the same as ``container.plot.heatmap()``, ``container.plot.ratio()``, "
        "``container.plot.scales(name)``, ``container.plot.symbols(name)``.",
    )

    def _facts(self) -> list[tuple[str, str]]:
        tensors, elements, original, _ = self._open.facts().totals()
        facts = [
            ("tensors", f"{tensors:,}"),
            ("weights", f"{elements:,}"),
            ("original", fmt.size(original)),
            ("stored", fmt.size(self.stored_bytes)),
            ("ratio", fmt.number(fmt.ratio(original, self.stored_bytes))),
            ("bits/weight", fmt.number(fmt.bits(self.stored_bytes, elements))),
        ]
        if self._aliases:
            facts.insert(1, ("tied", f"{len(self._aliases):,}"))
        return [("file", self._path or "in memory"), *facts, *plan_facts(self.metadata)]

    def __repr__(self) -> str:
        if self._native is None:
            return f"Container({fmt.facts([('file', self._path or 'in memory')])}, closed)"
        from .display import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        if self._native is None:
            return fmt.html_block("Container", [("file", self._path or "in memory"), ("state", "closed")])
        from .display import html_of

        return html_of(self)
