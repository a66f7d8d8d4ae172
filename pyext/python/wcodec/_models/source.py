"""A model that is to be loaded: found, opened, and its config checked, before anything of it is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .._core import paths
from .._core.errors import InputError, UnsupportedError
from .._core.foreign import config_of
from .._core.options import path_of, shown
from .._file.container import Container
from .._file.folder_kinds import check as check_kind
from .._file.gguf import is_gguf
from .._gpu import devices
from ..nn._layers.layer import computing_dtype
from ..nn._weights.placement import Settings, refuse_disk
from .already import refuse_encoding
from .checkpoint import Checkpoint, Stored
from .folder import container_of, is_part
from .gguf import GgufModel
from .hub import Options, downloaded
from .request import Request, settings_of


@dataclass(frozen=True)
class Source:
    """A model that was found, and the place and dtype that it is wanted in."""

    place: Path | str
    """The path that messages name."""
    folder: Path | None
    """The folder with its config and the files beside its weights."""
    config: Any
    device: torch.device
    dtype: torch.dtype
    settings: Settings
    container: Container | None
    """Its compressed weights, if it has some."""
    rest: Checkpoint | None
    """Its other weights, if there are files of some."""
    gguf: GgufModel | None

    @property
    def count(self) -> int | None:
        """The number of its tensors; none for a GGUF file, which has told its layers itself."""
        return None if self.gguf is not None else len({*(self.container or ()), *(self.rest or ())})

    def tensors(self, model: Any) -> Stored | Checkpoint:
        """All of its weights.

        :param model: the one of its config, by which those of a GGUF file are named.
        """
        if self.container is not None:
            return Stored(self.container, self.rest)
        checkpoint = self.rest if self.gguf is None else self.gguf.checkpoint(model)
        assert checkpoint is not None
        return checkpoint


def opened(request: Request) -> Source:
    """Finds and opens the model that is asked for. Arguments are checked before anything is read."""
    path = path_of(request.path)
    replace(request, residency=request.residency or "auto").settings()
    device = devices.place(request.device or "cpu")
    gguf = None
    if is_gguf(path):
        gguf = GgufModel(path, None if request.dtype is None else computing_dtype(request.dtype))
        # Its tokenizer is there until the process ends.
        gguf.keep()
    trusts = request.trust_remote_code
    folder, file = located(path, trusts, request.hub) if gguf is None else (gguf.folder, None)
    settings = settings_of(folder, request)
    if file is None:
        refuse_disk(settings)
    config = config_at(folder, file, request.trusted, trusts)
    place = folder or file or path
    dtype = computing_dtype_of(config, place, request.dtype)
    container = rest = None
    if file is not None:
        container = Container.open(file, trusted=request.trusted)
        asked = {**request.encoding, "include": request.include, "exclude": request.exclude}
        refuse_encoding(container, place, asked, request.embeddings)
    # Beside a whole container, files of other weights would be the original.
    if folder is not None and gguf is None and (file is None or is_part(folder)):
        rest = Checkpoint(folder, rest=file is not None)
    return Source(place, folder, config, device, dtype, settings, container, rest, gguf)


def located(path: str, trust_remote_code: bool, hub: Options | None = None) -> tuple[Path | None, Path | None]:
    """The folder of a model and its ``.wcodec`` file, of which one may be missing."""
    hub = hub or Options()
    given = Path(path)
    if given.is_dir():
        given /= hub.subfolder
        if not given.is_dir():
            raise paths.missing(str(given), "folder")
    if given.is_file():
        return (given.parent if (given.parent / "config.json").is_file() else None), given
    folder = given if given.is_dir() else downloaded(path, hub, trust_remote_code)
    check_kind(folder)
    return folder, container_of(folder)


def config_at(folder: Path | None, file: Path | None, trusted: bool, trust_remote_code: bool) -> Any:
    """The config of a folder, or the one that its container has."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            "models need transformers (pip install torch transformers accelerate)", code="U202"
        ) from None
    if folder is not None and (folder / "config.json").is_file():
        return config_of(folder, trust_remote_code=trust_remote_code)
    config = None
    if file is not None:
        with Container.open(file, trusted=trusted) as container:
            config = (container.model or {}).get("config")
    if not isinstance(config, dict) or "model_type" not in config:
        raise InputError(
            f"{file or folder}: nothing says what model this is (put its config.json beside it)",
            file=file or folder,
            code="I510",
        )
    return config_of(str(file), config, trust_remote_code)


def computing_dtype_of(config: Any, place: Path | str, dtype: Any = None) -> torch.dtype:
    """The dtype that was asked for, or that of the config."""
    wanted = dtype or getattr(config, "dtype", None) or torch.float32
    try:
        return computing_dtype(wanted)
    except InputError:
        if dtype:
            raise
        raise InputError(
            f"{place}: its config says dtype {shown(wanted)}, in which layers do not compute (pass dtype='bfloat16')",
            file=place,
            code="I522",
        ) from None
