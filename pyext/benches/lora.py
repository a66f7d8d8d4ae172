"""LoRA on a compressed base beside LoRA on a bf16 base, on one GPU: peak memory and the time of a step.

    python pyext/benches/lora.py [--shapes llama-8b] [--tokens 512] [--bits none,4] [--results FILE]

Batch 1, gradient checkpointing, adapters of rank 16 at all linear layers of the blocks, AdamW. Weights are random with
heavy tails. Memory is what the driver says is used beyond what a context takes, at its peak: torch's reserved memory,
compressed bytes and scratch together. A step is forward, backward and the optimizer's; medians of the steps after the
first two.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from typing import Any

import peft
import runs
import torch
import wcodec
from tinyllama_model import SHAPES, build, clean, timed

UNITS = {"peak": "bytes", "step_s": "s", "of_bf16": "of bf16's memory", "speed_of_bf16": "of bf16's speed"}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def used() -> int:
    """Bytes that are taken of the device."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def tuned(model: Any, tokens: int, steps: int, before: int) -> dict[str, float]:
    """Peak memory beyond `before`, and seconds of a step."""
    model.config.use_cache = False
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), device="cuda")
    clean()
    torch.cuda.reset_peak_memory_stats()
    peak, times = 0, []

    def step() -> None:
        nonlocal peak
        model(input_ids=ids, labels=ids).loss.backward()
        # Nothing is given back to the driver within a step, so that this is its peak.
        peak = max(peak, used())
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(steps):
        times.append(timed(step))
    return {"peak": max(peak, used()) - before, "step_s": median(times[2:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", choices=SHAPES, default="llama-8b")
    parser.add_argument("--layers", type=int, help="so many, and not all")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--bits", default="none,4", help="bits a weight of scheme rate, or none for int8")
    runs.add_argument(parser)
    args = parser.parse_args()
    torch.zeros(1, device="cuda")
    before = used()
    rows: dict[str, Any] = {}
    rows["bf16"] = tuned(build(args.shapes, args.layers), args.tokens, args.steps, before)
    print("bf16", json.dumps(rows["bf16"]), flush=True)
    for bits in args.bits.split(","):
        clean()
        with torch.no_grad():
            model = build(args.shapes, args.layers)
        options: dict[str, Any] = {} if bits == "none" else {"bits": float(bits)}
        wcodec.compress_(model, calibrate=False, progress=False, coder="huffman", **options)
        found: dict[str, Any] = tuned(model, args.tokens, args.steps, before)
        del model
        found["of_bf16"] = found["peak"] / rows["bf16"]["peak"]
        found["speed_of_bf16"] = rows["bf16"]["step_s"] / found["step_s"]
        rows["int8" if bits == "none" else f"{bits} bits"] = found
        print(bits, json.dumps(found), flush=True)
    made = [runs.row(name, values, UNITS) for name, values in rows.items()]
    runs.write(args.results, f"Training an adapter, shapes of {args.shapes}, {args.tokens} tokens", UNITS, made)


if __name__ == "__main__":
    main()
