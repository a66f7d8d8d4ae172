"""Repositories of the Hugging Face Hub: which of their files are read, fetched as transformers fetches them."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from types import FrameType
from typing import Any

from .._core import paths
from .._core.errors import FileMissingError, FormatError, InputError
from .._core.foreign import cause, read_json
from .._file import folder_kinds
from . import beside
from . import folder as _folder

_CONFIG = "config.json"
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# Small files that say what a repository is.
_TELLING = (_CONFIG, folder_kinds.ADAPTER, "model_index.json", "modules.json")
# Files that belong to a model, but that nothing reads.
_UNREAD = ("readme", "license", "licence", "notice", "use_policy")
# The timeout for the first answer of the Hub.
_SECONDS = 5.0
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OFFLINE_ADVICE = (
    "fetch it where there is a network: wcodec and transformers ask the Hub unless HF_HUB_OFFLINE or "
    "local_files_only is set"
)


@dataclass(frozen=True)
class Options:
    """Options for fetching a repository, named as those of transformers' ``from_pretrained``."""

    revision: str | None = None
    subfolder: str = ""
    token: str | bool | None = None
    cache_dir: str | os.PathLike[str] | None = None
    local_files_only: bool = False
    force_download: bool = False
    proxies: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        parts = Path(self.subfolder or "").parts
        if ".." in parts or os.path.isabs(self.subfolder or ""):
            raise InputError(
                f"subfolder {self.subfolder!r} is not in the repository (name a folder of it)", code="I210"
            )

    @property
    def offline(self) -> bool:
        """Whether the Hub is not to be asked."""
        return self.local_files_only or paths.offline()

    def given(self) -> dict[str, Any]:
        """The options as ``cached_file`` takes them."""
        return {
            "revision": self.revision, "subfolder": self.subfolder or "", "token": self.token,
            "cache_dir": self.cache_dir, "local_files_only": self.local_files_only,
            "force_download": self.force_download, "proxies": None if self.proxies is None else dict(self.proxies),
        }  # fmt: skip


def downloaded(
    name: str, options: Options | None = None, trust_remote_code: bool = False, with_page: bool = False
) -> Path:
    """The folder of a repository with all that is read of it, from the Hub or from what was fetched before: the weights
    in the form that is read, and the small files beside them.

    :param trust_remote_code: whether Python files are fetched.
    :param with_page: whether what is for people to read is: README, licences.
    :raises FileMissingError: if there is no such repository, or something of it cannot be had; the file is named.
    :raises InputError: if the repository is no model that is read.
    """
    options = options or Options()
    repository = described(name, options, trust_remote_code, with_page)
    if repository is None:
        return _from_cache(name, options)
    return _fetch(name, options, repository.prefix, [*repository.weights, *repository.small])


@dataclass(frozen=True)
class RepositoryFiles:
    """The contents of a repository, and a folder with those of its files that say what it is."""

    name: str
    options: Options
    prefix: str
    """The subfolder, with ``/`` at its end, if there is one."""
    folder: Path
    weights: list[str]
    """Files of weights, and their index."""
    small: list[str]
    """Files beside them."""
    sizes: Mapping[str, int | None]


def described(
    name: str, options: Options, trust_remote_code: bool = False, with_page: bool = False
) -> RepositoryFiles | None:
    """The contents of a repository; ``None`` where the Hub is not asked or does not answer.

    :param trust_remote_code: whether Python files count.
    :param with_page: whether what is for people to read counts: README, licences.
    :raises FileMissingError: if there is no such repository, or something of it is missing; the file is named.
    :raises InputError: if the repository is no model that is read.
    """
    paths.check(name, hub=True, local_files_only=options.local_files_only, cache_dir=options.cache_dir)
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise paths.missing(name) from None
    listed = None if options.offline else _listed(name, options)
    if listed is None:
        return None
    sizes, commit = listed
    prefix = f"{options.subfolder.strip('/')}/" if options.subfolder else ""
    here = {n.removeprefix(prefix): size for n, size in sizes.items() if n.startswith(prefix)}
    if not here:
        raise FileMissingError(
            f"{name}: the repository has no folder '{options.subfolder}' (check subfolder)", file=name, code="O202"
        )
    folder = _fetch(name, options, prefix, [n for n in _TELLING if n in here])

    def inside(sub: str) -> list[str]:
        return sorted({n.removeprefix(sub + "/").partition("/")[0] for n in here if n.startswith(sub + "/")})

    top = sorted({n.partition("/")[0] for n in here})
    error = folder_kinds.explain(name, top, lambda file: read_json(folder / file), inside)
    if error is not None:
        raise error

    def read(file: str) -> dict[str, Any]:
        return read_json(_fetch(name, options, prefix, [file]) / file)

    wanted = weights_of({n for n in here if "/" not in n}, read, name)
    small = [n for n, size in here.items() if _is_read(n, size, trust_remote_code, with_page)]
    # Parts of weights are named where they are missing, before the others are fetched.
    for file in wanted:
        if file not in here:
            raise _not_there(name, prefix + file, "the repository does not have it", "tell those who made it")
    pinned = changed(options, revision=commit) if commit else options
    return RepositoryFiles(name, pinned, prefix, folder, wanted, small, here)


def _is_read(name: str, size: int | None, code: bool, with_page: bool = False) -> bool:
    base = name.rpartition("/")[2].lower()
    if base.endswith(".py"):
        return code
    return (
        (with_page or not base.startswith(_UNREAD))
        and (with_page or not beside.is_picture(base))
        and (beside.belongs(name, size) or name == _CONFIG)
    )


def weights_of(names: set[str], read: Callable[[str], dict[str, Any]], place: str) -> list[str]:
    """The files of a folder that its weights are read from, as the encoder and transformers choose them; the container
    of a compressed model and, of an earlier version, what is beside that.

    :param read: a function that gives the JSON object of one of the files.
    :raises InputError: if several could be meant, or none.
    """
    config = read(_CONFIG) if _CONFIG in names else {}
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and quantization.get("quant_method") == "wcodec":
        file = Path(str(quantization.get("file") or "model.wcodec")).name
        return [file] if _folder.has_all(config) else [file, _WHOLE]
    containers = sorted(n for n in names if n.endswith(".wcodec"))
    if len(containers) > 1:
        raise InputError(
            f"{place}: there are {len(containers)} .wcodec files (give the path of one)", file=place, code="I201"
        )
    if containers:
        return containers
    named = config.get("transformers_weights")
    indexes = sorted(n for n in names if n.endswith(".safetensors.index.json"))
    files = sorted(n for n in names if n.endswith(".safetensors") and n != "adapter_model.safetensors")
    if isinstance(named, str):
        main_file = named
    elif _WHOLE in names or _INDEX in names:
        main_file = _WHOLE if _WHOLE in names else _INDEX
    elif len(indexes) == 1:
        single_file = indexes[0].removesuffix(".index.json")
        main_file = single_file if single_file in files else indexes[0]
    elif len(files) == 1 and not indexes:
        main_file = files[0]
    elif indexes or files:
        raise InputError(
            f"{place}: it is open which of {', '.join((indexes or files)[:3])} has the weights "
            "(download the repository, and name the file)",
            file=place,
            code="I201",
        )
    else:
        # The name that transformers reports where there are no weights at all.
        return [_WHOLE]
    return (
        [main_file, *_shards(read(main_file), f"{place}/{main_file}")]
        if main_file.endswith(".index.json")
        else [main_file]
    )


def _shards(index: dict[str, Any], place: str) -> list[str]:
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        problem = "it has no weight_map from names to files"
        raise FormatError(
            f"{place}: not an index of shards: {problem} (download the checkpoint again)", file=place, code="F201"
        )
    return sorted(set(places.values()))


def _listed(name: str, options: Options) -> tuple[dict[str, int | None], str | None] | None:
    """The files of a repository, their bytes and the commit; ``None`` if the Hub cannot be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        # Names that are nowhere are told soon where there is no network, and a slow one has time.
        info = HfApi(token=options.token).model_info(
            name, revision=options.revision, files_metadata=True, timeout=_SECONDS
        )
    except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise _unreachable(name, error) from None
    except Exception:
        return None
    sizes = {file.rfilename: getattr(file, "size", None) for file in info.siblings or ()}
    return sizes, getattr(info, "sha", None)


def _fetch(name: str, options: Options, prefix: str, files: Iterable[str]) -> Path:
    """The folder with files of a repository."""
    from huggingface_hub import snapshot_download

    # Names are patterns there.
    patterns = [re.sub(r"([*?[])", r"[\1]", prefix + file) for file in files]
    given: dict[str, Any] = {
        "revision": options.revision, "token": options.token, "cache_dir": options.cache_dir,
        "force_download": options.force_download, "etag_timeout": _SECONDS, "allow_patterns": patterns,
    }  # fmt: skip
    if options.proxies and "proxies" in inspect.signature(snapshot_download).parameters:
        given["proxies"] = dict(options.proxies)
    try:
        path = snapshot_download(name, **given)
    except Exception as error:
        raise _unreachable(name, error) from None
    return Path(str(path)) / prefix


def _from_cache(name: str, options: Options) -> Path:
    """The folder of a repository that was fetched before, if all is there that its weights are."""
    first = _cached(name, _CONFIG, options)
    folder = Path(first).parent if first is not None else _snapshot(name, options)
    if folder is None:
        raise _not_there(name, _CONFIG, *_why(options))
    folder_kinds.check(folder)
    try:
        names = set(os.listdir(folder))
        wanted = weights_of(names, lambda file: read_json(folder / file), str(folder))
    except OSError as error:
        raise _unreachable(name, error) from None
    for file in wanted:
        if not (folder / file).is_file() and _cached(name, file, options) is None:
            raise _not_there(name, file, *_why(options))
    return folder


def _cached(name: str, file: str, options: Options) -> str | None:
    """A file of a repository as transformers finds it: in the cache, or if the Hub may be asked there."""
    try:
        from transformers.utils.hub import cached_file
    except ImportError:
        return None
    try:
        path = cached_file(name, file, **options.given(), _raise_exceptions_for_missing_entries=False)
    except Exception:
        return None
    return None if path is None else str(path)


def _snapshot(name: str, options: Options) -> Path | None:
    """The folder of a repository in the cache that has no config."""
    from huggingface_hub import snapshot_download

    try:
        snapshot = Path(
            snapshot_download(
                name,
                revision=options.revision,
                cache_dir=options.cache_dir,
                local_files_only=True,
                allow_patterns=[_CONFIG],
            )
        )
    except Exception:
        return None
    folder = snapshot / (options.subfolder or "")
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def _why(options: Options) -> tuple[str, str]:
    if options.local_files_only:
        return "it is not in the cache, and local_files_only forbids to ask the Hub", _OFFLINE_ADVICE
    if paths.offline():
        return "it is not in the cache, and HF_HUB_OFFLINE forbids to ask the Hub", _OFFLINE_ADVICE
    return "it is not in the cache, and the Hub cannot be reached", "check the name and the network"


def _not_there(name: str, file: str, why: str, advice: str) -> FileMissingError:
    return FileMissingError(f"{name}: '{file}' of this repository is missing: {why} ({advice})", file=name, code="O202")


def _unreachable(name: str, error: BaseException) -> FileMissingError:
    return FileMissingError(
        f"{name}: no such folder or file, and no repository that can be reached ({cause(error)})",
        file=name,
        code="O201",
    )


# The container of a model that transformers loads


def container_beside(files: Iterable[str | os.PathLike[str]], named: str | None) -> Path:
    """The container beside the files that transformers reads, fetched if these are of a repository: of the same commit,
    with the options that transformers was called with.

    :param files: ``checkpoint_files`` of transformers.
    :param named: the config's name for the container.
    :raises FileMissingError: if it cannot be had.
    """
    return container_in(Path(next(iter(files))).parent, named)


def container_in(folder: Path, named: str | None) -> Path:
    """The container in a folder, fetched likewise if that is a repository's in the cache.

    :raises FileMissingError: if it cannot be had.
    """
    path = folder / Path(named or "model.wcodec").name
    origin = _of_cache(folder)
    if origin is None:
        return path
    name, options = origin
    options = _as_called(options)
    return path if path.is_file() and not options.force_download else fetched(name, path.name, options)


def fetched(name: str, file: str, options: Options) -> Path:
    """A file of a repository, as transformers fetches it.

    :raises FileMissingError: if it cannot be had.
    """
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(name, file, **options.given(), _raise_exceptions_for_missing_entries=False)
    except Exception as error:
        if options.offline:
            raise _not_there(name, file, *_why(options)) from None
        raise _unreachable(name, error) from None
    if path is None:
        if options.offline:
            raise _not_there(name, file, *_why(options))
        raise _not_there(name, file, "the repository does not have it", "tell those who made it")
    return Path(str(path))


def with_files(repository: RepositoryFiles) -> Path:
    """The folder of a repository with the files beside its weights, fetched if they are not there."""
    return _fetch(
        repository.name,
        repository.options,
        repository.prefix,
        [*repository.small, *(n for n in _TELLING if n in repository.sizes)],
    )


def has_weights(repository: RepositoryFiles) -> bool:
    """Whether all files of weights were fetched before, of this commit."""
    from huggingface_hub import try_to_load_from_cache

    options = repository.options
    places = (
        try_to_load_from_cache(
            repository.name, repository.prefix + file, cache_dir=options.cache_dir, revision=options.revision
        )
        for file in repository.weights
    )
    return not options.force_download and all(isinstance(place, str) for place in places)


def cached_repository(folder: Path) -> str | None:
    """The repository that a folder of the Hub's cache is of; ``None`` for any other folder."""
    origin = _of_cache(folder)
    return None if origin is None else origin[0]


def _of_cache(folder: Path) -> tuple[str, Options] | None:
    """The repository, commit and subfolder that a folder of the Hub's cache is of: ``models--owner--name/snapshots/``
    and the commit, whose files are links to where their bytes are."""
    parts = folder.parts
    for at in range(len(parts) - 2, 0, -1):
        owner, marker, commit = parts[at - 1 : at + 2]
        if marker == "snapshots" and owner.startswith("models--") and _COMMIT.fullmatch(commit):
            options = Options(
                revision=commit, subfolder="/".join(parts[at + 2 :]), cache_dir=str(Path(*parts[: at - 1]))
            )
            return owner.removeprefix("models--").replace("--", "/"), options
    return None


def _as_called(options: Options) -> Options:
    """The options with those that ``from_pretrained`` was called with, which it gives no quantizer: they are read from
    its frame."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (
            frame.f_code.co_name == "from_pretrained"
            and frame.f_globals.get("__name__") == "transformers.modeling_utils"
        ):
            given = frame.f_locals
            return Options(
                options.revision,
                options.subfolder,
                given.get("token"),
                options.cache_dir,
                bool(given.get("local_files_only")),
                bool(given.get("force_download")),
                given.get("proxies"),
            )
        frame = frame.f_back
    return options


__all__ = ["Options", "RepositoryFiles", "cached_repository", "container_beside", "container_in", "described",
           "downloaded", "fetched", "has_weights", "weights_of", "with_files"]  # fmt: skip
