"""Paths that are not there, told before anything is imported or asked of the network for them; and files that are
written, whole or not at all, and never in the place of what is read."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import _native
from .errors import FileMissingError, InputError, OutputExistsError
from .options import path_of

# Names of a repository on the Hub have none of these endings.
_ENDINGS = (".wcodec", ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".json", ".txt", ".onnx")
# Longer texts are no paths.
_LONGEST = 4096
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def is_path(name: str) -> bool:
    """Whether a name that nothing has here can only be a path: one that no repository on the Hub can have, or whose
    first folder exists.

    >>> is_path("./model"), is_path("a/b/c"), is_path("m.wcodec"), is_path("owner/name"), is_path("gpt2")
    (True, True, True, False, False)
    """
    if name.startswith((".", "/", "~", os.sep)) or name.endswith(("/", os.sep, *_ENDINGS)):
        return True
    first, slash, rest = name.replace(os.sep, "/").partition("/")
    return not first or "/" in rest or ":" in first or (bool(slash) and Path(first).exists())


def offline() -> bool:
    """Whether the environment says that the Hub is not to be asked."""
    return any(os.environ.get(key, "").upper() in ("1", "ON", "YES", "TRUE") for key in _OFFLINE)


def is_cached(name: str, cache_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether something of a repository was fetched before, without importing what fetches it."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    loaded = getattr(sys.modules.get("huggingface_hub.constants"), "HF_HUB_CACHE", None)
    named = (
        loaded or os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    )
    cache = Path(os.path.expandvars(os.fspath(cache_dir or named))).expanduser()
    return (cache / f"models--{name.replace('/', '--')}" / "snapshots").is_dir()


def check(
    name: str,
    what: str = "folder or file",
    hub: bool = False,
    *,
    local_files_only: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Refuses a path that is not there.

    :param hub: whether it may be the name of a repository on the Hugging Face Hub instead.
    :param local_files_only: whether such a repository must have been fetched before, as if the environment says so.
    :param cache_dir: the folder that it was fetched to, if not the environment's.
    :raises FileMissingError: if it is not.
    """
    if os.path.exists(name):
        return
    if hub and not is_path(name):
        if offline() or local_files_only:
            if is_cached(name, cache_dir):
                return
            if near(name) is None:
                raise FileMissingError(
                    f"{name}: there is no such {what}, no repository of that name in the cache, and the Hub is not "
                    "asked (check the path; or fetch the repository without HF_HUB_OFFLINE and local_files_only)",
                    file=name,
                    code="O201",
                )
        elif near(name) is None:
            return
    raise missing(name, what)


def missing(name: str, what: str = "folder or file") -> FileMissingError:
    """The error of a path that is not there."""
    meant = near(name)
    advice = f"did you mean {meant!r}?" if meant else "check the path"
    return FileMissingError(f"{name}: there is no such {what} ({advice})", file=name, code="O101")


def near(name: str) -> str | None:
    """The path of nearly the same name in the same folder, if there is one."""
    folder, base = os.path.split(name.rstrip("/"))
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return None
    matches = difflib.get_close_matches(base, entries, 1, 0.75)
    return os.path.join(folder, matches[0]) if matches else None


@contextmanager
def output(
    path: str | os.PathLike[str],
    *,
    report: bool = False,
    inputs: Iterable[str | os.PathLike[str]] = (),
    overwrite: bool = False,
) -> Iterator[_native.Output]:
    """A file that appears when its ``finish`` is called; if the block ends before, nothing is left of it.

    :param report: whether it is one in JSON, so that its name must not have the ending of a model.
    :param inputs: the files that the work reads, none of which may be the output.
    """
    out = _native.Output(path_of(path), report, [path_of(p) for p in inputs], overwrite)
    try:
        yield out
    finally:
        out.discard()


def refuse_existing(path: str | os.PathLike[str], overwrite: object = False) -> None:
    """Refuses an output that is there already and not to be replaced.

    :raises OutputExistsError: if it is.
    """
    if not overwrite and os.path.lexists(path):
        raise output_exists(path)


def output_exists(path: str | os.PathLike[str]) -> OutputExistsError:
    """The error where an output is there that is not to be replaced."""
    return OutputExistsError(
        f"{os.fspath(path)} exists (pass overwrite=True, or --overwrite, to replace it)", file=path, code="O103"
    )


def check_output(path: str | os.PathLike[str], *inputs: Any) -> None:
    """Refuses an output that is one of the files that are read.

    :param inputs: values that may be paths of files, or anything else.
    :raises InputError: if it is.
    """
    paths = [path_of(p) for p in inputs if isinstance(p, str | os.PathLike) and 0 < len(os.fspath(p)) < _LONGEST]
    _native.check_output(path_of(path), [p for p in paths if "\0" not in p])


def regular(path: Path) -> Path:
    """The path of a file that can be read to its end: a pipe would wait, and a device may never end.

    :raises FileMissingError: if there is none.
    :raises InputError: if it is something else.
    """
    if path.is_file():
        return path
    if path.exists():
        raise InputError(f"{path}: not a regular file (name a file)", file=path, code="I212")
    raise FileMissingError(f"{path}: there is no such file (check the path)", file=path, code="O101")


def files_of(model: str | os.PathLike[str]) -> list[str]:
    """The files of a model's folder, any of which may be read with it; those around it, of a file."""
    place = Path(path_of(model))
    folder = place if place.is_dir() else place.parent
    try:
        entries = sorted(folder.iterdir())
        # Such as templates of chats, of which transformers takes a folder.
        entries += [inner for path in entries if path.is_dir() for inner in sorted(path.iterdir())]
    except OSError:
        entries = [place]
    return [str(path) for path in entries if path.is_file()]
