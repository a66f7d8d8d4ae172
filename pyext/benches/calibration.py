"""The time that calibration takes, and encoding with what it found, for a model of random weights.

    python pyext/benches/calibration.py [--shapes smollm2] [--bits 3.5] [--column-bits 4] [--device cuda]
        [--results FILE]

Seconds are of one run each, behind a first run of both kinds of statistics that is not counted. Weights are those of
the linear layers, without the embedding and the head. By columns they are encoded with the default coder, and with
error feedback with a trellis and coder rans.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import runs
import torch
import wcodec
from transformers import LlamaConfig, LlamaForCausalLM

UNITS = {
    "columns_statistics": "s",
    "columns_encoding": "s",
    "full_statistics": "s",
    "full_encoding": "s",
}
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
    },
    "8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8,
    },
}  # fmt: skip


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result of some work, and the seconds that it takes."""
    begin = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", choices=SHAPES, default="smollm2")
    parser.add_argument("--layers", type=int, help="so many, and not all")
    parser.add_argument("--bits", type=float, default=3.5, help="those of error feedback")
    parser.add_argument("--column-bits", type=float, default=4.0, help="those of columns alone")
    parser.add_argument("--device", default="cuda")
    runs.add_argument(parser)
    args = parser.parse_args()
    shapes = {**SHAPES[args.shapes], **({"num_hidden_layers": args.layers} if args.layers else {})}
    torch.manual_seed(0)
    with torch.device(args.device):
        model = LlamaForCausalLM(LlamaConfig(max_position_embeddings=2048, **shapes)).to(torch.bfloat16).eval()
    linear = [
        name for name, p in model.named_parameters() if p.dim() == 2 and not name.startswith(("model.embed", "lm"))
    ]
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items() if name in linear}
    columns = {"full": False, "gradients": False}
    for options in (columns, {"tokens": 1024}):
        wcodec.collect_statistics(model, **options)
    found: dict[str, float] = {}
    few, found["columns_statistics"] = timed(lambda: wcodec.collect_statistics(model, **columns))
    full, found["full_statistics"] = timed(lambda: wcodec.collect_statistics(model))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.wcodec"

        def encode(statistics: Any, bits: float, **options: Any) -> Any:
            return wcodec.compress(
                weights, path, bits=bits, calibrate=statistics, device=args.device, overwrite=True, **options
            )

        found["columns_encoding"] = timed(lambda: encode(few, args.column_bits))[1]
        found["full_encoding"] = timed(lambda: encode(full, args.bits, trellis=True, coder="rans"))[1]
    print(json.dumps(found), flush=True)
    name = f"{args.shapes}, {args.column_bits:g} bits by columns, {args.bits:g} with error feedback"
    runs.write(args.results, "Calibration and encoding of linear layers", UNITS, [runs.row(name, found, UNITS)])


if __name__ == "__main__":
    main()
