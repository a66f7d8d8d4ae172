"""Up to how many tokens a GPU is faster with products straight from compressed weights than with decoding and cuBLAS:
what was measured (``crossover.json``, which ``pyext/benches/crossover.py --write`` makes).
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..._file.container import TensorEntry
from ..._gpu.decoder import ProductBatch

# Tokens up to which products are taken where nothing was measured: kernels of more gain little on some GPUs.
_UNMEASURED = 64
_TABLE = Path(__file__).with_name("crossover.json")


class Kind(NamedTuple):
    """The facts of a matrix that decide, beside its size, how fast kernels multiply with it."""

    scheme: str
    coder: str
    layout: str
    filter: str = "none"

    @classmethod
    def of(cls, entry: TensorEntry) -> Kind:
        """That of a stored tensor."""
        return cls(entry.scheme, entry.coder, entry.layout or "", entry.filter)


def tokens(device: torch.device, kind: Kind, weights: int) -> int:
    """The largest number of tokens for which a matrix of so many weights is multiplied with as it is stored; not more
    than any launch takes. The residency of the compressed bytes does not matter, so that results are the same bits
    anywhere.

    The nearest of the sizes that were measured on GPUs of this compute capability counts. Without a measurement the
    number is 64; one launch with the tensor may take fewer.
    """
    # Layout pair is the one that tables leave out.
    key = " ".join([kind.scheme, kind.coder, *(["quad"] if kind.layout == "quad" else [])])
    return _measured_tokens(torch.cuda.get_device_capability(device), key, kind.filter == "trellis", weights)


@functools.lru_cache(maxsize=1024)
def _measured_tokens(capability: tuple[int, int], kind: str, trellis: bool, weights: int) -> int:
    kinds = _read().get(".".join(map(str, capability)), {}).get("tokens", {})
    # A trellis without rows of its own has those of its kind.
    rows = (kinds.get(f"{kind} trellis") if trellis else None) or kinds.get(kind)
    if not rows:
        return _UNMEASURED
    # Sizes are compared by their ratio.
    size = min(map(int, rows), key=lambda n: max(n, weights) / max(1, min(n, weights)))
    return min(ProductBatch.MOST, int(rows[str(size)]))


@functools.lru_cache(maxsize=1)
def _read() -> dict[str, Any]:
    capabilities: dict[str, Any] = json.loads(_TABLE.read_text())["capabilities"]
    return capabilities


def write(report: dict[str, Any]) -> None:
    """Puts what the benchmark measured on a GPU into the table. Kinds that it did not measure keep their rows."""
    table = json.loads(_TABLE.read_text())
    rows: dict[str, dict[str, int]] = {}
    for measurement in report["measured"]:
        trellis = measurement.get("options", {}).get("trellis", False)
        kind = f"{measurement['scheme']} {measurement['coder']}{' trellis' if trellis else ''}"
        tokens_by_size = rows.setdefault(kind, {})
        size = str(measurement["rows"] * measurement["columns"])
        tokens_by_size[size] = min(measurement["tokens"], tokens_by_size.get(size, measurement["tokens"]))
    before = table["capabilities"].get(report["capability"], {"device": "", "tokens": {}})
    device = report["device"]
    if before["tokens"].keys() - rows.keys() and before["device"] != device:
        device = f"{before['device']}; {', '.join(rows)}: {device}"
    table["capabilities"][report["capability"]] = {"device": device, "tokens": before["tokens"] | rows}
    _TABLE.write_text(json.dumps(table, indent=1) + "\n")
