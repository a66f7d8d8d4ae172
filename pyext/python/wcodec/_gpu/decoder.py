"""Decoding on NVIDIA GPUs, straight into torch's memory.

torch allocates the tensors; the native module gets their addresses and torch's current stream, and puts launches there.
Nothing is decoded on the CPU instead: where a GPU, its driver or a library is missing, that is a :class:`DeviceError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .. import _native
from .._core import dtypes
from .._core import format as fmt
from .._core.errors import InputError, TensorNotFoundError
from .._core.keywords import keywords
from .._core.opened import open_native, place_of
from .._core.options import count, path_of
from .._core.tensor_info import TensorInfo
from . import devices
from . import torch as _torch
from .decodable import checked_rows, decoded_dtype, shape_of, wanted_dtype

if TYPE_CHECKING:
    import torch

    from .._file.container import Container
    from .._native import _GpuOptions


def gpu_options(
    threads: int | None = None,
    check: bool = True,
    scratch: int | None = None,
    nvcomp: str | os.PathLike[str] | None = None,
    ring: int | None = None,
    readers: int | None = None,
    direct: bool | None = None,
) -> _GpuOptions:
    """All options, with the defaults filled in."""
    return {
        "threads": count("threads", threads),
        "verify": bool(check),
        "zstd_scratch": count("scratch", scratch, 0),
        "ring": count("ring", ring, 0),
        "readers": count("readers", readers),
        "direct": direct,
        "nvcomp": None if nvcomp is None else path_of(nvcomp),
        "nvcomp_folders": devices.nvcomp_folders(),
    }


class _Targets(NamedTuple):
    """Outputs that the native half writes, and conversions that torch does for it."""

    native: list[_native._DecodeItem]
    outs: list[torch.Tensor]
    # Kernels convert symbols only; for the few floats that are stored raw torch does, from a tensor beside the output.
    conversions: list[tuple[torch.Tensor, torch.Tensor]]


class DecodeBatch:
    """Tensors that are decoded together, again and again, into the same outputs: the result of
    :meth:`GpuDecoder.prepare` and :meth:`HostDecoder.prepare`.

    Names, addresses and launches are fixed when it is made, so that a call costs a few microseconds. The batch keeps
    the outputs and the decoder's memory alive::

        batch = decoder.prepare([(name, out) for name, out in outputs.items()])
        batch.launch()                      # decodes into every out, in torch's current stream
        decoder.check()                     # waits; raises if anything was damaged
    """

    def __init__(self, native: _native.DecodeBatch, resolved: _Targets, device: torch.device) -> None:
        torch = _torch.require()
        self._native = native
        self._device = device
        self._outs = resolved.outs
        self._conversions = resolved.conversions
        # Streams that torch was told of: it must not give the outputs' memory to others before they are done with it.
        self._known: set[int] = set()
        increment = getattr(torch.autograd.graph, "increment_version", None)
        self._increment = increment
        self._versioned = [] if increment is None else [out for out in resolved.outs if not out.is_inference()]
        # Faster than the public way, which makes an object for each call.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._current = raw if device.type == "cuda" else None

    @property
    def slots(self) -> int:
        """The number of slots of a :class:`HostDecoder`'s ring that the batch takes from :meth:`prefetch` to
        :meth:`launch`; 0 for a :class:`GpuDecoder`."""
        return self._native.slots()

    def prefetch(self) -> None:
        """Begins to copy the batch's bytes to the GPU, for a :class:`HostDecoder`, and returns at once. For a
        :class:`GpuDecoder`, whose bytes are there, it does nothing.

        The copies run beside torch's streams, as far as slots of the ring are free, and wait (on the GPU) until what
        was in a slot before is decoded. Tensors that were prefetched already are not copied again. A batch that is
        never launched blocks no other: launches that find no free slot take one from the batch that was prefetched
        last, which then copies again.
        """
        self._native.prefetch()

    def launch(self) -> None:
        """Puts the decoding into torch's current stream, behind the copies if there are some. It neither waits nor
        allocates. CUDA graphs can capture it if the decoder is a :class:`GpuDecoder`."""
        if self._current is None:
            stream = _torch.require().cuda.current_stream(self._device).cuda_stream
        else:
            stream = self._current(self._device.index)
        if stream not in self._known:
            self._introduce(stream)
        self._native.launch(stream)
        for out, place in self._conversions:
            _torch.overwrite(out, place)
        for out in self._versioned:
            # A graph of autograd that saved it for its backward pass must notice.
            self._increment(out)  # type: ignore[misc]

    def _introduce(self, stream: int) -> None:
        current = _torch.require().cuda.current_stream(self._device)
        for out in (*self._outs, *(place for _, place in self._conversions)):
            out.record_stream(current)
        self._known.add(stream)

    def __repr__(self) -> str:
        return f"DecodeBatch({fmt.plural(len(self._outs), 'tensor')}, device: {self._device})"


def _current_stream() -> Callable[[int | None], int]:
    """A function that gives torch's current stream of a GPU, by the GPU's number."""
    torch = _torch.require()
    # Faster than the public way, which makes an object for each call.
    raw: Callable[[int | None], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw if raw is not None else lambda index: torch.cuda.current_stream(index).cuda_stream


class ProductBatch:
    """Products of a few vectors with matrices that stay compressed: the result of :meth:`GpuDecoder.products` and
    :meth:`HostDecoder.products`.

    Calling it takes one launch, allocates nothing but the results, and waits for nothing; CUDA graphs can capture it if
    the decoder is a :class:`GpuDecoder`. Weights are exact, sums are f32 in the order of the columns, scaled at the end
    (elements of ``x`` beyond 1e34 may overflow), and results are rounded once: the same bits in whatever launch, and
    wherever the compressed bytes are. One vector is multiplied in whole numbers, its elements as multiples of 2^-28 of
    a power of two above the largest one: alone it may give other last bits than beside others, and an element that
    is infinite makes all its results NaN. Beside up to 8, 16, 32, 64 and 128 vectors last bits may be others, too. A
    damaged chunk makes its rows NaN, and the decoder's ``check()`` names it::

        products = decoder.products([("q.weight", None), ("k.weight", None), ("v.weight", None)])
        q, k, v = products(x)                # x: up to products.most vectors of bfloat16
    """

    MOST: ClassVar[int] = _native.PRODUCT_VECTORS
    """The most vectors that any call takes; :attr:`most` is the number for these matrices."""
    MOST_NORMED: ClassVar[int] = _native.PRODUCT_VECTORS_SQUARED
    """The most vectors of a call that divides results by the vectors' norm, as launches of whole blocks do."""

    def __init__(
        self,
        native: _native.TensorDecoder,
        infos: Sequence[TensorInfo],
        biases: Sequence[torch.Tensor | None],
        dtype: str,
        device: torch.device,
        vectors: Sequence[int] | None = None,
    ) -> None:
        if not infos:
            raise InputError("factors is empty (name at least one tensor)", code="I436")
        for info in infos:
            if len(info.shape) != 2 or info.shape[1] != infos[0].shape[1]:
                raise InputError(
                    f"tensor '{info.name}': products take matrices of one width, not {list(info.shape)} "
                    f"beside {list(infos[0].shape)} (prepare them apart)",
                    tensor=info.name,
                    code="I436",
                )
        self._dtype = _torch.dtype_of(dtype)
        for info, bias in zip(infos, biases, strict=True):
            if bias is None:
                continue
            fits = bias.dtype == self._dtype and bias.shape == info.shape[:1] and bias.stride(0) == 1
            if not fits or bias.device != device:
                raise InputError(
                    f"tensor '{info.name}': a bias is {info.shape[0]} contiguous elements of {dtype} on {device} "
                    "(convert it)",
                    tensor=info.name,
                    code="I436",
                )
        if vectors is not None and (
            len(vectors) != len(infos) or not all(0 <= vector < self.MOST for vector in vectors)
        ):
            raise InputError(
                f"vectors names one of up to {self.MOST} vectors, from 0 on, for each factor, not {list(vectors)} "
                f"for {fmt.plural(len(infos), 'factor')} (give each its number)",
                code="I436",
            )
        # They stay alive with the batch.
        self._biases = biases
        self._own = None if vectors is None else max(vectors) + 1
        self._device = device
        self._in = infos[0].shape[1]
        self._outs = [info.shape[0] for info in infos]
        self._total = sum(self._outs)
        first = vectors or [0] * len(infos)
        factors: list[_native._ProductItem] = [
            (info.name, None, 0 if bias is None else bias.data_ptr(), vector)
            for info, bias, vector in zip(infos, biases, first, strict=True)
        ]  # fmt: skip
        self._native = native.prepare_products(factors, dtype)
        self._most = self._native.most_vectors()
        self._current = _current_stream()

    @property
    def most(self) -> int:
        """The most vectors that a call takes: 128 where each of the matrices has a kernel for so many on this GPU,
        which takes layout ``quad``, at most one scale for each row, and compute capability 9.0; otherwise 16."""
        return self._most

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The products of each matrix with the last dimension of ``x``: up to :attr:`most` vectors. If each matrix has
        a vector of its own, of up to :attr:`MOST`, each result is a vector."""
        count = x.numel() // self._in if self._in else 0
        most = self._most if self._own is None else self.MOST
        if x.shape[-1:] != (self._in,) or x.dtype != self._dtype or x.device != self._device or count > most:
            raise InputError(
                f"products take up to {most} vectors of {self._in} elements, {self._dtype} on {self._device}, not "
                f"{list(x.shape)} of {x.dtype} on {x.device} (decode the weight for more; convert the input)",
                code="I436",
            )
        if self._own is None:
            return self.apart(self.run(x, count), x, count)
        if count < self._own:
            raise InputError(
                f"vector {self._own - 1} of {fmt.plural(count, 'vector')} (give all that matrices are for)", code="I436"
            )
        return list(self.run(x, 1).split(self._outs))

    def run(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """The results of all matrices behind each other, for ``count`` vectors (1 where each has its own); nothing is
        checked."""
        if not x.is_contiguous():
            x = x.contiguous()
        y = x.new_empty(self._total * count)
        self._native.multiply(x.data_ptr(), self._in, count, y.data_ptr(), self._current(self._device.index))
        return y

    def apart(self, y: torch.Tensor, x: torch.Tensor, count: int) -> list[torch.Tensor]:
        """The results of each matrix."""
        parts = y.split([n * count for n in self._outs]) if len(self._outs) > 1 else [y]
        shape = x.shape[:-1]
        return [part.view(*shape, n) for part, n in zip(parts, self._outs, strict=True)]

    def prefetch(self) -> None:
        """Begins to copy compressed bytes to the GPU, as :meth:`DecodeBatch.prefetch`."""
        self._native.prefetch()

    @property
    def slots(self) -> int:
        """The number of the ring's slots that it takes, as :attr:`DecodeBatch.slots`."""
        return self._native.slots()

    def __repr__(self) -> str:
        return f"ProductBatch({fmt.plural(len(self._outs), 'tensor')}, device: {self._device})"


class RowLookup:
    """Rows of a matrix that stays compressed, by numbers that the GPU has: the result of :meth:`GpuDecoder.lookup` and
    :meth:`HostDecoder.lookup`.

    Calling it takes a launch for each plane of the tensor (one, but for some of scheme ``lossless``), allocates nothing
    but the results, and waits for nothing; CUDA graphs can capture it. The strip of 16 rows that each row is in is
    decoded, which the GPU reads from the host's memory if the tensor is there. For a tensor that is read from the file
    the CPU waits for the numbers and reads each strip once; graphs cannot capture that. A damaged chunk makes its
    columns NaN, and the decoder's ``check()`` names it::

        lookup = decoder.lookup("embed.weight", torch.bfloat16)
        rows = lookup(ids)                   # ids: int64 or int32, of any shape; as table[ids]
    """

    def __init__(
        self, native: _native.TensorDecoder, info: TensorInfo, decoded: str, wanted: str, device: torch.device
    ) -> None:
        torch = _torch.require()
        self._native = native.prepare_lookup(info.name, decoded)
        self._name, self._device = info.name, device
        self._width = info.shape[1]
        self._decoded, self._wanted = _torch.dtype_of(decoded), _torch.dtype_of(wanted)
        self._wide, self._dtypes = torch.int64, (torch.int64, torch.int32)
        self._current = _current_stream()

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of these numbers, in their shape. Numbers of no row, negative ones too, give NaN."""
        if ids.dtype not in self._dtypes or ids.device != self._device:
            raise InputError(
                f"tensor '{self._name}': numbers of rows are int64 or int32 on {self._device}, not {ids.dtype} on "
                f"{ids.device} (convert them)",
                tensor=self._name,
                code="I438",
            )
        if not ids.is_contiguous():
            ids = ids.contiguous()
        out = ids.new_empty((*ids.shape, self._width), dtype=self._decoded)
        stream = self._current(self._device.index)
        self._native.look_up(ids.data_ptr(), ids.numel(), ids.dtype is self._wide, out.data_ptr(), stream)
        # Torch converts what kernels do not.
        return out if self._decoded is self._wanted else out.to(self._wanted)

    def __repr__(self) -> str:
        return f"RowLookup({self._name!r}, {self._wanted}, device: {self._device})"


class DeviceDecoder:
    """A decoder of tensors on a GPU, wherever the bytes of each are. :class:`GpuDecoder` and :class:`HostDecoder` make
    one."""

    _native: _native.TensorDecoder
    _device: torch.device
    _infos: dict[str, TensorInfo]

    def _read(
        self,
        container: Container | str | os.PathLike[str] | bytes,
        names: Iterable[str] | None,
        device: str | torch.device,
        options: _GpuOptions,
        resident: bool,
        from_disk: Iterable[str] | bool = False,
    ) -> None:
        """Has the native half read the tensors: to the GPU if they are ``resident``, otherwise to the host's memory or,
        for those of ``from_disk``, not now."""
        number = devices.parse(device)
        if number is None:
            kind = type(self).__name__
            raise InputError(f"a {kind} decodes on a GPU (use device='cuda', or Container for the CPU)", code="I320")
        # The native container of an open one, which is built on it, or one of the decoder's own.
        opened: _native.Container = getattr(container, "_open", None) or open_native(container)  # type: ignore[arg-type]
        self._infos = _infos_of(opened, names)
        self._device = devices.torch_device(number)
        wanted = from_disk if isinstance(from_disk, bool | str) else list(from_disk)
        on_disk = set(_infos_of(opened, None if isinstance(wanted, bool) else wanted)) if wanted else set()
        on_host = set() if resident else set(self._infos)
        stored, index = list(self._infos), self._device.index
        self._native = _torch.with_spare(
            self._device, lambda: _native.TensorDecoder(opened, stored, index, options, on_host, on_disk & on_host)
        )
        for alias, target in opened.aliases().items():
            if target in self._infos:
                self._infos[alias] = self._infos[target]

    @property
    def names(self) -> list[str]:
        """Every name that can be decoded, those of tied tensors included."""
        return list(self._infos)

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return self._device

    @property
    def device_bytes(self) -> int:
        """Memory of the GPU that the decoder holds: compressed tensors (or the ring that they pass through), decoding
        tables, scratch."""
        return self._native.device_bytes()

    def info(self, name: str) -> TensorInfo:
        """The file's entry for a tensor (for a tied one, for the tensor that holds its data)."""
        info = self._infos.get(name)
        if info is None:
            raise TensorNotFoundError(
                f"the decoder has no tensor {name!r} (name it when making it)", tensor=str(name), code="I421"
            )
        return info

    def decode(
        self,
        name: str,
        dtype: torch.dtype | str | None = None,
        out: torch.Tensor | None = None,
        rows: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Begins to decode a tensor, in torch's current stream, and returns it.

        :param dtype: float32, float16 or bfloat16 for a tensor of floats; int8 for the symbols of a quantized one; its
            own dtype if left out.
        :param out: the tensor to write: contiguous, of the right shape, on the decoder's GPU. Its dtype counts.
        :param rows: ``(begin, end)`` of the first dimension, to decode these only: both multiples of 16, or the end of
            the tensor (of a matrix, in a stack of matrices). The result, or ``out``, has ``end - begin`` rows. Tensors
            that are stored transposed, or raw without rows, are decoded as a whole only.
        """
        info = self.info(name)
        if out is None:
            out = self._empty(info, wanted_dtype(info, dtype), rows)
        elif dtype is not None and _torch.dtype_of(wanted_dtype(info, dtype)) != out.dtype:
            raise InputError(
                f"tensor '{name}': out is {out.dtype}, and dtype is {dtype} (leave dtype out)", tensor=name, code="I307"
            )
        self._launch([(info, out, rows)])
        return out

    def decode_rows(
        self, name: str, runs: Sequence[tuple[int, int]], dtype: torch.dtype | str | None = None
    ) -> torch.Tensor:
        """Begins to decode ranges of rows of a tensor, in torch's current stream. The result is that of :meth:`decode`
        for each, one behind the other, in less time where there are many: rows of an embedding, say::

            decoder.decode_rows("embed.weight", [(0, 16), (4096, 4128)])     # 48 rows

        :param runs: ``(begin, end)`` of each range, as in :meth:`decode`; in any order, and more than once.
        :param dtype: as in :meth:`decode`.
        """
        info = self.info(name)
        wanted = wanted_dtype(info, dtype)
        decoded = decoded_dtype(info, wanted)
        rows, last = 0, info.shape[0] if info.shape else -1
        for begin, end in runs:
            if not 0 <= begin <= end <= last:
                checked_rows(info, (begin, end))
            rows += end - begin
        torch = _torch.require()
        shape = (rows, *info.shape[1:])
        place = torch.empty(shape, dtype=_torch.dtype_of(decoded), device=self._device)
        self._native.decode_rows((info.name, place.data_ptr(), decoded), runs, self._stream().cuda_stream)
        # Torch converts what kernels do not.
        return place if decoded == wanted else place.to(_torch.dtype_of(wanted))

    def decode_batch(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Begins to decode several tensors at once, which takes fewer launches, each into a tensor as :meth:`decode`'s
        ``out``."""
        self._launch([(self.info(name), out, None) for name, out in targets.items()])

    def prepare(
        self, targets: Sequence[tuple[str, torch.Tensor] | tuple[str, torch.Tensor, tuple[int, int]]]
    ) -> DecodeBatch:
        """Does once what :meth:`decode_batch` does for every call before it launches.

        :param targets: name and output of each tensor, and ``rows`` as for :meth:`decode` where not all are wanted. A
            tensor can be there more than once.
        """
        resolved = self._resolve([(self.info(t[0]), t[1], t[2] if len(t) == 3 else None) for t in targets])
        return DecodeBatch(self._native.prepare(resolved.native), resolved, self._device)

    def multiplies(self, dtype: torch.dtype) -> bool:
        """Whether kernels of this GPU multiply vectors of that dtype."""
        torch = _torch.require()
        return dtype is torch.float16 or (
            dtype is torch.bfloat16 and torch.cuda.get_device_capability(self._device) >= (8, 0)
        )

    def unfused(self, name: str) -> str | None:
        """The former name of :meth:`can_fuse`, which does the same."""
        return self.can_fuse(name)

    def can_fuse(self, name: str) -> str | None:
        """The reason for which no kernel multiplies with this tensor as it is stored; None where :meth:`products` takes
        it."""
        return self._native.can_fuse(self.info(name).name)

    def most_vectors(self, name: str) -> int:
        """The most vectors that :meth:`products` with this tensor take on this GPU (:attr:`ProductBatch.most`): 0 where
        no kernel multiplies with it as it is stored."""
        return self._native.most_vectors(self.info(name).name)

    def products(
        self,
        factors: Sequence[tuple[str, torch.Tensor | None]],
        dtype: torch.dtype | str = "bfloat16",
        vectors: Sequence[int] | None = None,
    ) -> ProductBatch:
        """Prepares products of vectors with matrices ``[out, in]``, straight from their compressed weights, as of
        linear layers that read the same input. The weights are never written to memory.

        :param factors: name and bias (or None) of each; all have the same number of columns.
        :param dtype: the dtype of the vectors, the biases and the results: float16, or bfloat16 on GPUs of compute
            capability 8.0 and later.
        :param vectors: for each factor the number of the one vector of a call that it multiplies, as for experts of
            tokens; without it, each multiplies all of them.
        :raises InputError: if a tensor is stored in a way that no kernel multiplies with (:meth:`can_fuse`).
        """
        infos = [self.info(name) for name, _ in factors]
        name = dtypes.requested(str(dtype))
        return ProductBatch(self._native, infos, [bias for _, bias in factors], name, self._device, vectors)

    def no_lookup(self, name: str) -> str | None:
        """The former name of :meth:`can_look_up`, which does the same."""
        return self.can_look_up(name)

    def can_look_up(self, name: str) -> str | None:
        """The reason for which no kernel gathers rows of this tensor as it is stored; None where :meth:`lookup` takes
        it."""
        return self._native.can_look_up(self.info(name).name)

    def lookup(self, name: str, dtype: torch.dtype | str | None = None) -> RowLookup:
        """Prepares the looking up of rows of a matrix, as an embedding does it: by numbers that are on the GPU. The CPU
        does not wait for them, unless the tensor is read from the file.

        :param dtype: the dtype of the rows, as in :meth:`decode`: float32, float16 or bfloat16.
        :raises InputError: if the tensor is stored in a way that no kernel does that for (:meth:`can_look_up`): by
            coder ``zstd``, raw or transposed, say.
        """
        info = self.info(name)
        wanted = wanted_dtype(info, dtype)
        return RowLookup(self._native, info, decoded_dtype(info, wanted), wanted, self._device)

    def check(self) -> None:
        """Waits for torch's current stream, and raises a :class:`CorruptError` if anything decoded since the last call
        was damaged."""
        self._native.check(self._stream().cuda_stream)

    def _stream(self) -> Any:
        return _torch.require().cuda.current_stream(self._device)

    def _empty(self, info: TensorInfo, name: str, rows: tuple[int, int] | None = None) -> torch.Tensor:
        decoded_dtype(info, name)
        return _torch.require().empty(shape_of(info, rows), dtype=_torch.dtype_of(name), device=self._device)

    def _resolve(self, targets: list[tuple[TensorInfo, torch.Tensor, tuple[int, int] | None]]) -> _Targets:
        resolved = _Targets([], [], [])
        for info, out, rows in targets:
            place = out
            stored = None if rows is None else checked_rows(info, rows)
            name = _torch.check_output(out, info.name, shape_of(info, rows), self._device)
            decoded = decoded_dtype(info, name)
            if decoded != name:
                place = self._empty(info, decoded, rows)
                resolved.conversions.append((out, place))
            resolved.native.append((info.name, place.data_ptr(), decoded, stored))
            resolved.outs.append(out)
        return resolved

    def _launch(self, targets: list[tuple[TensorInfo, torch.Tensor, tuple[int, int] | None]]) -> None:
        stream = self._stream()
        resolved = self._resolve(targets)
        for out in resolved.outs:
            # Wherever it was allocated: torch must not give it to others before this stream is done with it.
            out.record_stream(stream)
        self._native.decode(resolved.native, stream.cuda_stream)
        for out, place in resolved.conversions:
            _torch.overwrite(out, place)
        for out in resolved.outs:
            _torch.changed(out)

    def __repr__(self) -> str:
        stored = len({info.name for info in self._infos.values()})
        return (
            f"{type(self).__name__}({fmt.plural(stored, 'tensor')}, device: {self._device}, "
            f"holds: {fmt.size(self.device_bytes)})"
        )


class GpuDecoder(DeviceDecoder):
    """Compressed tensors in a GPU's memory, to be decoded there as often as wanted.

    A decoder reads its tensors, checks their hashes, and keeps them on the GPU as they are stored. Decoding then only
    puts launches into torch's current stream: it neither allocates (with ``out``) nor waits, and a CUDA graph can
    capture it::

        decoder = wcodec.GpuDecoder("model.wcodec", ["lm_head.weight"])
        weight = decoder.decode("lm_head.weight", torch.bfloat16)
        decoder.check()                                   # waits; raises if anything was damaged

        batch = decoder.prepare([("lm_head.weight", weight)])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            batch.launch()
        graph.replay()

    A graph keeps what it reads of a decoder, so that decoder and batch can go before it; outputs are the caller's to
    keep. Tensors of coder ``zstd`` are decoded by nvCOMP and share scratch: work in several streams takes turns by
    itself, and each graph has scratch of its own.

    :param container: an open container, or the path or the bytes of one. It can be closed when the decoder is made.
    :param names: the tensors, tied ones among them; all if left out.
    :param device: ``cuda`` (torch's current device), ``cuda:N`` or a ``torch.device``.
    :param threads: threads that read and check the file; all cores if left out.
    :param check: whether hashes are checked.
    :param scratch: bytes of the GPU's memory for decoding ``zstd``: by default a sixteenth of it, 1.5 GiB at most. A
        single frame may take more.
    :param nvcomp: nvCOMP's library or the folder that has it; searched for if left out (``wcodec doctor`` tells).
    :raises DeviceError: if there is no GPU, or nvCOMP is needed and missing.
    :raises CorruptError: if a tensor is damaged.
    """

    @keywords(name="GpuDecoder")
    def __init__(
        self,
        container: Container | str | os.PathLike[str] | bytes,
        names: Iterable[str] | None = None,
        device: str | torch.device = "cuda",
        *,
        threads: int | None = None,
        check: bool = True,
        scratch: int | None = None,
        nvcomp: str | os.PathLike[str] | None = None,
    ) -> None:
        options = gpu_options(threads, check, scratch, nvcomp)
        self._read(container, names, device, options, resident=True)


def _infos_of(opened: _native.Container, names: Iterable[str] | None) -> dict[str, TensorInfo]:
    """The stored tensors that hold the data of these. Plain facts: those of an entry would keep the file open."""
    facts = opened.facts()
    if names is None:
        places: Iterable[int] = range(len(facts.names()))
    elif isinstance(names, str):
        raise InputError(f"names takes several names, not {names!r} (put it into a list)", code="I422")
    elif not (places := [place_of(opened, name) for name in names]):
        raise InputError("names is empty (leave it out for all tensors)", code="I422")
    infos = (TensorInfo._at(facts, place) for place in places)
    return {info.name: TensorInfo(**{f.name: getattr(info, f.name) for f in fields(TensorInfo)}) for info in infos}
