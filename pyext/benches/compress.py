"""Speed of compressing a model on a GPU: ``compress_`` of a Llama of some size, whose weights are made on the GPU.

    python pyext/benches/compress.py [--model 8b|1b|tiny] [--coder rans] [--residency device] [--repeats 1] [--parts]

Shapes are those of Llama 3 8B, of TinyLlama 1.1B, or of a model for trying this out; weights are normal with another
spread for each layer, in bf16. A line of JSON for each repeat: seconds, weights a second, and the most memory of the
GPU and of the host that was taken at any time, beside what was taken before. With ``--parts`` further lines say what
copying from the GPU, encoding and placing take by themselves. ``--device cpu`` measures the same of a model there.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import Any

import runs
import torch
import wcodec
from transformers import AutoModelForCausalLM, LlamaConfig
from wcodec._file import encode

# Vocabulary, hidden size, inner size, layers, heads, heads of keys and values.
MODELS = {
    "8b": (128_256, 4096, 14_336, 32, 32, 8),
    "1b": (32_000, 2048, 5632, 22, 32, 4),
    "tiny": (2_000, 256, 640, 2, 4, 2),
}

UNITS = {
    "seconds": "s",
    "gweights_per_s": "G weights/s",
    "ratio": "bytes before over bytes after",
    "peak_gpu_bytes": "bytes",
    "peak_host_bytes": "bytes",
    "model_bytes": "bytes",
}
ROWS: list[dict[str, Any]] = []


def build(name: str, device: str) -> Any:
    """The model, with random weights."""
    vocabulary, hidden, inner, layers, heads, groups = MODELS[name]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = model.to_empty(device=device).eval().requires_grad_(False)
    torch.manual_seed(1)
    for i, parameter in enumerate(model.parameters()):
        parameter.normal_(0, 0.02 + 0.001 * (i % 17)) if parameter.dim() == 2 else parameter.fill_(1)
    return model


def status(key: str) -> int:
    """Bytes of this process by the system's list, where there is one."""
    try:
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
    except (OSError, StopIteration):
        return 0


class Peak:
    """The most memory that was taken while it runs, beyond what was at its beginning. Memory that the driver gives to
    others than torch is asked for again and again, since nobody keeps its peak."""

    def __init__(self, device: str) -> None:
        self._gpu = device == "cuda"
        self._host, self._device = status("VmRSS:"), self._used()
        self.host = self.device = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _used(self) -> int:
        if not self._gpu:
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.host = max(self.host, status("VmRSS:") - self._host)
            self.device = max(self.device, self._used() - self._device)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def say(name: str, **values: Any) -> None:
    """Prints figures, and keeps them for the file of the run."""
    print(json.dumps(values), flush=True)
    ROWS.append(runs.row(name, values, UNITS))


def measure(args: argparse.Namespace, repeat: int) -> None:
    """One call of ``compress_``, from a model that is there to one whose compressed weights are there."""
    model = build(args.model, args.device)
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    synchronize(args.device)
    with Peak(args.device) as peak:
        begin = time.perf_counter()
        report = wcodec.compress_(model, coder=args.coder, residency=args.residency, progress=False)
        synchronize(args.device)
        seconds = time.perf_counter() - begin
    say(
        f"repeat {repeat}",
        model=args.model,
        repeat=repeat,
        seconds=round(seconds, 3),
        weights=weights,
        gweights_per_s=round(weights / seconds / 1e9, 3),
        ratio=round(report.bytes_before / report.bytes_after, 3),
        peak_gpu_bytes=peak.device,
        peak_host_bytes=peak.host,
        model_bytes=report.bytes_before,
    )


def measure_parts(args: argparse.Namespace) -> None:
    """Measures each step by itself: copying from the GPU, encoding and placing."""
    model = build(args.model, args.device)
    tensors = {name: p.detach() for name, p in model.named_parameters() if p.dim() == 2}
    synchronize(args.device)

    def timed(part: str, given: dict[str, Any], run: Any) -> Any:
        weights = sum(t.numel() for t in given.values())
        begin = time.perf_counter()
        found = run()
        synchronize(args.device)
        seconds = time.perf_counter() - begin
        speed = round(weights / seconds / 1e9, 3)
        say(part, part=part, weights=weights, seconds=round(seconds, 3), gweights_per_s=speed)
        return found

    some = dict(list(tensors.items())[:40])
    raw = {"scheme": "raw", "coder": "raw"}
    timed("copying, to what is stored as it is", some, lambda: encode.compress_in_memory(some, **raw))
    container = timed("encoding", tensors, lambda: encode.compress_in_memory(tensors, coder=args.coder))
    if args.device == "cuda":
        timed("placing", tensors, lambda: wcodec.GpuDecoder(container))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="8b")
    parser.add_argument("--coder", default="rans")
    parser.add_argument("--residency", default="device")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--parts", action="store_true")
    runs.add_argument(parser)
    args = parser.parse_args()
    for repeat in range(args.repeats):
        measure(args, repeat)
        if args.device == "cuda":
            torch.cuda.empty_cache()
    if args.parts:
        measure_parts(args)
    subject = f"compress_ of a model of {args.model}, coder {args.coder}, residency {args.residency}"
    runs.write(args.results, subject, UNITS, ROWS, on_cpu=args.device == "cpu")


if __name__ == "__main__":
    main()
