"""Headers of repositories on the Hugging Face Hub, of which nothing else is fetched: ranges of their files."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from .._core import paths
from .._core.errors import CorruptError, FileMissingError, UnsupportedError
from .._core.foreign import cause
from .gguf import GgufFile
from .headers import Headers, SourceTensor, of_gguf, only

# Owner, name, and the file where it is one of several.
_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:/(.+\.gguf))?", re.ASCII)
# Bytes that are asked for first, and by how much more then: headers with a tokenizer's words have some MB.
_FIRST, _MORE, _MOST = 1 << 20, 4, 64 << 20
_SECONDS = 10


def is_name(name: str) -> bool:
    """Whether a name that nothing has here can be that of a repository, with one of its GGUF files or without.

    >>> is_name("owner/name"), is_name("owner/name/q4.gguf"), is_name("./model"), is_name("model.gguf")
    (True, True, False, False)
    """
    match = _NAME.fullmatch(name)
    return match is not None and not os.path.exists(name) and not paths.is_path(match[1])


def of_repository(name: str) -> Headers:
    """The headers of a repository's weights.

    :raises FileMissingError: if there is no such repository, or the Hub cannot be reached.
    :raises InputError: if it has several GGUF files, of which none is named.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UnsupportedError(
            f"{name}: names of the Hugging Face Hub need the package huggingface_hub (pip install huggingface_hub)",
            code="U203",
        ) from None
    match = _NAME.fullmatch(name)
    assert match is not None
    repository, file = match[1], match[2]
    if paths.offline():
        raise FileMissingError(
            f"{name}: there is no such folder or file, and HF_HUB_OFFLINE forbids to ask the Hub (check the path)",
            file=name,
            code="O201",
        )
    try:
        info = HfApi().model_info(repository, files_metadata=True, timeout=_SECONDS)
        sizes = {sibling.rfilename: getattr(sibling, "size", None) for sibling in info.siblings or ()}
        if file is None and any(n.endswith((".safetensors", ".safetensors.index.json")) for n in sizes):
            return _of_safetensors(repository, sizes)
    except Exception as error:
        raise _unreachable(name, error) from None
    ggufs = sorted(n for n in sizes if n.endswith(".gguf"))
    gguf_file = only(name, ggufs) if file is None else file
    if gguf_file not in sizes:
        raise FileMissingError(
            f"{name}: the repository has no file {gguf_file!r} (it has {', '.join(ggufs)})", file=name, code="O201"
        )
    return _of_gguf(repository, gguf_file, sizes[gguf_file])


def _of_safetensors(repository: str, sizes: dict[str, Any]) -> Headers:
    from huggingface_hub import get_safetensors_metadata, parse_safetensors_file_metadata

    main_files = {"model.safetensors", "model.safetensors.index.json"}
    named = sorted(n for n in sizes if n.endswith(".safetensors") and "/" not in n)
    if main_files & set(sizes):
        files = dict(get_safetensors_metadata(repository).files_metadata)
    else:
        files = {n: parse_safetensors_file_metadata(repository, n) for n in named}
    tensors, metadata = [], {}
    for file, header in files.items():
        metadata.update({str(k): str(v) for k, v in (header.metadata or {}).items()})
        for key, entry in header.tensors.items():
            dtype, (begin, end) = str(entry.dtype), entry.data_offsets
            is_weights = dtype in ("F64", "F32", "F16", "BF16") or dtype.startswith("F8")
            tensors.append(
                SourceTensor(key, dtype, tuple(entry.shape), entry.parameter_count, end - begin, is_weights, file)
            )
    known = [sizes.get(file) for file in files]
    length = sum(s for s in known if s is not None) if all(known) else sum(tensor.bytes for tensor in tensors)
    return Headers(repository, "safetensors", tensors, length, metadata)


def _of_gguf(repository: str, file: str, size: int | None) -> Headers:
    """A header of which nobody knows how long it is: so much of the file is fetched until all of it is there."""
    place = f"{repository}/{file}"
    with tempfile.TemporaryDirectory(prefix="wcodec-header-") as folder:
        path = Path(folder) / Path(file).name
        want = _FIRST
        while True:
            try:
                data = _range(repository, file, 0 if not path.exists() else path.stat().st_size, want)
            except Exception as error:
                raise _unreachable(place, error) from None
            with path.open("ab") as out:
                out.write(data)
            try:
                gguf = GgufFile(path)
                return of_gguf(gguf, place, size or gguf.length)
            except CorruptError:
                # It ends within the header.
                if not data or want >= _MOST:
                    raise
            want *= _MORE


def _range(repository: str, file: str, begin: int, end: int) -> bytes:
    """Bytes of a file; fewer where it ends before."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = {**build_hf_headers(), "Range": f"bytes={begin}-{end - 1}"}
    answer = get_session().get(hf_hub_url(repository, file), headers=headers, timeout=_SECONDS, **_following())
    if answer.status_code == 416:
        return b""
    hf_raise_for_status(answer)
    data = bytes(answer.content)
    # A server that knows no ranges sends all of it.
    return data[begin:end] if answer.status_code == 200 else data


def _following() -> dict[str, Any]:
    """The option that makes a session follow links: httpx asks to be told, and requests does it."""
    from huggingface_hub.utils import get_session

    return {"follow_redirects": True} if type(get_session()).__module__.startswith("httpx") else {}


def _unreachable(name: str, error: BaseException) -> FileMissingError:
    return FileMissingError(
        f"{name}: no such folder or file, and no repository that can be reached ({cause(error)})",
        file=name,
        code="O201",
    )


__all__ = ["is_name", "of_repository"]
