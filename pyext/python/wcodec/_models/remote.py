"""Checkpoints that are on the Hub: headers are read, and of the weights one tensor after the other, so that no copy of
the files is on disk."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .._core.errors import FileMissingError, FormatError, WcodecError
from .._core.foreign import cause
from .._gpu import torch as _torch
from ..nn._weights.budget import host_memory
from . import hub
from .checkpoint import Checkpoint

# The first bytes of a file that are asked for: most headers are shorter.
_HEAD = 1 << 17
_LONGEST_HEADER = 100_000_000
# A request, and how many at once.
_PIECE = 16 << 20
_AT_ONCE = 4
# Tensors that are fetched before they are asked for; some of them nobody may ask for.
_AHEAD = 2
_SECONDS = 30.0
# A part of the host's free memory keeps weights that are read again: encoding takes more than one pass.
_KEPT = 0.25


class RemoteCheckpoint(Checkpoint):
    """The tensors of a repository, each read from the Hub when it is asked for, the next one meanwhile.

    :param repository: the repository.
    :raises FormatError: if a file is no .safetensors file, which its header tells.
    :raises FileMissingError: if the Hub does not answer.
    """

    is_local = False

    def __init__(self, repository: hub.RepositoryFiles) -> None:
        self._source = _Source(repository)
        with tempfile.TemporaryDirectory(prefix="wcodec-headers-") as place:
            # Files with headers, and nothing behind them: what checks a checkpoint checks these.
            headers = {name: self._source.stand_in(name, Path(place)) for name in repository.weights if _is_file(name)}
            for name in ("config.json", *(n for n in repository.weights if not _is_file(n))):
                if (repository.folder / name).is_file():
                    shutil.copyfile(repository.folder / name, Path(place, name))
            try:
                super().__init__(Path(place))
            except WcodecError as error:
                # It names what stands in for the repository.
                error.args = (str(error.args[0]).replace(place, repository.name),)
                error.file = repository.name if error.file is not None else None
                raise
            files = {Path(file).name: _File(self._source, Path(file).name, headers) for file in self._opened}
            self._files = {name: files[Path(file).name] for name, file in self._places.items()}
        self.path = Path(repository.name)

    def expect(self, keys: Iterable[str]) -> None:
        """Says in which order tensors will be read."""
        self._source.expect([(Path(self._places[key]).name, key) for key in keys if key in self._places])

    def close(self) -> None:
        """Reads nothing more."""
        self._source.close()


def _is_file(name: str) -> bool:
    return name.endswith(".safetensors")


class _File:
    """A file's tensors, as the library safetensors gives them."""

    def __init__(self, source: _Source, name: str, headers: dict[str, dict[str, Any]]) -> None:
        self._source, self._name, self._header = source, name, headers[name]

    def get_tensor(self, key: str) -> torch.Tensor:
        """All of a tensor."""
        entry = self._header[key]
        return _torch.from_bytes(self._source.tensor(self._name, key), entry["dtype"], tuple(entry["shape"]))

    def get_slice(self, key: str) -> _Slice:
        """A tensor of which parts are read."""
        return _Slice(self._source, self._name, key, self._header[key])


class _Slice:
    def __init__(self, source: _Source, file: str, key: str, entry: dict[str, Any]) -> None:
        self._source, self._file, self._key, self._entry = source, file, key, entry

    def get_shape(self) -> list[int]:
        """Its shape."""
        return list(self._entry["shape"])

    def get_dtype(self) -> str:
        """Its dtype."""
        return str(self._entry["dtype"])

    def __getitem__(self, index: int) -> torch.Tensor:
        shape = self.get_shape()
        begin, end = self._entry["data_offsets"]
        size = (end - begin) // max(shape[0], 1)
        part = self._source.part(self._file, self._key, index * size, (index + 1) * size)
        return _torch.from_bytes(part, self.get_dtype(), tuple(shape[1:]))


class _Source:
    """Bytes of a repository's files."""

    def __init__(self, repository: hub.RepositoryFiles) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        self._repository = repository
        self._headers = build_hf_headers(token=repository.options.token)
        self._url = {
            name: hf_hub_url(repository.name, repository.prefix + name, revision=repository.options.revision)
            for name in repository.weights
        }
        # The first and the last byte of each tensor in its file.
        self._at: dict[tuple[str, str], tuple[int, int]] = {}
        self._next: dict[tuple[str, str], tuple[str, str]] = {}
        self._ahead: dict[tuple[str, str], Future[npt.NDArray[np.uint8]]] = {}
        self._cache: dict[tuple[str, str], npt.NDArray[np.uint8]] = {}
        free = host_memory()[0]
        self._room = int(_KEPT * free) if free is not None else 0
        self._lock = Lock()
        self._pieces = ThreadPoolExecutor(_AT_ONCE, "wcodec-hub")
        self._tensors = ThreadPoolExecutor(1, "wcodec-hub-ahead")

    def close(self) -> None:
        for pool in (self._tensors, self._pieces):
            pool.shutdown(wait=False, cancel_futures=True)
        self._cache.clear()
        self._ahead.clear()

    def stand_in(self, name: str, place: Path) -> dict[str, Any]:
        """Writes a file with the header alone, and gives what it says."""
        total = self._repository.sizes.get(name)
        head = self._get(name, 0, min(_HEAD, total or _HEAD)).tobytes()
        length = struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else _LONGEST_HEADER + 1
        if length > _LONGEST_HEADER:
            raise self._not_safetensors(name, "its header has no length")
        if len(head) < 8 + length:
            head += self._get(name, len(head), 8 + length).tobytes()
        try:
            header = json.loads(head[8 : 8 + length])
            entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
            ends = [self._place(name, key, entry, 8 + length) for key, entry in entries.items()]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise self._not_safetensors(name, "its header cannot be read") from None
        with (place / name).open("wb") as file:
            file.write(head[: 8 + length])
            # A hole: nothing reads it.
            file.truncate(total if total is not None else max(ends, default=8 + length))
        return entries

    def _place(self, file: str, key: str, entry: dict[str, Any], start: int) -> int:
        begin, end = entry["data_offsets"]
        self._at[file, key] = (start + begin, start + end)
        return int(start + end)

    def _not_safetensors(self, name: str, why: str) -> FormatError:
        place = f"{self._repository.name}/{self._repository.prefix}{name}"
        return FormatError(f"{place}: not a .safetensors file: {why} (tell those who made it)", file=place, code="F104")

    def expect(self, order: list[tuple[str, str]]) -> None:
        self._next = dict(zip(order, order[1:], strict=False))

    def tensor(self, file: str, key: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes; those of the next one are fetched meanwhile."""
        wanted = (file, key)
        with self._lock:
            data, ahead = self._cache.get(wanted), self._ahead.pop(wanted, None)
        if data is None:
            data = self._get(file, *self._at[wanted]) if ahead is None else ahead.result()
        following = self._next.get(wanted)
        with self._lock:
            if wanted not in self._cache and data.nbytes <= self._room:
                self._room -= data.nbytes
                self._cache[wanted] = data
            known = following is None or following in self._cache or following in self._ahead
            if following is not None and not known and len(self._ahead) < _AHEAD:
                place = (following[0], *self._at[following])
                self._ahead[following] = self._tensors.submit(self._get, *place)
        return data

    def part(self, file: str, key: str, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Some of a tensor's bytes."""
        cached = self._cache.get((file, key))
        if cached is not None:
            return cached[begin:end]
        start = self._at[file, key][0]
        return self._get(file, start + begin, start + end)

    def _get(self, file: str, begin: int, end: int) -> npt.NDArray[np.uint8]:
        out = np.empty(max(end - begin, 0), np.uint8)
        edges = range(begin, end, _PIECE)
        ranges = [(at, min(at + _PIECE, end)) for at in edges]
        fetch = map if len(ranges) < 2 else self._pieces.map
        for (first, last), data in zip(ranges, fetch(lambda r: self._piece(file, *r), ranges), strict=True):
            out[first - begin : last - begin] = np.frombuffer(data, np.uint8)
        return out

    def _piece(self, file: str, begin: int, end: int) -> bytes:
        from huggingface_hub.utils import hf_raise_for_status, http_backoff

        wanted = {**self._headers, "Range": f"bytes={begin}-{end - 1}"}
        place = f"{self._repository.name}/{self._repository.prefix}{file}"
        try:
            answer = http_backoff("GET", self._url[file], headers=wanted, timeout=_SECONDS)
            hf_raise_for_status(answer)
        except Exception as error:
            raise FileMissingError(
                f"{place}: the Hub does not give bytes {begin:,} to {end:,}: {cause(error)} (try again; or fetch the "
                "repository first, with hf download)",
                file=place,
                code="O203",
            ) from None
        data: bytes = answer.content
        if answer.status_code != 206 or len(data) != end - begin:
            raise FileMissingError(
                f"{place}: the server gives {len(data):,} bytes where {end - begin:,} were asked for: it knows no "
                "ranges of files (fetch the repository first: hf download)",
                file=place,
                code="O203",
            )
        return data


__all__ = ["RemoteCheckpoint"]
