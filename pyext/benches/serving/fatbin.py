"""Cuts a CUDA extension down to the code of one GPU architecture, without linking it again.

An ELF file for CUDA has sections of fatbins, one for each source. A fatbin is a header (u32 magic, u16 version, u16
size of the header, u64 size of the entries) and its entries: code for an architecture, or PTX. In each fatbin the
entries that stay move to the front, its size becomes theirs, and what follows is zeros, which take no room in an
archive. A fatbin that loses all of its entries must still be valid, since the extension registers each: it gets the
smallest entry that stays elsewhere, or keeps its own smallest one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

MAGIC = 0xBA55ED50
SECTIONS = (".nv_fatbin", "__nv_relfatbin")
PTX, CODE = 1, 2
HEADER = struct.Struct("<IHHQ")
# Kind, version, size of the header, size of the payload; the architecture follows at ARCHITECTURE.
ENTRY = struct.Struct("<HHIQ")
ARCHITECTURE = 28
# Types of sections and symbols of ELF.
SYMBOLS, FILE_SYMBOL = 2, 4
# The symbol of a source's fatbin.
NAME = "fatbinData"


class NotUnderstood(ValueError):
    """Bytes that are not what this module expects."""


@dataclass(frozen=True)
class Entry:
    """Code for an architecture."""

    kind: int
    architecture: int
    data: bytes
    """The header and the payload."""


@dataclass
class Fatbin:
    """The code of one source."""

    offset: int
    header: int
    size: int
    source: str
    entries: list[Entry] = field(default_factory=list)

    @property
    def begin(self) -> int:
        return self.offset + self.header


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int
    """The number of the section that has the names of a table of symbols."""


def sections(data: bytes | bytearray) -> list[Section]:
    """All sections of a little-endian ELF file of 64 bits."""
    if bytes(data[:6]) != b"\x7fELF\x02\x01":
        raise NotUnderstood("no little-endian ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", data, 40)
    width, count, names = struct.unpack_from("<HHH", data, 58)
    raw = []
    for i in range(count):
        name, kind, _, address, offset, size, link = struct.unpack_from("<IIQQQQI", data, table + i * width)
        raw.append((name, kind, address, offset, size, link))
    texts = raw[names][3]
    return [Section(_text(data, texts + name), *rest) for name, *rest in raw]


def _text(data: bytes | bytearray, at: int) -> str:
    return bytes(data[at : data.index(0, at)]).decode("utf-8", "replace")


def sources(data: bytes | bytearray, found: list[Section]) -> dict[int, str]:
    """The source of each fatbin by its address, where symbols were not stripped: its symbol follows that of a file."""
    out, file = {}, ""
    for table in found:
        if table.kind != SYMBOLS:
            continue
        for at in range(table.offset, table.offset + table.size, 24):
            name, info, _, _, value = struct.unpack_from("<IBBHQ", data, at)
            text = _text(data, found[table.link].offset + name)
            if info & 15 == FILE_SYMBOL:
                file = text
            elif text == NAME:
                out[value] = file
    return out


def fatbins(data: bytes | bytearray) -> list[Fatbin]:
    """All fatbins of a file."""
    found = sections(data)
    names = sources(data, found)
    out = []
    for section in found:
        if section.name in SECTIONS:
            out += list(_in_section(data, section, names))
    return out


def _in_section(data: bytes | bytearray, section: Section, names: dict[int, str]) -> Iterator[Fatbin]:
    at, end = section.offset, section.offset + section.size
    while at + HEADER.size <= end:
        magic, _, header, size = HEADER.unpack_from(data, at)
        if magic != MAGIC:
            if any(data[at : at + 8]):
                raise NotUnderstood(f"{section.name} has something else than fatbins at {at - section.offset}")
            at += 8
            continue
        if at + header + size > end:
            raise NotUnderstood(f"{section.name} ends within a fatbin")
        out = Fatbin(at, header, size, names.get(section.address + at - section.offset, ""))
        out.entries = list(_entries(data, out.begin, out.begin + size))
        yield out
        at = out.begin + size


def _entries(data: bytes | bytearray, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        kind, _, header, payload = ENTRY.unpack_from(data, at)
        stop = at + header + payload
        if header < ARCHITECTURE + 4 or stop > end:
            raise NotUnderstood("an entry ends behind its fatbin")
        (architecture,) = struct.unpack_from("<I", data, at + ARCHITECTURE)
        yield Entry(kind, architecture, bytes(data[at:stop]))
        at = stop


def runs_on(entry: Entry, architecture: int) -> bool:
    """Whether that architecture runs an entry of code: its own, or an earlier one of the same generation.

    >>> [runs_on(Entry(CODE, made, b""), 86) for made in (80, 86, 89, 90)]
    [True, True, False, False]
    """
    made = entry.architecture
    return entry.kind == CODE and made // 10 == architecture // 10 and made <= architecture


def kept(found: Fatbin, architecture: int, pattern: str | None = None, ptx: str | None = None) -> list[Entry]:
    """The entries that stay: code of the nearest architecture, if the source is one that stays."""
    if pattern is not None and not re.search(pattern, found.source):
        return []
    fits = [entry for entry in found.entries if runs_on(entry, architecture)]
    if not fits and ptx is not None and re.search(ptx, found.source):
        fits = [entry for entry in found.entries if entry.kind == PTX and entry.architecture <= architecture]
    nearest = max((entry.architecture for entry in fits), default=0)
    return [entry for entry in fits if entry.architecture == nearest]


def slim(data: bytearray, architecture: int, pattern: str | None = None, ptx: str | None = None) -> int:
    """Leaves the code of one architecture in a file, in place.

    :param pattern: a regular expression that is found in the names of the sources that stay; all stay without it.
    :param ptx: one for the sources whose PTX stays where they have no such code: the driver compiles it.
    :returns: the number of bytes of code that stay.
    """
    found = fatbins(data)
    chosen = [kept(fatbin, architecture, pattern, ptx) for fatbin in found]
    every = [entry for entries in chosen for entry in entries if entry.kind == CODE]
    if not every:
        raise NotUnderstood(f"there is no code for sm_{architecture}" + (f" in {pattern!r}" if pattern else ""))
    donor = min(every, key=_length)
    total = 0
    for fatbin, entries in zip(found, chosen, strict=True):
        if not fatbin.entries:
            continue
        stays = entries or [min((e for e in (donor, *fatbin.entries) if len(e.data) <= fatbin.size), key=_length)]
        code = b"".join(entry.data for entry in stays)
        data[fatbin.begin : fatbin.begin + fatbin.size] = code.ljust(fatbin.size, b"\0")
        struct.pack_into("<Q", data, fatbin.offset + 8, len(code))
        total += len(code)
    return total


def _length(entry: Entry) -> int:
    return len(entry.data)
