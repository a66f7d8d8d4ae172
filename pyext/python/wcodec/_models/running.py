"""A model's device, logits and tokenizer, and text as token ids: all that measuring needs of it."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import progress as _progress
from .._core.errors import FormatError, InputError, UnsupportedError
from .._core.foreign import by_transformers
from .._core.paths import regular
from .._gpu import torch as _torch

if TYPE_CHECKING:
    import torch

StepCallback = Callable[[int, int], object]
"""Called as ``callback(done, total)`` with steps done and steps in all."""

# A path is short and has one line. Longer text is never looked up in the file system.
_LONGEST_PATH = 1024
# The largest fraction of a guessed total that is reported as done before the end.
_NEARLY = 0.95


def require_transformers() -> Any:
    """transformers, or an error that says how to get it."""
    _torch.require()
    try:
        import transformers
    except ImportError:
        raise UnsupportedError("transformers is not installed (pip install transformers)", code="U202") from None
    return transformers


def device_of(model: Any) -> torch.device:
    """The device on which a model takes its input: that of its first parameter or buffer that has one."""
    torch = _torch.require()
    for tensors in (model.parameters, model.buffers):
        for tensor in tensors():
            if tensor.device.type != "meta":
                return tensor.device
    device = getattr(model, "device", None)
    return torch.device("cpu" if device is None else device)


def dtype_of(model: Any) -> torch.dtype:
    """The dtype that a model computes in: its own ``dtype``, otherwise that of its first float parameter."""
    torch = _torch.require()
    declared = getattr(model, "dtype", None)
    if isinstance(declared, torch.dtype) and declared.is_floating_point:
        return declared
    for tensor in model.parameters():
        if tensor.is_floating_point():
            return tensor.dtype
    return torch.get_default_dtype()


def synchronize(device: torch.device) -> None:
    """Waits for a GPU; nothing to wait for on the CPU."""
    if device.type == "cuda":
        _torch.require().cuda.synchronize(device)


class _PlainAttention:
    """Switches cuDNN's attention off while any thread asks for that: the switch is one of the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._restores = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Attention without cuDNN, which plans anew for each number of keys.

        That takes 6 of the 8 seconds in which SmolLM2-135M writes its first 64 tokens in a process on an H200. Where no
        other attention is enabled, nothing changes.
        """
        cuda = _torch.require().backends.cuda
        with self._lock:
            if self._inside == 0:
                others = (cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled)
                # Old versions of torch have no such switch, or have it off.
                enabled = getattr(cuda, "cudnn_sdp_enabled", lambda: False)()
                self._restores = enabled and any(other() for other in others)
                if self._restores:
                    cuda.enable_cudnn_sdp(False)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0 and self._restores:
                    cuda.enable_cudnn_sdp(True)


plain_attention = _PlainAttention()


def check_model(model: Any, what: str = "model") -> None:
    """Refuses what is no causal language model of torch."""
    torch = _torch.require()
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"{what} must be a torch.nn.Module, not {type(model).__name__} (load it first)", code="I503")


def logits_of(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """The logits ``[batch, tokens, vocabulary]`` of a forward pass, in the model's dtype."""
    output = model(input_ids=ids, **options)
    logits = output if _torch.is_tensor(output) else getattr(output, "logits", None)
    if logits is None:
        raise InputError(
            f"{type(model).__name__} returns no logits (pass a causal language model, ...ForCausalLM)", code="I503"
        )
    tensor: torch.Tensor = logits
    return tensor


def cache_name(model: Any) -> str:
    """The model's name for its cache, as an argument and in its output: ``cache`` from transformers 5.24 on,
    ``past_key_values`` before and in code of others."""
    base = getattr(model, "get_base_model", None)  # of PEFT, whose own forward takes anything
    forward = (base() if callable(base) else model).forward
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


@contextmanager
def evaluating(*models: Any) -> Iterator[None]:
    """Models in evaluation mode, without gradients; what was in training mode goes back to it."""
    torch = _torch.require()
    training = [module for model in models for module in model.modules() if module.training]
    for model in models:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def tokenizer_for(model: Any, tokenizer: Any = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer given, or the one that belongs to the model; one that is code is refused unless it is trusted."""
    if tokenizer is not None and not isinstance(tokenizer, (str, os.PathLike)):
        return tokenizer
    model_tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None and model_tokenizer is not None:
        return model_tokenizer
    config = getattr(model, "config", None)
    place = tokenizer or getattr(model, "name_or_path", None) or getattr(config, "_name_or_path", None)
    if not place:
        raise InputError(
            "this model does not say where its tokenizer is (pass tokenizer=..., or token ids)", code="I603"
        )
    transformers = require_transformers()
    try:
        with by_transformers(os.fspath(place), "has no tokenizer for it"):
            return transformers.AutoTokenizer.from_pretrained(os.fspath(place), trust_remote_code=trust_remote_code)
    except FormatError as error:
        raise InputError(
            f"no tokenizer was found at {os.fspath(place)!r} (pass tokenizer=..., or token ids): {error}", code="I603"
        ) from None


def _file_of(text: Any) -> Path | None:
    """The file that is meant, if a path is."""
    if isinstance(text, os.PathLike):
        return regular(Path(text))
    if isinstance(text, str) and 0 < len(text) < _LONGEST_PATH and "\n" not in text and "\0" not in text:
        try:
            # The name of a pipe or of a device is no text to measure on, either.
            return regular(Path(text)) if os.path.exists(text) and not os.path.isdir(text) else None
        except OSError:
            return None
    return None


def token_ids(text: Any, model: Any, tokenizer: Any = None) -> torch.Tensor:
    """Token ids ``int64 [tokens]`` on the CPU, of text, of a file's text, or as they are."""
    torch = _torch.require()
    path = _file_of(text)
    if path is not None:
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{path}: not UTF-8 text (convert it, or pass token ids)", code="I604") from None
    if isinstance(text, str):
        # One call over the whole text, with the special tokens that the tokenizer itself would add.
        raw_ids = tokenizer_for(model, tokenizer)(text, verbose=False)["input_ids"]
    else:
        raw_ids = text
    try:
        ids = torch.as_tensor(raw_ids)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"text must be a str, a path or token ids, not {type(text).__name__} (pass one text at a time)", code="I604"
        ) from None
    if ids.numel() == 0:
        raise InputError(f"{path or 'text'}: the text has no tokens (pass a text of some hundred words)", code="I606")
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(
            f"token ids must be integers in one dimension, not {ids.dtype} of shape {list(ids.shape)} "
            "(one text at a time)",
            code="I604",
        )
    return ids.to("cpu", torch.int64)


def check_ids(ids: torch.Tensor, model: Any, what: str = "model") -> None:
    """Refuses ids that are not in the model's vocabulary, which a GPU would answer with an assertion."""
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if size is None:
        # Configurations of several parts have it in one of them.
        size = getattr(getattr(model, "get_input_embeddings", lambda: None)(), "num_embeddings", None)
    if ids.numel() and (int(ids.min()) < 0 or (size is not None and int(ids.max()) >= size)):
        raise InputError(
            f"token ids from {int(ids.min())} to {int(ids.max())} do not fit the {what}'s vocabulary of {size} "
            "(use the model's own tokenizer)",
            code="I605",
        )


def whole_numbers(what: str, values: int | Sequence[int]) -> tuple[int, ...]:
    """One or several whole numbers above 0."""
    numbers = (values,) if isinstance(values, int) else tuple(values)
    if not numbers or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in numbers):
        raise InputError(f"{what} must be whole numbers of at least 1, not {values!r}", code="I308")
    return numbers


@contextmanager
def steps(progress: bool | StepCallback, title: str, unit: str) -> Iterator[StepCallback]:
    """A callback that is told of the steps done, for a user's ``progress`` argument."""
    if callable(progress):
        yield progress
        return
    tqdm = _progress._tqdm() if progress else None
    if tqdm is None:
        yield lambda done, total: None
        return
    bar = tqdm(desc=title, unit=unit, delay=_progress._DELAY_SECONDS, leave=False)

    def update(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield update
    finally:
        bar.close()


class WindowCount:
    """Windows done, which it is called with, and in all.

    Before a search nobody knows how many it takes. Its total is then a guess that stays ahead of what is done, so that
    a bar does not stand at its end while work goes on.

    :param guess: whether the total is one.
    """

    def __init__(self, tell: StepCallback, total: int, *, guess: bool) -> None:
        self._tell, self._done, self.total, self._guess = tell, 0, total, guess

    def __call__(self, windows: int) -> None:
        self._done += windows
        if self._guess and self._done >= self.total * _NEARLY:
            self.total = max(self.total, int(self._done / _NEARLY) + 1)
        self._tell(self._done, max(self._done, self.total))
