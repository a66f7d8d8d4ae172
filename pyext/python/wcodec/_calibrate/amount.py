"""Defaults of calibration: how much text it looks at, and on which device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._core.errors import DeviceError, InputError
from .._gpu import devices
from .._models import running
from . import text

# Tokens on a GPU, and of small models everywhere: beyond it, statistics hardly change.
MOST_TOKENS = 1 << 15
# Fewer say too little of what inputs have in common.
FEWEST_TOKENS = 1 << 11
# Weights times tokens that a CPU of two cores has done in a minute or two.
_CPU_WORK = 5.5e11
# Sizes of inputs are known after far fewer tokens: of SmolLM2-135M, 64 texts of 32 tokens are
# as good as 8 of 512, and 64 of 16 lose 10 % more. On a CPU of two cores that takes some seconds.
SIZES_TOKENS = 1 << 12
_FEWEST_SIZES_TOKENS = 1 << 9
_CPU_SIZES_WORK = 5.6e11
_SHORTEST_OF_SIZES = 16
# Tokens of a piece of the texts that come with the package, for sizes: short ones are of more kinds. With 32 of 128,
# SmolLM2-135M has 0.97 of the KL that it has with 8 of 256, in the mean of 5, 4, 3.5 and 3 bits.
_LENGTH_OF_SIZES = 128
# Windows at least, where their length is free: the beginnings of texts are much alike.
_WINDOWS = 16
_MOST_WINDOWS = 64
_SHORTEST = 64
# Tokens of a text that the model writes for second moments. Many short texts say more than a few long ones: with 512
# of 64 tokens, SmolLM2-135M at 3.0 bits has 0.95 (with a trellis) and 0.65 of the KL that it has with 64 of 512.
_WRITTEN_LENGTH = 64
# Every fourth token is one that the model writes: texts of many kinds say more of other texts, and what it writes of
# how it answers.
_WRITTEN_PART = 4
# Memory of a GPU that a model takes while it is measured: so many times its weights, and some for activations.
_TIMES, _BESIDES = 1.2, 1 << 30


def default_tokens(weights: int, place: torch.device) -> int:
    """Tokens that are looked at if nothing is said: 32,768, and on a CPU fewer for models that would take long.

    >>> cpu, gpu = torch.device("cpu"), torch.device("cuda")
    >>> default_tokens(3_000_000, cpu), default_tokens(134_515_008, cpu), default_tokens(8 * 10**9, gpu)
    (32768, 4088, 32768)
    """
    if place.type != "cpu":
        return MOST_TOKENS
    return int(min(max(_CPU_WORK / max(weights, 1), FEWEST_TOKENS), MOST_TOKENS))


def tokens_of_sizes(weights: int, place: torch.device) -> int:
    """Tokens that show how large inputs are, if nothing is said: 4,096, and on a CPU fewer for large models.

    >>> cpu, gpu = torch.device("cpu"), torch.device("cuda")
    >>> tokens_of_sizes(134_515_008, cpu), tokens_of_sizes(8 * 10**9, cpu), tokens_of_sizes(8 * 10**9, gpu)
    (4096, 512, 4096)
    """
    if place.type != "cpu":
        return SIZES_TOKENS
    return int(min(max(_CPU_SIZES_WORK / max(weights, 1), _FEWEST_SIZES_TOKENS), SIZES_TOKENS))


@dataclass(frozen=True)
class Pieces:
    """Pieces of text, and tokens of each."""

    count: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens of all of them."""
        return self.count * self.length


def mixed_pieces(
    model: Any,
    windows: int | None,
    length: int | None,
    tokens: int | None,
    place: torch.device,
    *,
    few: bool,
) -> tuple[Pieces, Pieces]:
    """Pieces of the texts that come with the package, and of what the model writes: a quarter of the tokens. Where only
    the sizes of inputs are wanted, the model writes nothing, which would take most of the time.

    :param few: whether only the sizes of inputs are wanted.
    """
    if few:
        wanted = pieces(model, windows, length, tokens, place, few=True)
        if length is None:
            longer = min(_LENGTH_OF_SIZES, text.length_for(model, None), wanted.tokens)
            wanted = Pieces(wanted.count if windows is not None else max(1, round(wanted.tokens / longer)), longer)
        return wanted, Pieces(0, 0)
    if windows is not None:
        both = pieces(model, windows, length, tokens, place)
        own = both.count // _WRITTEN_PART
        return Pieces(both.count - own, both.length), Pieces(own, both.length)
    count = _wanted(model, tokens, place, few=False)
    of_model = max(2, count // _WRITTEN_PART)
    read = pieces(model, None, length, max(2, count - of_model), place)
    return read, pieces(model, None, length, of_model, place, written=True)


def pieces(
    model: Any,
    windows: int | None,
    length: int | None,
    tokens: int | None,
    place: torch.device,
    *,
    few: bool = False,
    written: bool = False,
) -> Pieces:
    """Pieces of a text: as asked for, or so many that they are as many tokens as is usual.

    :param few: whether only the sizes of inputs are wanted.
    :param written: whether the model writes the text.
    """
    if windows is not None and tokens is not None:
        raise InputError(
            "windows and tokens exclude each other: both say how much text there is (leave one out)", code="I307"
        )
    if windows is not None:
        return Pieces(running.whole_numbers("windows", windows)[0], text.length_for(model, length))
    wanted = _wanted(model, tokens, place, few=few)
    most = text.length_for(model, length)
    if length is None and few:
        # The model writes token by token: many short texts take less time than a few long ones.
        most = max(2, min(most, wanted, max(_SHORTEST_OF_SIZES, wanted // _MOST_WINDOWS)))
    elif length is None:
        shortest = _WRITTEN_LENGTH if written else max(_SHORTEST, wanted // _WINDOWS)
        most = max(2, min(most, wanted, shortest))
    count = max(1, round(wanted / most))
    return Pieces(count if tokens is not None or (written and length is None) else min(count, _MOST_WINDOWS), most)


def _wanted(model: Any, tokens: int | None, place: torch.device, *, few: bool) -> int:
    """Tokens of all pieces together: as asked for, or as usual."""
    if tokens is None:
        weights = sum(p.numel() for p in model.parameters())
        return tokens_of_sizes(weights, place) if few else default_tokens(weights, place)
    (wanted,) = running.whole_numbers("tokens", tokens)
    if wanted < 2:
        raise InputError(
            "tokens must be at least 2: a model predicts one from those before it (use some 4,000)", code="I308"
        )
    return wanted


def chosen_place(device: torch.device | str | None, needed: int = 0) -> torch.device:
    """The device of a calibration: as asked for, or a GPU where there is one that has room, and otherwise the CPU.

    :param device: ``None`` and ``"auto"`` leave the choice.
    :param needed: bytes of the weights that are to be there.
    """
    if device is not None and str(device) != "auto":
        return devices.place(device)
    try:
        gpu = devices.place("cuda")
    except (DeviceError, InputError):
        return torch.device("cpu")
    free = torch.cuda.mem_get_info(gpu)[0]
    return gpu if free >= _TIMES * needed + _BESIDES else torch.device("cpu")


def bytes_of(folder: Path) -> int:
    """Bytes of the weights of a folder, or of a file."""
    try:
        files = folder.glob("*.safetensors") if folder.is_dir() else [folder]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
