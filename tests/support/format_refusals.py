"""Helpers of the tests of the container's Python reader: that it refuses what is wrong, and says what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from format_reader import FormatReader, FormatReaderError
from format_writer import Tensor, write_container
from hostile import poke, reindexed, resized


def refused(file: bytes, message: str) -> None:
    """Opening the file or reading exactly one of its tensors fails, and with this message."""
    found = []
    try:
        reader = FormatReader(file)
        for name in reader.names():
            try:
                reader.raw_bytes(name)
            except FormatReaderError as error:
                found.append(error)
    except FormatReaderError as error:
        found.append(error)
    assert len(found) == 1, found
    with pytest.raises(FormatReaderError, match=message):
        raise found[0]


def shapes_allocate_nothing(file: bytes, places: Sequence[tuple[int, tuple[int, int]]]) -> None:
    """Tensors of an index, by their places in it, that say they have another shape are refused for what they hold."""
    for place, shape in places:
        refused(reindexed(file, resized(place, shape)), "cannot hold")


def every_byte_counts(tensors: Sequence[Tensor]) -> None:
    """A bit that is another one in any byte is found: every fifth is tried."""
    file = write_container(None, tensors)
    for i in range(0, len(file), 5):
        changed = bytes(poke(file, i, bytes([file[i] ^ 1 << i % 8])))
        with pytest.raises(FormatReaderError):
            reader = FormatReader(changed)
            for t in tensors:
                reader.raw_bytes(t.name)
