"""A Llama of TinyLlama-1.1B's configuration, or another, on one GPU: memory and speed beside bf16, in one run.

    python pyext/benches/tinyllama.py [--results FILE] [--tokens 64] [--repeats 3] [--shapes tinyllama] [--layers 22]
        [--sections LIST] [--bits none,4,3.1] [--trellis] [--layout quad] [--table-bits 11]
        [--fused blocks,groups,layers]

Weights are random with heavy tails (Student-t, 6 degrees of freedom), since sizes, speeds and memory do not depend on
what a model has learned. All linear layers (155) and the embedding are compressed. Speeds are tokens per second of
greedy generation at batch 1, medians of repeats that take turns with the baseline's. `vram` is torch's peak allocated
memory during generation, of a short prompt, and what torch does not allocate: compressed bytes, the ring that they are
streamed through, and memory for decoded weights; `used` is what the driver says. With
--fused all is measured for each of these: products from the compressed weights of each layer by itself (layers), of
those that read one tensor (groups), of whole blocks with what lies between (blocks). Several --bits are measured beside
one baseline.

Sections, of which those with a star run only when they are asked for:

    speeds     every coder and residency beside bf16
    flat       memory after 64 and after 1,000 tokens, of the first coder
    graphs     a decode step with a static cache as a CUDA graph, beside that of bf16
    compile *  the same by torch.compile(mode="reduce-overhead"), which takes its time to compile
    prefill *  2,048 tokens at once, in order and at random
    batch *    wcodec.bench at batch 1, 8 and 32, and where the time goes, of the first coder
    zstd       coder zstd, on the device
    auto       some layers on the device and some streamed, by a budget (--budget)
    cache      some layers kept decoded (--caches)
    offload    bf16 with accelerate's cpu_offload
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import runs
import torch
import wcodec
import wcodec.nn
from tinyllama_model import SHAPES, Steps, build, clean, generate, held, largest, logits, peak, prompt, timed

SECTIONS = ("speeds", "flat", "graphs", "compile", "prefill", "batch", "zstd", "auto", "cache", "offload")
DEFAULT = tuple(section for section in SECTIONS if section not in ("compile", "prefill", "batch"))
# Tokens of section prefill.
MANY = 2048
UNITS = {
    "tokens_per_s": "tokens/s",
    "bf16_tokens_per_s": "tokens/s",
    "speed_of_bf16": "of bf16's speed",
    "vram": "bytes",
    "of_bf16": "of bf16's memory",
    "after_64": "bytes",
    "after_1000": "bytes",
    "compress_s": "s",
    "failed": "why there are no figures",
}


class Bench:
    """The baseline, what was measured so far, and what measures."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "tokens": args.tokens}
        self.failed = False
        self.bits: float | None = args.bits[0]
        self._logits: torch.Tensor | None = None
        free, total = torch.cuda.mem_get_info()
        self.note("context", used=total - free)
        self.baseline = build(args.shapes, args.layers)
        generate(self.baseline, 8)
        self.bf16 = peak(self.baseline, args.tokens)
        times = [generate(self.baseline, args.tokens) for _ in range(3)]
        self.note("bf16", **self.bf16, tokens_per_s=args.tokens / median(times))

    @property
    def options(self) -> dict[str, Any]:
        """The scheme."""
        found = {} if self.bits is None else {"bits": self.bits, "trellis": self.args.trellis}
        more = {"table_bits": self.args.table_bits, "tile": self.args.tile, "layout": self.args.layout}
        return found | {name: value for name, value in more.items() if value is not None}

    def note(self, name: str, **values: Any) -> None:
        self.report[name] = values
        print(name, json.dumps(values), flush=True)

    def guarded(self, name: str, run: Callable[[], None]) -> None:
        """Runs a section. A failure is noted, and the other sections go on."""
        try:
            run()
        except Exception as error:
            self.failed = True
            self.note(name, failed=f"{type(error).__name__}: {error}")
        clean()

    def model(self, name: str, sections: tuple[str, ...], **options: Any) -> None:
        """A model with compressed layers, and the sections that measure it."""
        if len(self.args.bits) > 1:
            name = f"{name} {'int8' if self.bits is None else f'{self.bits:g} bits'}"
        model = build(self.args.shapes, self.args.layers)
        begin = time.perf_counter()
        report = wcodec.compress_(model, calibrate=False, progress=False, fused=False, **self.options, **options)
        seconds = time.perf_counter() - begin
        for fused in self.args.fused or [None]:
            label = name
            if fused is not None:
                label = f"{name} fused {fused}"
                # Anew, without memory for decoded weights that sections before took.
                wcodec.nn.fuse_(model, False)
                wcodec.nn.fuse_(model, groups=fused != "layers", blocks=fused == "blocks")
            if "speeds" in sections:
                self.speeds(label, model, layers=len(report.replaced), compress_s=seconds)
            if "flat" in sections:
                self.flat(label, model)
            if "prefill" in sections:
                self.prefill(label, model)
            if "batch" in sections:
                self.batch(label, model)
            # Last: where graphs were captured, layers are decoded one by one outside of them.
            for section in ("graphs", "compile"):
                if section in sections:
                    self.guarded(f"{label} {section}", lambda n=label, s=section: self.steps(f"{n} {s}", model, s))

    def speeds(self, name: str, model: Any, **more: Any) -> None:
        """Generation and its memory, beside the baseline."""
        tokens = self.args.tokens
        # The baseline goes, so that peaks are of this model alone. First: more tokens at once than are multiplied with
        # compressed weights take memory for decoded ones, which stays.
        self.baseline.to("cpu")
        try:
            memory = peak(model, tokens)
        finally:
            self.baseline.to("cuda")
        generate(model, 8)
        seen = logits(model)
        self._logits = seen if self._logits is None else self._logits
        ours, bf16 = [], []
        for _ in range(self.args.repeats):
            ours.append(generate(model, tokens))
            bf16.append(generate(self.baseline, tokens))
        self.note(
            name,
            **more,
            **memory,
            of_bf16=memory["vram"] / self.bf16["vram"],
            tokens_per_s=tokens / median(ours),
            bf16_tokens_per_s=tokens / median(bf16),
            speed_of_bf16=median(bf16) / median(ours),
            spread=[min(ours), max(ours)],
            same_logits=torch.equal(seen, self._logits),
        )

    def flat(self, name: str, model: Any) -> None:
        """Whether memory grows with the tokens that were written."""
        found = {}
        for tokens in (64, 1000):
            generate(model, tokens)
            found[f"after_{tokens}"] = held()
        self.note(f"{name} flat", **found)

    def prefill(self, name: str, model: Any) -> None:
        """The logits of a long prompt's last token, beside the baseline: of tokens whose rows of the embedding lie
        together, and of tokens that are anywhere in it."""
        vocabulary = SHAPES[self.args.shapes]["vocab_size"]
        scattered = torch.randint(vocabulary, (1, MANY), generator=torch.Generator().manual_seed(1)).cuda()
        for label, ids in (("in order", prompt(MANY) % vocabulary), ("at random", scattered)):
            ours, bf16 = [], []
            for i in range(self.args.repeats + 1):
                ours.append(timed(lambda i=ids: model(i, logits_to_keep=1)))
                bf16.append(timed(lambda i=ids: self.baseline(i, logits_to_keep=1)))
                if i == 0:
                    ours, bf16 = [], []
            ratio = median(bf16) / median(ours)
            self.note(f"{name} prefill {label}", tokens=MANY, speed_of_bf16=ratio, spread=[min(ours), max(ours)])

    def batch(self, name: str, model: Any) -> None:
        """The package's own benchmark."""
        found = wcodec.bench(model, self.baseline, batch=(1, 8, 32), new_tokens=32, repeats=3, profile=True).to_dict()
        self.note(f"{name} batch", rows=found["rows"], splits=found["splits"])

    def steps(self, name: str, model: Any, how: str) -> None:
        """Decode steps without the CPU's part of the work, beside those of the baseline."""
        torch._dynamo.reset()
        make = Steps.captured if how == "graphs" else Steps.compiled
        tokens = self.args.tokens
        ours, bf16 = Steps(model, tokens), Steps(self.baseline, tokens)
        # Before anything is captured, as a reference. Behind the first token, texts part where logits are nearly equal.
        wanted = ours.outputs(ours.eager())
        firsts = {steps: steps.first(steps.eager()) for steps in (ours, bf16)}
        step: dict[Steps, Callable[[], torch.Tensor]] = {}
        made = {what: timed(lambda s=s: step.update({s: make(s)})) for what, s in (("ours", ours), ("bf16", bf16))}
        times: dict[Steps, list[float]] = {ours: [], bf16: []}
        for _ in range(self.args.repeats):
            for steps, found in times.items():
                found.append(steps.seconds(step[steps]))
        seen = ours.outputs(step[ours])
        self.note(
            name,
            tokens_per_s=tokens / median(times[ours]),
            bf16_tokens_per_s=tokens / median(times[bf16]),
            speed_of_bf16=median(times[bf16]) / median(times[ours]),
            spread=[min(times[ours]), max(times[ours])],
            prepare_s=made,
            same_logits=torch.equal(seen, wanted),
            largest_difference=largest(seen, wanted),
            first_token={what: largest(s.first(step[s]), firsts[s]) for what, s in (("ours", ours), ("bf16", bf16))},
        )

    def offload(self) -> None:
        """Measures offloading without compression; the baseline is of no use afterwards."""
        try:
            from accelerate import cpu_offload
        except ImportError:
            self.note("accelerate cpu_offload", failed="accelerate is not installed")
            return
        offloaded = cpu_offload(self.baseline, execution_device=torch.device("cuda", 0))
        few = max(self.args.tokens // 8, 2)
        generate(offloaded, 2)
        self.note("accelerate cpu_offload", tokens_per_s=few / median([generate(offloaded, few) for _ in range(2)]))

    def run(self) -> None:
        """All sections that were asked for."""
        args = self.args
        first = True
        for coder, self.bits in itertools.product(args.coders, args.bits):
            for residency in args.only:
                on_device = residency == "device"
                kinds = {"speeds": True, "flat": first, "batch": first, "prefill": True}
                kinds |= {"graphs": on_device, "compile": on_device}
                wanted = tuple(s for s, fits in kinds.items() if fits and s in args.sections)
                if wanted:
                    name = f"{coder} {residency}"
                    options = {"coder": coder, "residency": residency}
                    self.guarded(name, lambda n=name, w=wanted, o=options: self.model(n, w, **o))
            first = False
        self.bits = args.bits[0]
        others: list[tuple[str, str, dict[str, Any]]] = [
            ("zstd", "zstd device", {"coder": "zstd"}),
            ("auto", f"rans auto {args.budget}", {"residency": "auto", "vram_budget": args.budget}),
            *(("cache", f"rans device cache {size}", {"cache": size}) for size in args.caches),
        ]
        for section, name, options in others:
            if section in args.sections:
                self.guarded(name, lambda n=name, o=options: self.model(n, ("speeds",), **o))
        if "offload" in args.sections:
            self.guarded("accelerate cpu_offload", self.offload)


def rates(value: str) -> list[float | None]:
    return [None if number == "none" else float(number) for number in value.split(",")]


def listed(*choices: str) -> Callable[[str], list[str]]:
    """A parser of names, separated by commas; any names, if there are no choices."""

    def parse(value: str) -> list[str]:
        found = value.split(",")
        for name in found:
            if choices and name not in choices:
                raise argparse.ArgumentTypeError(f"there is no {name!r} (choose from {', '.join(choices)})")
        return found

    return parse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_argument(parser)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shapes", choices=SHAPES, default="tinyllama", help="of which model")
    parser.add_argument("--layers", type=int, help="so many, and not all")
    parser.add_argument("--coders", type=listed(), default="rans,huffman")
    parser.add_argument("--only", type=listed("device", "host"), default="device,host", help="residencies")
    parser.add_argument("--sections", type=listed(*SECTIONS), default=",".join(DEFAULT), help=", ".join(SECTIONS))
    parser.add_argument("--bits", type=rates, default="none", help="bits per weight of scheme rate, or none for int8")
    parser.add_argument("--trellis", action="store_true", help="with a trellis")
    parser.add_argument("--fused", type=listed("blocks", "groups", "layers"), default=[], help="what takes a launch")
    parser.add_argument("--table-bits", type=int, help="log2 of the slots of coder huffman's tables")
    parser.add_argument("--layout", default="pair", help="pair or quad")
    parser.add_argument("--tile", type=int, help="columns of a tile; by the matrix's shape where absent")
    parser.add_argument("--budget", default="600MB", help="of the GPU's memory, for section auto")
    parser.add_argument("--caches", type=listed(), default="256MB,1GB", help="sizes, for section cache")
    args = parser.parse_args()
    # As in transformers' generate.
    with torch.no_grad():
        bench = Bench(args)
        bench.run()
    subject = f"A Llama of {args.shapes}'s shapes, random weights, layout {args.layout}"
    made = [runs.row(name, values, UNITS) for name, values in bench.report.items() if isinstance(values, dict)]
    runs.write(args.results, subject, UNITS, made)
    return int(bench.failed)


if __name__ == "__main__":
    sys.exit(main())
