"""Models of transformers: loaded with compressed layers, or given them in place; calibrated where that is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._calibrate import by_default
from .._calibrate.collect import is_given, statistics_of
from .._calibrate.encoding import compress_in_memory
from .._core.coding import CodingOptions
from .._core.keywords import given, keywords
from .._core.options import calibration
from .._core.progress import ProgressCallback
from .._file.container import Container
from .._models import load, replace
from .._models.hub import Options
from .._models.original import original_model
from .._models.request import Request, Wanted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._core.coding import Calibration, Rules
    from .._models.report import ReplaceReport


@keywords(CodingOptions)
def load_model(
    path: str | os.PathLike[str],
    device: Any = None,
    residency: str | None = None,
    dtype: Any = None,
    *,
    vram_budget: int | str | None = None,
    ram_budget: int | str | None = None,
    cache: int | str | None = None,
    fused: bool = True,
    scheme: str | None = None,
    bits: float | None = None,
    calibrate: Calibration | None = None,
    trellis: bool | None = None,
    rules: Rules | None = None,
    optimize: str = "speed",
    coder: str | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    embeddings: bool = True,
    trusted: bool = False,
    trust_remote_code: bool = False,
    revision: str | None = None,
    subfolder: str = "",
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
    progress: bool | ProgressCallback = False,
    **options: Unpack[CodingOptions],
) -> Any:
    """A model of transformers with compressed layers, ready to run: a language model, or whatever else its config names
    (``architectures``), such as a classifier, a translator, speech or vision.

    The model is built without weights; compressed weights go from the file to where they stay, and the few others are
    read one at a time::

        model = wcodec.load_model("model-compressed", device="cuda")
        model.generate(**tokenizer("Once", return_tensors="pt").to("cuda"))

    :param path: a folder that :func:`wcodec.save_pretrained` wrote; a ``.wcodec`` file of a checkpoint, or a folder
        with one and a ``config.json``; an ordinary checkpoint of transformers (a folder with ``.safetensors`` files),
        which is compressed in memory, as is the model of a ``.gguf`` file (with the package ``gguf``); or the name of a
        repository on the Hugging Face Hub with one of these folders.
    :param device: the device to run on: ``cpu`` (default), ``cuda``, ``cuda:N`` or a ``torch.device``.
    :param residency: the place of compressed bytes while the model is on a GPU, as for :func:`wcodec.compress_`:
        ``device``, ``host``, ``disk`` or ``auto``. With ``disk`` they stay in the ``.wcodec`` file and are read each
        time that they are decoded, ahead of that where it can be foreseen, on a GPU as on the CPU: the host holds no
        more of them than a ring of at most 96 MiB. ``auto`` fills the device's memory, then the host's, and has the
        rest read from disk. If left out, ``auto`` with a budget, and otherwise as it was when the model was saved, or
        ``device``.
    :param dtype: float32, float16 or bfloat16 to compute in; that of the config if left out.
    :param vram_budget: memory of the device that ``auto`` may take, as for :func:`wcodec.compress_`; if left out, as
        the model was saved.
    :param ram_budget: memory of the host that ``auto`` may take for compressed weights; if left out, as the model was
        saved, or what is free when the first weight is decoded, less a tenth of all. On the CPU, where the system's
        page cache holds what is not read from disk, likewise.
    :param cache: memory in which some blocks stay decoded, as for :func:`wcodec.compress_`; if left out, as the model
        was saved, or ``"auto"``. With residency ``disk`` there is none by itself.
    :param fused: as for :func:`wcodec.compress_`: whether GPUs multiply few tokens straight from compressed weights.
    :param scheme: for an ordinary checkpoint, how it is compressed, as for :func:`wcodec.compress_`; so are ``bits``,
        ``calibrate``, ``trellis``, ``rules``, ``optimize``, ``coder``, ``include``, ``exclude``, ``embeddings`` and
        ``options`` (see :class:`CodingOptions`). A checkpoint that is compressed already stays as it is, and asking for
        something else is an error.
    :param calibrate: runs the original model before that, if it is not given statistics. If left out, the weights alone
        choose: unlike here, where one tensor after the other is read, that model is in memory as a whole.
    :param trusted: whether a ``.wcodec`` file is trusted, as in :func:`wcodec.open`.
    :param trust_remote_code: whether code that comes with the model, or that its config names (classes of its own,
        kernels of the Hub), may be fetched and run. Without it, such a model is refused.
    :param revision: the branch, tag or commit of a repository, as for transformers' ``from_pretrained``.
    :param subfolder: the model's subfolder in the repository, or in the folder.
    :param token: for private repositories; that of ``hf auth login`` if left out.
    :param cache_dir: the folder in which repositories are kept; the Hub's cache if left out.
    :param local_files_only: whether only what was fetched before is taken, as with ``HF_HUB_OFFLINE=1``.
    :param force_download: whether files are fetched again that are there.
    :param progress: a bar, nothing, or a callback, while a checkpoint is compressed.
    :raises InputError: for keywords that there are not, or that say how to compress what is compressed already; if the
        weights are not those of the model: what is missing, extra or of another shape is named;
        if the budget is too small; if the model needs code that is not trusted.
    :raises FormatError: if transformers cannot make a model of the config.
    :raises FileError: if there is no such folder or file.
    :raises UnsupportedError: if transformers or accelerate is not installed, or transformers does not know the model.
    """
    encoding = {"scheme": scheme, "bits": bits, "calibrate": calibration(calibrate), "trellis": trellis, "rules": rules,
                "optimize": None if optimize == "speed" else optimize, "coder": coder, **options}  # fmt: skip
    request = Request(
        path=path, device=device, dtype=dtype, encoding=encoding, include=include, exclude=exclude,
        embeddings=embeddings, residency=residency, vram_budget=vram_budget, ram_budget=ram_budget, cache=cache,
        fused=fused, trusted=trusted, trust_remote_code=trust_remote_code, progress=progress,
        hub=Options(revision, subfolder, token, cache_dir, local_files_only, force_download),
    )  # fmt: skip
    return load.load(request, calibrated, compress_in_memory)


def calibrated(
    options: dict[str, Any], folder: Path, device: torch.device, trust_remote_code: bool, progress: bool
) -> dict[str, Any]:
    """Options with the statistics that ``calibrate`` asks for. Unless they are given, the model runs.

    :param folder: that of the model, or its GGUF file.
    """
    options = dict(options)
    if (calibrate := calibration(options.pop("calibrate", None))) is None:
        # Tokens without a calibration are refused where weights are encoded.
        return options
    tokens = options.pop("calibration_tokens", None)

    def source() -> Any:
        return original_model(folder, device, "auto", trust_remote_code)[0]

    collecting = (
        {} if is_given(calibrate) else {"tokens": tokens, "trust_remote_code": trust_remote_code, "progress": progress}
    )
    return {"device": device, **options, "calibrate": statistics_of(source, calibrate, **collecting)}


@keywords(CodingOptions)
def compress_(
    model: torch.nn.Module,
    scheme: str | None = None,
    coder: str | None = None,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    *,
    bits: float | None = None,
    calibrate: Calibration | None = None,
    trellis: bool | None = None,
    rules: Rules | None = None,
    optimize: str = "speed",
    embeddings: bool = True,
    residency: str | None = None,
    vram_budget: int | str | None = None,
    ram_budget: int | str | None = None,
    cache: int | str | None = None,
    device: str | torch.device | None = None,
    fused: bool = True,
    progress: bool | ProgressCallback = True,
    **options: Unpack[CodingOptions],
) -> ReplaceReport:
    """Replaces a model's layers by compressed ones, in place: linear layers, embeddings, the experts of mixtures, and
    other modules with large matrices that they multiply with. The report names what stays.

    >>> import torch, wcodec
    >>> model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    >>> report = wcodec.compress_(model, coder="huffman", progress=False)
    >>> len(report.replaced), type(model[0]).__name__
    (2, 'CompressedLinear')

    The model keeps its device and dtype, and computes with the decoded weights: for scheme ``int8`` these are symbols
    times scales, for scheme ``raw`` the original ones. Tied weights stay tied: they are compressed once, or not at all.
    All parameters that are left stop requiring gradients. From then on, ``save_pretrained`` and ``push_to_hub`` of a
    model of transformers write what :func:`wcodec.save_pretrained` does, and ``get_memory_footprint`` and
    ``num_parameters`` count compressed weights.

    :param scheme: ``int8`` (the default), ``rate`` (the default with ``bits``), ``lossless`` or ``raw``, as for
        :func:`wcodec.compress`; so are ``optimize``, ``coder``, ``trellis`` and ``rules``.
    :param bits: bits per weight from 1 to 8, with scheme ``rate``.
    :param calibrate: for scheme ``rate``, :class:`wcodec.Statistics` or a file of them; ``True`` (text of many
        kinds), ``"self"``, the path of a text or token ids run this model: less error at the same bits, and minutes
        instead of seconds. ``"columns"`` takes seconds: columns whose inputs are large get finer steps. If left out,
        that is done up to 5 bits for a causal language model of transformers as it was loaded, in evaluation mode and
        on one device; ``False`` leaves it out.
    :param include: glob patterns of layers (``*.mlp.*``) to replace; all if left out.
    :param exclude: glob patterns of layers to leave as they are.
    :param embeddings: whether ``nn.Embedding`` is replaced. Layers that are tied to one go with it.
    :param residency: the place of compressed bytes once the model is on a GPU: ``device``, its memory; ``host``, pinned
        memory of the host from which they are sent while the model runs; or ``auto``: of as many blocks as fit into
        ``vram_budget`` in the device's memory, and of the rest, spread evenly over the model, in the host's. Embeddings
        are always in the device's memory. If left out, ``auto`` with a budget, and ``device`` without. (``disk`` is for
        models that are loaded from a compressed file: :func:`wcodec.load_model`.)
    :param vram_budget: for ``auto``, memory of the device that the model may take, in bytes or as text (``"3GB"``,
        ``"512MiB"``); if left out, what is free when the first weight is decoded, less a tenth of the device's memory.
        Counted are all weights, compressed or not, tables, the ring that streamed bytes pass through, the memory that
        weights are decoded into, and ``cache``; not counted are activations and the cache of keys and values.
    :param ram_budget: for ``auto``, memory of the host that compressed weights may take; if left out, what is free,
        less a tenth of all. A model that is loaded from a file has the rest read from there.
    :param cache: memory, as for ``vram_budget``, in which some blocks stay decoded, on a GPU or the CPU: those that
        save most time for each byte. If left out, or ``"auto"``, none on a GPU, and on a CPU what is free when the
        first weight is decoded, less a fifth, unless there is a ``ram_budget``; 0 decodes at each use. Results are the
        same, bit for bit.
    :param fused: whether GPUs multiply up to 16 or 128 tokens straight from the compressed weights, and do blocks of
        models like Llama's in four launches, as :func:`wcodec.nn.fuse_` says. ``False`` decodes weights first: then
        results are those of torch with the decoded weights, bit for bit. On a CPU they are in any case.
    :param device: the device on which calibration computes; it does not move the model.
    :param progress: as in :func:`wcodec.compress`.
    :param options: rarely needed options, by name: see :class:`CodingOptions`.
    :raises InputError: if there is nothing to replace, for adapters of peft (compress the model first, then attach
        them), for NaN or infinity in a weight, and for a ``vram_budget`` that
        is too small for a model on a GPU; the model stays as it was. For a model that is moved to a GPU later, it is
        raised there, when the first weight is decoded.
    """
    encoding = given({
        "scheme": scheme, "optimize": optimize, "coder": coder, "bits": bits, "calibrate": calibrate,
        "trellis": trellis, "rules": rules, "device": device, **options,
    })  # fmt: skip
    if (calibrate := by_default.chosen_in_memory(model, encoding)) is not None:
        encoding["model"] = model
    encoding["calibrate"] = calibrate

    def encode(weights: dict[str, Any], transpose: list[str]) -> Container:
        return compress_in_memory(weights, transpose=transpose, progress=progress, **encoding)

    wanted = Wanted(
        include=include, exclude=exclude, embeddings=embeddings, residency=residency, vram_budget=vram_budget,
        ram_budget=ram_budget, cache=cache, fused=fused,
    )  # fmt: skip
    return replace.compress(model, wanted, encode)
