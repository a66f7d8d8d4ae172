"""A Llama of TinyLlama-1.1B's configuration on one GPU: memory and speed of every residency beside bf16, in one run.

    python pyext/benches/tinyllama.py [--json FILE] [--tokens 64] [--repeats 3] [--layers 22]

Weights are random with heavy tails (Student-t, 6 degrees of freedom), since sizes, speeds and memory do not depend on
what a model has learned. All 155 linear layers and the embedding are compressed. Speeds are tokens per second of greedy
generation at batch 1, medians of repeats that take turns with the baseline's. `vram` is torch's peak allocated memory
during generation and the compressed bytes, which torch does not allocate; `used` is what the driver says.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from statistics import median
from typing import Any

import torch
import wcodec
from transformers import AutoModelForCausalLM, LlamaConfig


def build(layers: int) -> Any:
    """The model, in bf16 on the GPU."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)
    degrees = 6
    for p in model.parameters():
        if p.dim() == 2:
            chi = torch.distributions.Chi2(torch.tensor(float(degrees), device="cuda")).sample(p.shape)
            p.copy_(torch.randn(p.shape, device="cuda") * (degrees / chi).sqrt() * 0.02)
    return model


def generate(model: Any, tokens: int) -> float:
    """Seconds for so many greedy tokens after a short prompt."""
    prompt = torch.arange(1, 9, device="cuda")[None]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
    )
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def logits(model: Any) -> torch.Tensor:
    prompt = torch.arange(1, 65, device="cuda")[None]
    with torch.inference_mode():
        return model(prompt).logits.clone()


def peak(model: Any, tokens: int) -> dict[str, Any]:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    generate(model, tokens)
    free, total = torch.cuda.mem_get_info()
    allocated = torch.cuda.max_memory_allocated()
    held = ("compressed", "ring")
    parts = [p for p in wcodec.measure_vram(model).parts if p.device.startswith("cuda")]
    compressed = sum(p.bytes for p in parts if p.name.startswith(held))
    named = {p.name: p.bytes for p in parts}
    return {"vram": allocated + compressed, "allocated": allocated, "used": total - free, "parts": named}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--coders", default="rans,huffman")
    parser.add_argument("--only", help="residencies, separated by commas")
    args = parser.parse_args()
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "tokens": args.tokens}

    def note(name: str, **values: Any) -> None:
        report[name] = values
        print(name, json.dumps(values), flush=True)

    with torch.inference_mode():
        free, total = torch.cuda.mem_get_info()
        note("context", used=total - free)
        baseline = build(args.layers)
        generate(baseline, 8)
        bf16 = peak(baseline, args.tokens)
        note("bf16", **bf16, tokens_per_s=args.tokens / median([generate(baseline, args.tokens) for _ in range(3)]))
        first: torch.Tensor | None = None
        for coder in args.coders.split(","):
            for residency in ("device", "host"):
                if args.only and residency not in args.only.split(","):
                    continue
                model = build(args.layers)
                begin = time.perf_counter()
                replaced = wcodec.compress_(model, coder=coder, residency=residency, progress=False)
                seconds = time.perf_counter() - begin
                model.eval()
                generate(model, 8)
                seen = logits(model)
                first = seen if first is None else first
                times: dict[str, list[float]] = {"ours": [], "bf16": []}
                for _ in range(args.repeats):
                    times["ours"].append(generate(model, args.tokens))
                    times["bf16"].append(generate(baseline, args.tokens))
                # The baseline goes, so that peaks are of this model alone.
                baseline_cpu = baseline.to("cpu")
                memory = peak(model, args.tokens)
                note(
                    f"{coder} {residency}",
                    layers=len(replaced.replaced),
                    compress_s=seconds,
                    **memory,
                    of_bf16=memory["vram"] / bf16["vram"],
                    tokens_per_s=args.tokens / median(times["ours"]),
                    bf16_tokens_per_s=args.tokens / median(times["bf16"]),
                    speed_of_bf16=median(times["bf16"]) / median(times["ours"]),
                    spread=[min(times["ours"]), max(times["ours"])],
                    same_logits=bool(torch.equal(seen, first)),
                )
                del model
                gc.collect()
                torch.cuda.empty_cache()
                baseline = baseline_cpu.to("cuda")
    try:
        from accelerate import cpu_offload
    except ImportError:
        pass
    else:
        offloaded = cpu_offload(baseline, execution_device=torch.device("cuda", 0))
        with torch.inference_mode():
            few = max(args.tokens // 8, 2)
            generate(offloaded, 2)
            note("accelerate cpu_offload", tokens_per_s=few / median([generate(offloaded, few) for _ in range(2)]))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
