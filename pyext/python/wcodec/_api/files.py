"""Files: compress, decompress, open, load, verify and compare."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import _native
from .._calibrate import by_default
from .._calibrate.encoding import encoding_of
from .._core.coding import REPOSITORY, CompressOptions, FileOptions
from .._core.errors import InputError
from .._core.keywords import keywords, renamed
from .._core.options import choice, decode_options, path_of, shown
from .._core.paths import check_output, files_of, is_path, output
from .._core.progress import ProgressCallback, reporter
from .._core.reports import Comparison, CompressionReport, VerifyReport
from .._file import load, write
from .._file.container import Container
from .._file.sources import Source, Tensors, native_source
from .._gpu import decoder, devices
from .._gpu import torch as _torch
from .._gpu.decodable import CONVERTIBLE
from .._models import folder

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from .._core.coding import Calibration, Rules
    from .._plan import PlanReport

_Path = str | os.PathLike[str]
FRAMEWORKS = ("numpy", "torch")
# Endings of files that weights are read from.
_WEIGHTS = (".safetensors", ".gguf")


@keywords(CompressOptions)
def compress(
    src: Source,
    dst: _Path,
    *,
    scheme: str | None = None,
    bits: float | None = None,
    calibrate: Calibration | None = None,
    trellis: bool | None = None,
    rules: Rules | None = None,
    optimize: str = "speed",
    coder: str | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    budget: int | str | None = None,
    quality: str | None = None,
    text: Any = None,
    plan: PlanReport | _Path | None = None,
    overwrite: bool = False,
    metadata: Mapping[str, str] | None = None,
    progress: bool | ProgressCallback = True,
    **options: Unpack[CompressOptions],
) -> CompressionReport:
    """Encodes a checkpoint into one ``.wcodec`` file, or into the folder of a compressed model.

    >>> import pathlib, tempfile, numpy as np, wcodec
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "model.wcodec")
    >>> weights = {"w": np.linspace(-1, 1, 64 * 256, dtype=np.float32).reshape(64, 256)}
    >>> report = wcodec.compress(weights, path)
    >>> report.original_bytes, report.tensors[0].scheme
    (65536, 'int8')
    >>> with wcodec.open(path) as container:
    ...     error = abs(container["w"].numpy() - weights["w"]).max()
    >>> bool(error <= 0.5 / 127)
    True

    :param src: a ``.safetensors`` file, the folder of a checkpoint (sharded or not), a ``.gguf`` file (whose blocks
        become bfloat16; its own names are kept in a file, and become those of transformers in a folder, which takes the
        package ``gguf``), or a mapping from names to NumPy arrays, torch tensors (of any device, fetched one at a time)
        or entries of an open container. Tensors that share their data are stored once and stay tied. The arrays must
        not be changed meanwhile. For a folder ``dst`` also
        the name of a repository on the Hugging Face Hub: what is in the cache is read there, otherwise weights are read
        from the Hub a tensor at a time, without a copy of them on disk (what runs the model, as ``calibrate`` does,
        fetches it).
    :param dst: the file to write, or, with a separator at its end (``"out/"``), a folder: that of a compressed model,
        which :func:`wcodec.load_model`, ``AutoModel`` and all commands take, with the config and the tokenizer of the
        folder ``src``; layers are in its ``model.wcodec``, and what is not compressed beside that. Either appears when
        it is complete, or not at all.
    :param scheme: ``int8`` quantizes float32, float16 and bfloat16 (the default); ``rate`` does, to ``bits`` bits per
        weight (the default where ``bits`` or ``trellis`` is given); ``lossless`` keeps every bit; ``raw`` keeps every
        tensor as it is.
    :param optimize: the purpose of the bytes, which chooses ``coder``, ``layout``, ``table_bits`` and ``trellis`` where
        these are left out. ``speed`` (the default) is what GPUs multiply fastest with: ``huffman`` in layout ``quad``,
        without a trellis. ``size`` is smaller at the same quality: ``rans`` in layout ``pair``, with a trellis.
    :param bits: with scheme ``rate``, bits per weight from 1 to 8; 4 if left out. They are met by all tensors of the
        scheme together, and everything counts that is stored for them: symbols, signs, scales, tables, offsets.
    :param calibrate: with scheme ``rate``, by what the model does: :class:`wcodec.Statistics`, a ``.safetensors``
        file of them, ``True`` (on text of many kinds and what the model writes), ``"self"`` (on the latter alone), the
        path of a text, or token ids, which run the model of the folder ``src``. Bits go where errors matter most, and
        levels make up for each other's errors. Needs torch; minutes instead of seconds. ``"columns"`` takes seconds:
        columns whose inputs are large get finer steps. If left out, that is done up to 5 bits for the folder of a
        causal language model that runs here; otherwise the weights alone choose, and a warning of the logger
        ``wcodec.calibration`` says why. ``False`` leaves it out.
    :param trellis: with scheme ``rate``, whether levels are chosen by a trellis, which coders ``rans`` and ``huffman``
        can have: less error at the same bits, a little slower to encode and to decode.
    :param rules: other encodings of tensors whose names match a pattern, such as ``{"*.down_proj.*": {"bits": 5},
        "lm_head.*": "lossless"}``: a scheme, or a dictionary with the keys of :class:`Rule`. The first pattern counts
        that matches; tensors of rules with the same bits meet them together.
    :param coder: ``rans``, ``huffman``, ``zstd`` or ``raw``. Data that does not shrink is stored raw anyway.
    :param include: glob patterns of the tensors to quantize (all if left out); the others are stored raw.
    :param exclude: glob patterns of tensors to store raw.
    :param budget: instead of bits, what they are chosen for: bytes of the whole file (``"600MB"``) or bits per weight
        of the tensors that are encoded (``"4.2 bits"``). See :func:`wcodec.plan`, which takes more options and can be
        looked at before anything is written; ``src`` may be a model, too.
    :param quality: instead of bits, a bound of the damage, such as ``"kl<=0.02"``, likewise.
    :param text: with ``budget`` or ``quality``, what damage is measured on: a path, text or token ids.
    :param plan: instead of all of these, what :func:`wcodec.plan` returned, or the file that it was saved in: encoded
        as planned, without measuring anything again. The plan must be of this model.
    :param overwrite: whether an existing ``dst`` may be replaced.
    :param metadata: text to add to the checkpoint's metadata.
    :param progress: a bar, nothing, or a callback ``(tensor, done_bytes, total_bytes)``. An exception of a callback
        stops the work, as Ctrl-C does, and is passed on.
    :param options: rarely needed options, by name: see :class:`CompressOptions`.
    :raises InputError: for NaN or infinity in a tensor to quantize, if there are no tensors, if ``dst`` is one of the
        files that are read, something else than a file or named like one of another format, and for arguments that make
        no sense.
    :raises FileError: if a file is missing or cannot be written, or ``dst`` exists.
    """
    begin = time.perf_counter()
    wanted: dict[str, Any] = {
        "scheme": scheme, "bits": bits, "calibrate": calibrate, "trellis": trellis, "rules": rules,
        "optimize": optimize, "coder": coder, "budget": budget, "quality": quality, "text": text, "plan": plan,
        "include": include, "exclude": exclude, "overwrite": overwrite, "metadata": metadata, **options,
    }  # fmt: skip
    wanted["calibrate"] = by_default.chosen(src, wanted)
    report = _compressed(src, dst, **wanted, progress=progress)
    # With the seconds of the whole call: those of reading, calibrating and measuring, too.
    return replace(report, seconds=time.perf_counter() - begin)


def _compressed(
    src: Any,
    dst: _Path,
    *,
    budget: int | str | None = None,
    quality: str | None = None,
    text: Any = None,
    plan: PlanReport | _Path | None = None,
    progress: bool | ProgressCallback = True,
    **encoding: Any,
) -> CompressionReport:
    """Does the work of :func:`compress`, where ``calibrate`` says what is done, and ``None`` that nothing is."""
    wanted = {"budget": budget, "quality": quality, "text": text}
    calibrate, overwrite = encoding.get("calibrate"), bool(encoding.get("overwrite"))
    check_output(dst, calibrate, text, plan)
    if plan is not None:
        from .._plan.write import as_planned

        return _carried_out(dst, as_planned(src, plan, {**encoding, **wanted, "progress": progress}))
    if folder.is_meant(path_of(dst)):
        _torch.require()
        from .folder import compress_folder

        return compress_folder(src, path_of(dst), {**encoding, **wanted, "progress": progress}, _compressed)
    if isinstance(src, str) and not os.path.lexists(src) and "/" in src and not is_path(src):
        raise InputError(
            f"{src}: a model of the Hub is encoded to a folder (end the output with /)", file=src, code="I101"
        )
    for name in REPOSITORY:
        if encoding.pop(name, None):
            raise InputError(
                f"{name} is of a model of the Hub, which is encoded to a folder (leave it out)", code="I101"
            )
    if budget is not None or quality is not None:
        return _planned(src, dst, progress, {**_without_scales(encoding), **wanted})
    if text is not None:
        raise InputError("a text goes with a budget or a quality (pass one of these, or leave it out)", code="I631")
    target = path_of(dst)
    if calibrate is not None:
        # The model may run for minutes: what keeps a file from being written is told before.
        read = [src, *files_of(src)] if isinstance(src, str | os.PathLike) else []
        with output(target, inputs=[p for p in read if str(p).endswith(_WEIGHTS)], overwrite=overwrite):
            pass
    with encoding_of(src, encoding, progress) as settings:
        return write.to_file(src, target, settings)


def _planned(src: Any, dst: _Path, progress: bool | ProgressCallback, options: dict[str, Any]) -> CompressionReport:
    """Plans, encodes what was planned, and says so in the report."""
    from .._plan.write import planned

    return _carried_out(dst, planned(src, dst, progress, {**options, "device": options.get("device") or "cpu"}))


def _carried_out(dst: _Path, planned: tuple[Any, dict[str, Any], PlanReport]) -> CompressionReport:
    """Encodes what was planned: a source with its options and the plan, which the report has."""
    src, options, plan = planned
    return replace(_compressed(src, dst, **options), plan=plan)


# Options that a plan has no use for, each with the value that asks for nothing.
_NOT_PLANNED = {"scale": "row", "block": None, "bits_per_tensor": False, "columns": None, "frame": None}


def _without_scales(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a plan, which has scheme ``rate``.

    :raises InputError: for those of other schemes.
    """
    for name, nothing in _NOT_PLANNED.items():
        if options.get(name, nothing) != nothing:
            raise InputError(
                f"{name}={shown(options[name])} does not go with a budget or a quality, for which scheme rate chooses "
                f"the bits of all tensors (leave {name} out)",
                code="I307",
            )
    return {name: value for name, value in options.items() if name not in _NOT_PLANNED}


@keywords(FileOptions)
def compress_to_bytes(
    src: Source,
    *,
    scheme: str | None = None,
    bits: float | None = None,
    calibrate: Calibration | None = None,
    trellis: bool | None = None,
    rules: Rules | None = None,
    optimize: str = "speed",
    coder: str | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    metadata: Mapping[str, str] | None = None,
    progress: bool | ProgressCallback = False,
    **options: Unpack[FileOptions],
) -> tuple[bytes, CompressionReport]:
    """Encodes into memory instead of a file; the arguments are those of :func:`compress`.

    >>> import numpy as np, wcodec
    >>> data, report = wcodec.compress_to_bytes({"w": np.eye(16, dtype=np.float32)})
    >>> list(wcodec.open(data))
    ['w']
    """
    encoding: dict[str, Any] = {
        "scheme": scheme, "bits": bits, "calibrate": calibrate, "trellis": trellis, "rules": rules,
        "optimize": optimize, "coder": coder,
        "include": include, "exclude": exclude, "metadata": metadata, **options,
    }  # fmt: skip
    encoding["calibrate"] = by_default.chosen(src, encoding)
    with encoding_of(src, encoding, progress) as settings:
        return write.to_bytes(src, settings)


@keywords()
def decompress(
    path: _Path,
    dst: _Path,
    *,
    threads: int | None = None,
    overwrite: bool = False,
    partial: bool = False,
    check: bool = True,
    trusted: bool = False,
    progress: bool | ProgressCallback = True,
) -> None:
    """Decodes a container into a ``.safetensors`` file with the original names, shapes and dtypes.

    The container of a folder that :func:`wcodec.save_pretrained` wrote has only what is compressed of the model: what
    is not is taken from the file beside it, so that all tensors are there.

    Tensors are decoded piece by piece, and written as they come, so that memory is bounded by the stored bytes of a
    tensor; of one that is stored transposed all symbols are held.

    :param dst: the file to write. It appears when it is complete, or not at all.
    :param overwrite: whether an existing ``dst`` may be replaced.
    :param partial: whether the file with the rest of a model may be missing; its tensors then are, too.
    :param check: whether hashes are checked.
    :param trusted: as in :func:`open`.
    :raises FileMissingError: if the file with the rest of the model is missing, unless ``partial`` allows it.
    :raises InputError: if ``dst`` is one of the files that are read, or its name that of another format.
    """
    options = decode_options(threads, None, check)
    with Container.open(path, trusted=trusted) as container, reporter(progress, "decode") as callback:
        container._open.decode(path_of(dst), bool(overwrite), bool(partial), options, callback)


@keywords()
def open(path: _Path | bytes | bytearray | memoryview, *, trusted: bool = False) -> Container:
    """Opens a container, from a file or from bytes, without reading more than header and index.

    A file may take more memory than it has bytes, as the few KB do that a gigabyte of zeros becomes. Whether that is
    meant, only you can say. Unless it is ``trusted``, an index of more than 256 MiB is refused, and so is having a
    tensor in memory that is larger than 64 MiB and than 1,024 times its stored bytes. Hashes are compared in any case,
    and everything else that a file says is checked.

    >>> import numpy as np, wcodec
    >>> data, _ = wcodec.compress_to_bytes({"w": np.ones((32, 64), dtype=np.float16)})
    >>> with wcodec.open(data) as container:
    ...     entry = container["w"]
    ...     entry.shape, entry.dtype, entry.scheme, float(entry.numpy()[0, 0])
    ((32, 64), 'F16', 'int8', 1.0)

    :param trusted: whether the file comes from a source that means well.
    :raises InputError: if the index is too large for a file that is not trusted.
    """
    return Container.open(path, trusted=trusted)


@keywords(FileOptions)
def save_file(
    tensors: Tensors,
    path: _Path,
    metadata: Mapping[str, str] | None = None,
    *,
    scheme: str | None = None,
    bits: float | None = None,
    calibrate: Calibration | None = None,
    trellis: bool | None = None,
    rules: Rules | None = None,
    optimize: str = "speed",
    coder: str | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    overwrite: bool = True,
    progress: bool | ProgressCallback = False,
    **options: Unpack[FileOptions],
) -> CompressionReport:
    """Like ``safetensors.numpy.save_file`` and ``safetensors.torch.save_file``, with the options of :func:`compress`.

    As theirs, it replaces an existing file, and it shows no progress, unless told otherwise.
    """
    if not isinstance(tensors, Mapping):
        kind = type(tensors).__name__
        raise InputError(f"save_file takes a mapping of tensors, not {kind} (for paths, use compress)", code="I404")
    return compress(
        tensors, path, metadata=metadata, scheme=scheme, bits=bits, calibrate=calibrate, trellis=trellis, rules=rules,
        optimize=optimize, coder=coder, include=include, exclude=exclude, overwrite=overwrite, progress=progress,
        **options,
    )  # fmt: skip


@keywords()
def load_file(
    path: _Path,
    framework: str | None = None,
    *,
    dtype: Any = None,
    device: str | torch.device = "cpu",
    threads: int | None = None,
    trusted: bool = False,
    progress: bool | ProgressCallback = False,
) -> dict[str, Any]:
    """Every tensor of a container, as NumPy arrays or as torch tensors. Tied tensors stay one object.

    The container of a folder that :func:`wcodec.save_pretrained` wrote has only its compressed tensors; a
    ``UserWarning`` names the file with the rest.

    >>> import pathlib, tempfile, numpy as np, wcodec
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "model.wcodec")
    >>> report = wcodec.save_file({"ids": np.arange(3), "w": np.ones((2, 4), dtype=np.float32)}, path)
    >>> wcodec.load_file(path)["w"].tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]

    On a GPU, tensors are decoded by it, straight into torch's memory::

        state = wcodec.load_file("model.wcodec", device="cuda", dtype=torch.bfloat16)

    :param framework: ``numpy`` or ``torch``; if left out, ``numpy`` on the CPU and ``torch`` on a GPU. For bf16 in
        NumPy see :meth:`TensorEntry.numpy`.
    :param dtype: decodes float tensors to float32, float16 or bfloat16; others keep their dtype.
    :param device: ``cpu``, ``cuda`` (torch's current device), ``cuda:N`` or a ``torch.device``. Besides the tensors, a
        GPU holds about 1 GiB of compressed ones meanwhile, and scratch where they are of coder ``zstd``.
    :param trusted: as in :func:`open`.
    :raises DeviceError: if a GPU is asked for and it, its driver or nvCOMP (for coder ``zstd``) is missing.
    """
    number = devices.parse(device)
    framework_name = choice("framework", framework or ("numpy" if number is None else "torch"), FRAMEWORKS)
    if number is not None and framework_name != "torch":
        raise InputError(
            f"framework={framework_name!r} does not go with device={str(device)!r} (leave framework out)", code="I307"
        )
    if number is None and framework_name == "torch":
        _torch.require()
    out: dict[str, Any] = {}
    with Container.open(path, trusted=trusted) as container, reporter(progress, "load") as callback:
        rest = container._open.rest()
        if rest is not None:
            warnings.warn(
                f"{container.path or 'the container'} has only what is compressed of a model; the other tensors are in "
                f"{os.fspath(rest)} (wcodec.load_model loads both)",
                UserWarning,
                # Above the guard of keywords.
                stacklevel=3,
            )
        if number is not None:
            out.update(load.load(container, device, dtype, threads, callback))
        else:
            stored = container.stored
            done, total = 0, sum(t.original_bytes for t in stored)
            for entry in stored:
                wanted = dtype if entry.dtype in CONVERTIBLE else None
                out[entry.name] = getattr(entry, framework_name)(wanted, threads=threads)
                done += entry.original_bytes
                if callback:
                    callback(entry.name, done, total)
        out.update((name, out[target]) for name, target in container.aliases.items())
    return out


@keywords()
def verify(
    path: _Path,
    against: Source | None = None,
    *,
    device: str | torch.device = "cpu",
    threads: int | None = None,
    trusted: bool = False,
    progress: bool | ProgressCallback = True,
) -> VerifyReport:
    """Decodes everything and checks every hash; with ``against``, also that it is the encoding of that checkpoint.

    Damage to tensors is reported, tensor by tensor. Damage to header or index is a :class:`CorruptError`. A value that
    scheme ``int8`` gives and that is infinite or no number is damage. Tensors are decoded piece by piece, whatever they
    decode to; the tensor of ``against``, and what it is quantized to, are held as a whole.

    >>> import pathlib, tempfile, numpy as np, wcodec
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "model.wcodec")
    >>> weights = {"w": np.ones((16, 64), dtype=np.float32)}
    >>> _ = wcodec.save_file(weights, path)
    >>> wcodec.verify(path, against=weights).ok
    True

    :param device: with ``cuda`` or ``cuda:N``, also that this GPU decodes what the CPU does: symbols and values of
        quantized tensors, bytes of the others. torch is not needed.
    :param trusted: as in :func:`open`.
    :raises DeviceError: if a GPU is asked for and it, its driver or nvCOMP (for coder ``zstd``) is missing.
    """
    number = devices.parse(device)
    gpu = None if number is None else devices.ordinal(number)
    other = None if against is None else native_source(against)
    label = None if against is None else ("tensors in memory" if isinstance(against, Mapping) else path_of(against))
    with Container.open(path, trusted=trusted) as container:
        with reporter(progress, "verify") as callback:
            text = container._open.verify(other, decode_options(threads), callback)
        report = VerifyReport._from_native(container.path, label, text)
        if gpu is None:
            return report
        stored = {t.name for t in container.stored}
        sound = [t.name for t in report.tensors if t.name in stored and t.status in ("ok", "differs")]
        with reporter(progress, f"verify on GPU {gpu}") as callback:
            text = _native.verify_on_gpu(container._open, sound, gpu, decoder.gpu_options(threads), callback)
        return report._with_gpu(f"cuda:{gpu}", json.loads(text))


@keywords()
def compare(a: _Path | Container, b: _Path | Container, *, trusted: bool = False) -> Comparison:
    """Whether two containers decode to the same tensors, and what each of them costs.

    >>> import numpy as np, wcodec
    >>> weights = {"w": np.linspace(-1, 1, 4096, dtype=np.float32).reshape(16, 256)}
    >>> files = [wcodec.compress_to_bytes(weights, coder=coder)[0] for coder in ("rans", "zstd")]
    >>> wcodec.compare(*map(wcodec.open, files)).same
    True

    :param trusted: whether paths are trusted, as in :func:`open`.
    """
    opened = [c if isinstance(c, Container) else Container.open(c, trusted=trusted) for c in (a, b)]
    try:
        first, second = (c._open for c in opened)
        return Comparison._from_native(_native.compare(first, second), (first.facts(), second.facts()))
    finally:
        for given, container in zip((a, b), opened, strict=True):
            if given is not container:
                container.close()


@keywords()
def instruction_sets() -> tuple[list[str], str]:
    """The instruction sets that this processor can decode with, and the one that is used.

    The environment variable ``WCODEC_ISA`` forces one of them.
    """
    return _native.instruction_sets()


# The names of the commands.
encode = renamed("encode", compress)
decode = renamed("decode", decompress)
