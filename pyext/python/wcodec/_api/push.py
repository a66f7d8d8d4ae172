"""Uploading folders of compressed models to the Hugging Face Hub."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._core import paths
from .._core.errors import CorruptError, FileError, InputError, UnsupportedError
from .._core.foreign import cause
from .._core.keywords import keywords
from .._core.options import path_of, shown
from .._core.progress import ProgressCallback
from .._models import card as _card
from .._models.folder import container_of, is_part, quantization_of
from .files import verify as verified

_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
# Weights that are not compressed: loaders that do not know the format would take them for the model.
_WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json", "*.gguf", "*.pt", "*.pth")
_ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
# Left by other programs in a folder, beside what is hidden.
_IGNORED = ("__pycache__", "*.part", "*.lock", "*.incomplete")


@keywords()
def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    message: str | None = None,
    verify: bool = True,
    progress: bool | ProgressCallback = True,
) -> str:
    """Uploads the folder of a compressed model to a repository on the Hugging Face Hub, and gives its address::

        wcodec.compress("path/to/model", "small/", bits=4)
        wcodec.push("small", "me/small-4bit", private=True)

    Before that all hashes are compared, and the folder must be one that :func:`wcodec.save_pretrained` or ``wcodec
    encode FOLDER -o DIR/`` wrote. The commands in its card name the repository.

    :param repo_id: ``owner/name``, or a name of your own. It is made if there is none.
    :param private: whether a repository that is made is private; as your account has it if left out.
    :param revision: the branch to upload to, which is made if there is none; ``main`` if left out.
    :param token: with the right to write; that of ``hf auth login`` if left out.
    :param message: the commit's message.
    :param verify: whether hashes are compared.
    :raises InputError: if the folder has no compressed model, or weights beside it that others would take for it.
    :raises CorruptError: if a hash is wrong: nothing is uploaded.
    :raises FileError: if there is no such folder, or the Hub refuses.
    :raises UnsupportedError: if huggingface_hub is not installed.
    """
    place = Path(path_of(folder))
    if not place.is_dir():
        raise paths.missing(str(place), "folder")
    if not isinstance(repo_id, str) or _NAME.fullmatch(repo_id) is None:
        raise InputError(f"{shown(repo_id)} is no name of a repository (such as 'owner/name')", code="I214")
    container = _checked(place)
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
    except ImportError:
        raise UnsupportedError("huggingface_hub is not installed (pip install huggingface_hub)", code="U203") from None
    if verify:
        report = verified(container, progress=progress)
        if not report.ok:
            bad = next((t.name for t in report.tensors if t.status != "ok"), None)
            raise CorruptError(
                f"{container}: damaged{'' if bad is None else f' at {bad!r}'}, and not uploaded (wcodec verify says "
                "more; encode it again)",
                file=container,
                tensor=bad,
                code="C111",
            )
    api = HfApi(token=token)
    text = message or f"Upload {place.absolute().name}, compressed by wcodec"
    try:
        name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        # All of it or nothing: a repository is never half a model.
        files: dict[str, Any] = {path.relative_to(place).as_posix(): str(path) for path in _files(place)}
        if (card := _card_for(place, name)) is not None:
            files[_card.FILE] = card.encode()
        added = [CommitOperationAdd(path_in_repo=file, path_or_fileobj=data) for file, data in files.items()]
        api.create_commit(name, added, commit_message=text, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise FileError(f"{repo_id}: the Hub does not take it ({cause(error)})", file=place, code="O204") from None
    return f"{api.endpoint}/{name}"


def _checked(place: Path) -> Path:
    """The container of a folder that may be uploaded."""
    if not quantization_of(place):
        raise InputError(
            f"{place}: no compressed model of transformers: its config.json says nothing of wcodec (name a folder that "
            "wcodec encode FOLDER -o DIR/ or save_pretrained wrote)",
            file=place,
            code="I215",
        )
    container = container_of(place)
    if container is None:
        raise InputError(f"{place}: there is no .wcodec file (encode the model again)", file=place, code="I215")
    if is_part(place):
        raise InputError(
            f"{place}: it is a folder of an earlier version, whose model.safetensors others take for the whole model "
            "(load it with wcodec.load_model and save it again)",
            file=place,
            code="I215",
        )
    others = sorted(path.name for path in _weights(place))
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise InputError(
            f"{place}: '{others[0]}'{more} has weights that others would take for the model (move it away)",
            file=place,
            code="I215",
        )
    return container


def _files(place: Path) -> Iterator[Path]:
    for path in sorted(place.rglob("*")):
        parts = path.relative_to(place).parts
        hidden = any(p.startswith(".") or any(fnmatch.fnmatchcase(p, i) for i in _IGNORED) for p in parts)
        if path.is_file() and not hidden:
            yield path


def _weights(place: Path) -> Iterator[Path]:
    for pattern in _WEIGHTS:
        yield from (path for path in place.glob(pattern) if path.name not in _ADAPTER)


def _card_for(place: Path, name: str) -> str | None:
    """The card with the repository's name in its commands; ``None`` for a card that somebody wrote."""
    text = _card.read(place)
    if text is not None and not _card.is_own(text):
        return None
    return _card.card(place, _card.original_of(text), name.rpartition("/")[2], name)


__all__ = ["push"]
