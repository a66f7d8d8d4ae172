"""Tensors damaged at random, and what two readers make of them: neither may read what the other refuses."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy as np
import wcodec
from format_reader import SYMBOLS, FormatReader, FormatReaderError, find_segments, hex_hash
from format_writer import Tensor, reseal, write_container
from rate_samples import same

Json = dict[str, Any]
Outcome = dict[str, "np.ndarray | Exception"]
#: what may stand under a key of the index instead
VALUES: dict[str, list[Any]] = {
    "dtype": ["BF16", "F16", "F32", "F64", "I8", "U8", "F8_E4M3"],
    "scheme": ["rate", "columns", "int8", "raw", "lossless", "rate2"],
    "per": ["row", "tensor", "block", "column"],
    "block": [16, 32, 128, 0, 24],
    "coder": ["rans", "huffman", "zstd", "raw", "other"],
    "filter": ["trellis", "left", "up", "other", ""],
    "layout": ["pair", "byte", "split", "quad", "other"],
    "shift": [0, 1, 2, 3, 4, 5, 8, 16],
    "tile": [64, 128, 192, 1024, 32, 0, 2**40],
    "table": [0, 1, 2, 3, 99],
    "chunk": [1, 128, 384, 512, 1000, 0, 2**24],
    "bits": [11, 12, 10, 13, 8, 7],
    "fields": [[[0, 8]], [], [[8, 8]]],
    "row_axis": [0, 1, 2],
}
ANY: list[Any] = [0, 1, 2, 16, 64, 127, 128, 2**31, 2**62, 2**63, 2**64, -1, 0.5, True, "", "rate", [], {}, [[]]]


def of_page(file: bytes) -> Outcome | Exception:
    """Values that the page's reader makes of each tensor, or its reason to refuse them all."""
    try:
        reader = FormatReader(file)
    except FormatReaderError as error:
        return error
    out: Outcome = {}
    for name in reader.names():
        try:
            out[name] = reader.values(name)
        except FormatReaderError as error:
            out[name] = error
    return out


def of_wcodec(file: bytes) -> Outcome | Exception:
    """Values that wcodec makes of each tensor, or its reason to refuse them all."""
    try:
        container = wcodec.open(file)
    except wcodec.WcodecError as error:
        return error
    out: Outcome = {}
    for name in container:
        try:
            out[name] = container[name].numpy()
        except wcodec.WcodecError as error:
            out[name] = error
    return out


def refused(file: bytes) -> wcodec.WcodecError:
    """The error of wcodec about the one tensor that is wrong, or the whole file."""
    try:
        container = wcodec.open(file)
    except wcodec.FormatError as error:
        return error
    found = []
    for name, entry in container.items():
        try:
            entry.numpy()
        except (wcodec.FormatError, wcodec.CorruptError, wcodec.UnsupportedError) as error:
            assert error.tensor == name
            found.append(error)
    (error,) = found
    return error


def disagreement(file: bytes) -> str | None:
    """Difference between what the two readers read.

    They need not agree on what is an error of the whole file: where the index is not of the page's form, the page's
    reader sees it when it comes to the tensor.
    """
    page, ours = of_page(file), of_wcodec(file)
    if isinstance(page, Exception) or isinstance(ours, Exception):
        found = [r for r in (page, ours) if not isinstance(r, Exception)]
        if all(any(isinstance(values, Exception) for values in r.values()) for r in found):
            return None
        return f"the page: {page if isinstance(page, Exception) else 'reads'}; wcodec: {ours}"[:600]
    if list(page) != list(ours):
        return f"names: {list(page)} and {list(ours)}"
    index = json.loads(file[int.from_bytes(file[16:24], "little") :])
    dtypes = {entry["name"]: entry["dtype"] for entry in index["tensors"]}
    dtypes |= {alias: dtypes[name] for alias, name in index["aliases"].items()}
    # a filter that coder raw does not use: the page has readers ignore such keys, and says that there are none
    open_to_both = {e["name"] for e in index["tensors"] for p in e["planes"] if p["coder"] == "raw" and "filter" in p}
    for name, a in page.items():
        b = ours[name]
        if name in open_to_both:
            continue
        if isinstance(a, Exception) or isinstance(b, Exception):
            if not (isinstance(a, Exception) and isinstance(b, Exception)):
                return f"{name}: the page {a if isinstance(a, Exception) else 'reads'}; wcodec: {b}"[:600]
        elif dtypes[name] in ("F32", "F16", "BF16") and not same(a, b, dtypes[name]) or a.tobytes() != b.tobytes():
            return f"{name}: other values"
    return None


def places(node: Any, key: str = "") -> list[tuple[Any, Any, str]]:
    """Everything in a JSON value: what it is in, its key there, and the last key that is text."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    found = []
    for k, child in list(items):
        name = k if isinstance(k, str) else key
        found += [(node, k, name), *places(child, name)]
    return found


def mutated_index(file: bytes, rng: random.Random) -> bytes:
    """One to three things in the index are others: such as stand elsewhere in it, or near ones, or anything."""
    begin = int.from_bytes(file[16:24], "little")
    index = json.loads(file[begin:])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = places([index["tensors"], index["tables"]])
        # the numbers of segments are most of an index, and what is wrong there is soon refused
        within = [place for place in found if place[2] not in ("data", "offsets", "side")]
        node, key, name = rng.choice(within if rng.random() < 0.9 else found)
        way = rng.random()
        if way < 0.1 and isinstance(node, dict):
            del node[key]
        elif way < 0.55 and name in VALUES:
            node[key] = copy.deepcopy(rng.choice(VALUES[name]))
        elif way < 0.7:
            node[key] = copy.deepcopy(rng.choice([other[k] for other, k, n in found if n == name]))
        elif way < 0.8 and isinstance(node[key], int):
            node[key] += rng.choice((-64, -16, -4, -1, 1, 4, 16, 64))
        elif way < 0.9:
            # what was changed before may have left no object
            holders = [child for parent, k, _ in found if isinstance(child := parent[k], dict)] or [index]
            holder, more = rng.choice(holders), rng.choice([*VALUES])
            holder[more] = copy.deepcopy(rng.choice(VALUES[more]))
        else:
            node[key] = copy.deepcopy(rng.choice(ANY))
    text = json.dumps(index).encode()
    return reseal(file[:24] + len(text).to_bytes(8, "little") + file[32:begin] + text)


def mutated_bytes(file: bytes, rng: random.Random) -> bytes:
    """One to four bytes of segments are others, and their hashes right; the planes' hashes, too, where they decode."""
    begin = int.from_bytes(file[16:24], "little")
    index, data = json.loads(file[begin:]), bytearray(file[:begin])
    segments = [s for s in find_segments([index["tensors"], index["tables"]]) if s[1]]
    # those of a few bytes as often as the others
    offset, length, _ = rng.choice(segments)
    for _ in range(rng.randint(1, 4)):
        at = offset + rng.randrange(rng.choice((length, min(length, 12))))
        data[at] = rng.choice((data[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255, (data[at] + 1) % 256))

    def sealed() -> bytes:
        text = json.dumps(index).encode()
        return reseal(bytes(data[:24]) + len(text).to_bytes(8, "little") + bytes(data[32:]) + text)

    for node, key, _ in places([index["tensors"], index["tables"]]):
        value = node[key]
        if isinstance(value, list) and len(value) == 3 and isinstance(value[2], str):
            value[2] = hex_hash(data[value[0] : value[0] + value[1]])
    reader = FormatReader(sealed())
    for entry in index["tensors"]:
        for plane, plain in zip(entry["planes"], decoded(reader, entry["name"]), strict=False):
            plane["hash"] = hex_hash(plain)
    return sealed()


def decoded(reader: FormatReader, name: str) -> list[bytes]:
    """Bytes that the plane of a tensor of symbols decodes to, whatever its hash; nothing if it does not decode."""
    entry, _, view = reader._checked(name)
    if entry["scheme"] not in SYMBOLS or not view:
        return []
    try:
        out = reader._decode_plane(name, entry["planes"][0], view, view[0] * view[1] * view[2], 1, entry["scheme"])
    except FormatReaderError:
        return []
    return [out.tobytes()]


def cases(tensors: list[Tensor], seed: int, count: int) -> list[bytes]:
    """Files made of the tensors, of which every second one has a wrong index."""
    rng, file = random.Random(seed), write_container(None, tensors)
    return [(mutated_index, mutated_bytes)[n % 2](file, rng) for n in range(count)]
