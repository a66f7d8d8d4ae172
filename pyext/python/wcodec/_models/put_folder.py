"""Folders of compressed models that are written: whole or not at all, in the place of a model only where that was asked
for, and never in that of anything else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import _native
from .._core.errors import OutputExistsError
from .._core.options import path_of
from .._core.paths import files_of, output_exists
from .save import CONFIG, FILE, REST

# Files that are replaced with a model. All others in its folder stay.
_OURS = (
    *(FILE, REST, CONFIG, "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json"),
)


@contextmanager
def new_folder(
    target: str, source: Path, inputs: Iterable[str | os.PathLike[str]], overwrite: bool
) -> Iterator[tuple[Path, _native.Folder]]:
    """A folder to fill, which gets the name ``target`` when ``finish`` is called on what comes with it; if the block
    ends before, nothing is left of it.

    :param source: the folder of the model that is read.
    :param inputs: further files that are.
    :raises InputError: if there is something else than a compressed model, or one that holds what is read.
    :raises OutputExistsError: if there is a compressed model and ``overwrite`` was not asked for.
    """
    read = [path_of(source), *files_of(source), *map(path_of, inputs)]
    try:
        folder = _native.Folder(target, read, list(_OURS), overwrite)
        try:
            yield Path(folder.path), folder
        finally:
            folder.discard()
    except OutputExistsError as error:
        if error.file is None or Path(error.file).name != Path(target).name:
            raise
        raise output_exists(target) from None
