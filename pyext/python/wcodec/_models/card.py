"""The README.md of a compressed model's folder: a model card of the Hub that says what the model is of, what it takes,
what was measured of it, and how to run it.

The card of the original follows below ours, and what it says of licence and language is in the front matter. A card has
a mark: a README.md without it is somebody's own, and is left alone.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._core import format as fmt
from .._core import metadata
from .._core.foreign import read_json
from .._file.container import Container

FILE = "README.md"
MARK = "<!-- Written by wcodec, which writes it anew. Without this line the file is yours, and stays as it is. -->"
_ORIGINAL = "## The original model's card"
_CALIBRATED = "\n| calibrated | yes"
# Keys of the original's front matter that are not so of the compressed model.
_NOT_OURS = ("base_model", "base_model_relation", "library_name", "model-index", "new_version", "inference")
# Names of repositories, as the Hub allows them.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Auto classes by how classes of models end, what the Hub calls their task, and whether they write text.
_KINDS = (
    ("ForCausalLM", "AutoModelForCausalLM", "text-generation", True),
    ("LMHeadModel", "AutoModelForCausalLM", "text-generation", True),
    ("ForSequenceClassification", "AutoModelForSequenceClassification", "text-classification", False),
    ("ForTokenClassification", "AutoModelForTokenClassification", "token-classification", False),
    ("ForQuestionAnswering", "AutoModelForQuestionAnswering", "question-answering", False),
    ("ForMaskedLM", "AutoModelForMaskedLM", "fill-mask", False),
)


@dataclass(frozen=True)
class Original:
    """The model that was compressed, as far as it is known."""

    name: str | None = None
    """Its repository on the Hub."""
    front: dict[str, Any] = field(default_factory=dict)
    """The front matter of its card."""
    text: str = ""
    """Its card without that."""
    calibrated: bool = False
    """Whether a card of ours says that the compressed model was calibrated."""


def is_own(text: str) -> bool:
    """Whether a README.md is a card that wcodec wrote."""
    return MARK in text


def read(folder: Path) -> str | None:
    """The README.md of a folder; ``None`` if there is none that can be read."""
    try:
        return (folder / FILE).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def original_of(text: str | None, name: str | None = None) -> Original:
    """The original, as a README.md describes it, which may be a card of ours with the original's in it.

    :param name: the repository, where that is known.
    """
    front, body = _cut(text or "")
    if not is_own(body):
        return Original(name, front, body.strip())
    _, _, below = body.partition(f"\n{_ORIGINAL}\n")
    base = front.get("base_model") if front.get("base_model_relation") == "quantized" else None
    tags = [tag for tag in _tags(front) if tag != "wcodec"]
    front = {key: value for key, value in front.items() if key != "tags"} | ({"tags": tags} if tags else {})
    written_part = body.partition(f"\n{_ORIGINAL}\n")[0]
    return Original(
        name or (base if isinstance(base, str) else None), front, below.strip(), _CALIBRATED in written_part
    )


def repository_of(folder: Path) -> str | None:
    """The repository that a folder of the Hub's cache is of."""
    from .hub import cached_repository

    return cached_repository(folder.absolute())


def card(folder: Path, original: Original, title: str, place: str, calibrated: bool = False) -> str:
    """The card of a compressed model.

    :param folder: the folder that has its container and its config.
    :param title: the model's name.
    :param place: the folder or the repository, as those will name it who load it.
    :param calibrated: whether bits were chosen by what the model does.
    """
    config = read_json(folder / "config.json")
    auto, task, writes = _kind_of(config)
    name = original.name or title
    with Container.open(folder / _file_of(config)) as container:
        bits, rows = _facts(container, original, calibrated or original.calibrated)
    has_template = any((folder / file).is_file() for file in ("chat_template.jinja", "chat_template.json"))
    front = _front(original, task)
    parts = [
        f"---\n{_dumped(front)}---",
        MARK,
        f"# {name.rpartition('/')[2]}, compressed by wcodec{bits}",
        f"The weights of {_link(original.name) or 'this model'}, entropy-coded. They stay compressed in memory, on "
        "GPUs as on CPUs, and are decoded as the model runs.",
        "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)]),
        "## Run it",
        _commands(place, has_template, writes),
        f"```python\n{_code(place, auto, writes)}```",
        "Programs that do not know the format stop with an error: all weights are in `model.wcodec`.",
    ]
    if original.text:
        parts += [_ORIGINAL, original.text]
    return "\n\n".join(parts) + "\n"


def _file_of(config: Mapping[str, Any]) -> str:
    record = config.get("quantization_config")
    return Path(str((record or {}).get("file") or "model.wcodec")).name


def _facts(container: Container, original: Original, calibrated: bool) -> tuple[str, list[tuple[str, str]]]:
    """Bits per weight for the title, and rows of a table."""
    coded = [entry for entry in container.stored if entry.scheme not in ("raw", "opaque")]
    stored, elements = sum(e.stored_bytes for e in coded), sum(_elements(e.shape) for e in coded)
    ways = Counter[str]()
    for entry in coded:
        ways[f"`{entry.scheme}`, coder `{entry.coder}`"] += _elements(entry.shape)
    before, after = container.original_bytes, container.stored_bytes
    bits = fmt.bits(stored, elements)
    rows = [("base model", _link(original.name) or "")] if original.name else []
    if bits is not None:
        rows.append(("bits per weight", f"{bits:.2f}, everything counted that compressed layers take"))
    rows.append(("scheme", "; ".join(scheme for scheme, _ in ways.most_common(3))))
    times = f", {before / after:.2f} times smaller" if after else ""
    rows.append(("size", f"{fmt.size(after)} instead of {fmt.size(before)}{times}"))
    if calibrated:
        rows.append(("calibrated", "yes: bits are where errors matter most, by what the model does with a text"))
    rows += metadata.lines(container.metadata)
    # A line break would end the table.
    rows = [(key, " ".join(value.replace("|", "\\|").split())) for key, value in rows]
    return ("" if bits is None else f", {bits:.2f} bits per weight"), rows


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _kind_of(config: Mapping[str, Any]) -> tuple[str, str | None, bool]:
    names = config.get("architectures") or [""]
    for ending, auto, task, writes in _KINDS:
        if str(names[0]).endswith(ending):
            return auto, task, writes
    return "AutoModel", None, False


def _commands(place: str, has_template: bool, writes: bool) -> str:
    lines = ['pip install "wcodec[transformers]"']
    if writes and has_template:
        lines.append(f"wcodec chat {place}")
    elif writes:
        lines.append(f'wcodec generate {place} --prompt "Once upon a time"')
    return "```sh\n" + "\n".join(lines) + "\n```"


def _code(place: str, auto: str, writes: bool) -> str:
    lines = [
        f"from transformers import {auto}, AutoTokenizer",
        "",
        f'model = {auto}.from_pretrained("{place}", device_map="auto")',
    ]
    if writes:
        lines += [
            f'tokenizer = AutoTokenizer.from_pretrained("{place}")',
            'tokens = tokenizer("Once upon a time", return_tensors="pt").to(model.device)',
            "print(tokenizer.decode(model.generate(**tokens, max_new_tokens=40)[0]))",
        ]
    else:
        lines[0] = f"from transformers import {auto}"
    return "\n".join(lines) + "\n"


def _link(name: str | None) -> str | None:
    return None if name is None else f"[{name}](https://huggingface.co/{name})"


# Front matter


def _front(original: Original, task: str | None) -> dict[str, Any]:
    original_fields = {key: value for key, value in original.front.items() if key not in _NOT_OURS}
    front: dict[str, Any] = {}
    if original.name is not None and _REPOSITORY.fullmatch(original.name):
        front |= {"base_model": original.name, "base_model_relation": "quantized"}
    elif base := original.front.get("base_model"):
        # The original has no known name; its own base is known.
        front["base_model"] = base
    front["library_name"] = "transformers"
    if task is not None and "pipeline_tag" not in original_fields:
        front["pipeline_tag"] = task
    tags = list(dict.fromkeys([*_tags(original_fields), "wcodec"]))
    return {**front, **original_fields, "tags": tags}


def _tags(front: Mapping[str, Any]) -> list[str]:
    tags = front.get("tags")
    return [str(tag) for tag in tags] if isinstance(tags, list) else [tags] if isinstance(tags, str) else []


def _cut(text: str) -> tuple[dict[str, Any], str]:
    """The front matter of a card, as far as it can be read, and the rest."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    match = re.match(r"---[ \t]*\n(.*?)\n?---[ \t]*(?:\n|\Z)", text, re.DOTALL)
    if match is None:
        return {}, text
    return _loaded(match[1]), text[match.end() :]


def _loaded(text: str) -> dict[str, Any]:
    yaml = _yaml()
    if yaml is None:
        return {}
    try:
        front = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return {str(key): value for key, value in front.items()} if isinstance(front, dict) else {}


def _dumped(front: Mapping[str, Any]) -> str:
    yaml = _yaml()
    if yaml is not None:
        return str(yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True))
    # JSON is YAML.
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items())


def _yaml() -> Any:
    """PyYAML, which comes with transformers."""
    try:
        return importlib.import_module("yaml")
    except ImportError:
        return None


__all__ = ["FILE", "Original", "card", "is_own", "original_of", "read", "repository_of"]
