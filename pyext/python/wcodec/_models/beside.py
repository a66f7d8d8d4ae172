"""Files that belong to a model beside its weights: tokenizers, processors, templates, settings, code, licences.

They are told by what they are not, for their names are as many as there are tokenizers: not weights, in whatever form,
not the state of a training, not hidden, not large.
"""

from __future__ import annotations

import errno
import fnmatch
import logging
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._core import format as fmt
from .._core.errors import FileError
from .._core.foreign import read_json

_log = logging.getLogger("wcodec")

# Written anew for the compressed model.
_OURS = ("config.json", "*.wcodec", "*.*.index.json")
# Weights, in whatever form.
_WEIGHTS = (
    *("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.ggml", "*.onnx", "*.onnx_data", "*.onnx.data"),
    *("*.h5", "*.keras", "*.msgpack", "*.ot", "*.pb", "*.tflite", "*.mlmodel", "*.distcp", "*.pte", "*.engine"),
    *("*.plan", "*.nemo", "*.llamafile", "openvino_*.xml", "consolidated*"),
)
# Files of a training run, and of downloads that are not complete.
_OTHERS = (
    *("optimizer*", "scheduler.*", "rng_state*", "trainer_state.json", "training_args*", "scaler.*", "random_states*"),
    *("events.out.tfevents*", "zero_to_fp32.py", "latest"),
    *("*.part", "*.lock", "*.incomplete"),
)
# Pictures and sounds of a model's page; a few small ones are taken along.
_PICTURES = (
    *("*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp", "*.svg", "*.pdf", "*.mp4", "*.mov", "*.wav", "*.mp3", "*.flac"),
)
# Data files: only small ones belong to a processor.
_DATA = (
    *("*.npz", "*.npy", "*.pkl", "*.pickle", "*.joblib", "*.csv", "*.tsv", "*.jsonl", "*.parquet", "*.arrow", "*.log"),
    *("*.zip", "*.tar", "*.tar.*", "*.tgz", "*.gz", "*.xz", "*.zst", "*.7z", "*.rar"),
)
# Weights of an adapter that transformers applies to the model.
_ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
_LARGEST, _LARGEST_DATA = 256 << 20, 4 << 20
# Subfolders that tokenizers, processors, generation and sentence-transformers read.
_FOLDERS = ("additional_chat_templates", "custom_generate", "speaker_embeddings", "assets", "tokenizer*", "[0-9]_*")
_MOST_IN_FOLDER, _DEEPEST = 500, 3
# Files of a tokenizer: they stay behind where another one saves its own.
_TOKENIZER = (
    *("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "added_tokens.json", "*.model", "*.spm", "*.bpe"),
    *(
        "*.tiktoken",
        "tekken.json",
        "bpe.codes",
        "dict.txt",
        "chat_template*",
        "additional_chat_templates/*",
        "*_vocab*",
    ),
)
# Configs that name code of their own.
_NAMING_CODE = ("*config*.json", "modules.json")


@dataclass(frozen=True)
class Beside:
    """The files of a folder beside its weights."""

    files: dict[str, Path] = field(default_factory=dict)
    """Files that belong to the model, by their names in the folder, with ``/``."""
    left: list[str] = field(default_factory=list)
    """Names of files that stay behind and are not what was encoded: other weights, large files, pipes and devices."""

    def tell(self, folder: Path) -> None:
        """Logs what stays behind."""
        if self.left:
            more = f" and {len(self.left) - 8} more" if len(self.left) > 8 else ""
            _log.info("%s: %s stay behind", folder, ", ".join(self.left[:8]) + more)


def belongs(name: str, size: int | None = None) -> bool:
    """Whether a file goes with a model, by its name in the model's folder, with ``/``, and its bytes, if known."""
    *folders, base = name.split("/")
    if any(part.startswith(".") or part == "__pycache__" for part in (*folders, base)):
        return False
    if folders and not _any(folders[0], _FOLDERS) and not base.endswith(".py"):
        return False
    if not folders and base in _ADAPTER:
        return True
    if size is not None and size > (_LARGEST_DATA if _any(base.lower(), (*_PICTURES, *_DATA)) else _LARGEST):
        return False
    return not _any(base, (*_WEIGHTS, *_OTHERS)) and not (_any(base, _OURS) and (not folders or base != "config.json"))


def is_picture(name: str) -> bool:
    """Whether a file is for people to look at or to hear."""
    return _any(name.lower(), _PICTURES)


def beside(folder: Path, read: Iterable[str] = ()) -> Beside:
    """The files of a folder that belong to its model.

    :param read: names of files that were encoded, which are not told as left behind.
    """
    beside_files, known = Beside(), set(read)
    for name, path in _walk(folder):
        try:
            info = path.stat()
        except OSError:
            # A link to nowhere.
            beside_files.left.append(name)
            continue
        if stat.S_ISREG(info.st_mode) and belongs(name, info.st_size):
            beside_files.files[name] = path
        elif name not in known and not _any(name, _OURS):
            beside_files.left.append(name)
    return beside_files


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files of a folder and of those subfolders that belong to a model; of others, Python files, if there is code."""
    code = None
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if not path.is_dir():
            yield path.name, path
        elif _any(path.name, _FOLDERS):
            yield from _inside(path, path.name, 1)
        elif not path.is_symlink() and (path / "__init__.py").is_file():
            code = _names_code(folder) if code is None else code
            if code:
                yield from ((n, p) for n, p in _inside(path, path.name, 1) if n.endswith(".py"))


def _inside(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    paths = sorted(folder.iterdir())
    if len(paths) > _MOST_IN_FOLDER:
        # None of a tokenizer's.
        return
    for path in paths:
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        name = f"{prefix}/{path.name}"
        if not path.is_dir():
            yield name, path
        elif depth < _DEEPEST and not path.is_symlink():
            yield from _inside(path, name, depth + 1)


def _names_code(folder: Path) -> bool:
    """Whether a config of a folder names code that comes with it."""
    for path in folder.iterdir():
        if _any(path.name, _NAMING_CODE) and path.is_file() and "auto_map" in read_json(path):
            return True
    return False


def copy(folder: Path, target: Path, read: Iterable[str] = ()) -> Beside:
    """Copies the files that belong to a model; links become files.

    :raises FileError: if one cannot be read or written.
    """
    beside_files = beside(folder, read)
    for name, path in beside_files.files.items():
        place = target / name
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(path, place)
        except OSError as error:
            refused = FileError(
                f"{path}: it cannot be copied to the new folder: {error.strerror or error} (check its permissions, and "
                f"that {fmt.size(path.stat().st_size)} are free)",
                file=path,
                code="O000",
            )
            refused.errno = error.errno or errno.EIO
            raise refused from None
    return beside_files


def of_model(model: Any, target: Path, tokenizer: bool = True) -> dict[str, Path]:
    """Files beside the weights of where a model of transformers was loaded from, by their names there; none if that is
    where it is saved.

    :param tokenizer: whether those of a tokenizer are wanted.
    """
    source = source_of(model)
    if source is None or source.resolve() == target.resolve():
        return {}
    beside_files = beside(source)
    beside_files.tell(source)
    return {
        name: path
        for name, path in beside_files.files.items()
        if name not in _ADAPTER and name != "adapter_config.json" and (tokenizer or not _any(name, _TOKENIZER))
    }


def source_of(model: Any) -> Path | None:
    """The folder that a model was loaded from, in the Hub's cache if that was a repository."""
    config = getattr(model, "config", None)
    named = str(getattr(config, "_name_or_path", "") or "")
    if not named:
        return None
    if os.path.isdir(named):
        return Path(named)
    try:
        from huggingface_hub import try_to_load_from_cache

        commit = getattr(config, "_commit_hash", None)
        cached_path = try_to_load_from_cache(named, "config.json", revision=commit)
    except (ImportError, ValueError):
        # The name is not one of a repository.
        return None
    return Path(cached_path).parent if isinstance(cached_path, str) else None


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
