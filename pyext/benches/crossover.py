"""Up to how many tokens products straight from compressed weights are faster than decoding to scratch and cuBLAS: the
table in `pyext/python/wcodec/nn/_weights/crossover.json`, by kind of GPU, coder, scheme and size of the matrix.

    python pyext/benches/crossover.py [--results FILE] [--write]

Each matrix is rotated among up to 32 copies, which the GPU's cache does not hold but for the smallest matrices, in CUDA
graphs that take turns; weights are random with heavy tails. Products of more tokens than a launch takes take several.
The result is the largest number of tokens up to which products were never more than 2 % slower; for rate, the least of
some rates and tables. A trellis has a result of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import runs
import torch
import torch.nn.functional as F
from products import Graph, Weights, copies, microseconds
from wcodec.nn._weights import crossover

# Gate and up projections are one launch, and so as one matrix here.
SHAPES = ((256, 2048), (2048, 2048), (2048, 5632), (4096, 4096), (11264, 2048), (4096, 14336), (32000, 4096))
TOKENS = (1, 8, 16, 32, 48, 64, 65, 128)
UNITS = {"bits": "bits/weight"} | {f"{kind}_{n}": f"us, {n} tokens" for n in TOKENS for kind in ("products", "decoded")}
_PLAIN = {"bits": 4.0, "trellis": False}
SCHEMES: dict[str, tuple[dict[str, Any], ...]] = {
    "int8": ({},),
    "rate": (_PLAIN, {**_PLAIN, "bits": 3.1, "table_bits": 8}, {**_PLAIN, "trellis": True}),
}
QUADS: dict[str, tuple[dict[str, Any], ...]] = {
    "int8": ({},),
    "rate": (_PLAIN, {**_PLAIN, "bits": 3.1, "table_bits": 10}, {**_PLAIN, "trellis": True}),
}


def graphs(held: Weights, tokens: int) -> dict[str, Graph]:
    """Makes two graphs over all copies, one after the other: products, and decoding followed by cuBLAS."""
    (_, rows, columns) = held.groups[0][0]
    x = torch.randn((tokens, columns), device="cuda", dtype=torch.bfloat16)
    scratch = torch.empty((rows, columns), device="cuda", dtype=torch.bfloat16)
    names = [group[0][0] for group in held.groups]
    products = [held.decoder.products([(name, None)]) for name in names]
    batches = [held.decoder.prepare([(name, scratch)]) for name in names]
    most = min(product.most for product in products)

    def multiplied() -> None:
        for product in products:
            for begin in range(0, tokens, most):
                product(x[begin : begin + most])

    def decoded() -> None:
        for batch in batches:
            batch.launch()
            F.linear(x, scratch)

    return {"products": Graph(multiplied), "decoded": Graph(decoded)}


def measure(coder: str, scheme: str, options: dict[str, Any], rows: int, columns: int) -> dict[str, Any]:
    """Microseconds a matrix of each number of tokens, and up to how many products are at most 2 % slower."""
    count = copies(rows, columns, 32)
    layout = "quad" if coder == "huffman quad" else "pair"
    if coder == "rans":
        options = {k: v for k, v in options.items() if k != "table_bits"}
    given = {"coder": coder.split()[0], "layout": layout, **options}
    held = Weights([[(str(i), rows, columns)] for i in range(count)], given)
    times: dict[str, list[float]] = {}
    most = 0
    for tokens in TOKENS:
        found = {k: median(v) / count for k, v in microseconds(graphs(held, tokens), 9).items()}
        times[str(tokens)] = [round(found["products"], 2), round(found["decoded"], 2)]
        # So much is chance.
        if found["products"] > 1.02 * found["decoded"]:
            break
        most = tokens
    held.decoder.check()
    what = {"coder": coder, "scheme": scheme, "options": options, "rows": rows, "columns": columns}
    print(f"{coder:8} {options or scheme} {rows} x {columns}: {most} tokens; products, decoded: {times}", flush=True)
    return {**what, "bits": round(held.bits, 3), "microseconds": times, "tokens": most}


def save(path: Path | None, measured: list[dict[str, Any]]) -> None:
    """Writes the file of a run, if there is a path."""
    rows = []
    for found in measured:
        options = " ".join(f"{name} {value}" for name, value in found["options"].items())
        named = f"{found['coder']} {options or found['scheme']} {found['rows']}x{found['columns']}"
        times = {
            f"{kind}_{tokens}": us
            for tokens, both in found["microseconds"].items()
            for kind, us in zip(("products", "decoded"), both, strict=True)
        }
        rows.append(runs.row(named, {**found, **times}, UNITS))
    runs.write(path, "Products beside decoding followed by cuBLAS, by tokens", UNITS, rows, mode="CUDA graphs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_argument(parser)
    parser.add_argument("--write", action="store_true", help="puts this GPU's rows into the package's table")
    parser.add_argument("--coders", default="huffman,rans,huffman quad", help="and layout, where it is not pair")
    parser.add_argument("--shapes", help="ROWSxCOLUMNS, where not all are wanted")
    args = parser.parse_args()
    if args.write and args.shapes:
        parser.error("--write replaces all sizes of what is measured: leave --shapes out")
    shapes = tuple(tuple(map(int, s.split("x"))) for s in args.shapes.split(",")) if args.shapes else SHAPES
    measured = [
        measure(coder, scheme, options, rows, columns)
        for coder in args.coders.split(",")
        for scheme, several in (QUADS if coder.endswith("quad") else SCHEMES).items()
        for options in several
        for rows, columns in shapes
    ]
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    report = {"device": torch.cuda.get_device_name(), "capability": capability, "measured": measured}
    save(args.results, measured)
    if args.write:
        crossover.write(report)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
