"""Key/value caches of a chosen dtype: using them, and measuring what they change.

The effect of such a cache depends on where the rounding happens:

* A model that computes in float32 makes float32 keys and values. A half-precision cache rounds them, and that rounding
  is what a float32 cache avoids: the cache's dtype alone decides.
* A model that computes in bfloat16 or float16 has rounded keys and values before any cache sees them. Keeping those in
  float32 is exact and returns the same numbers: storage alone changes *nothing*, and takes twice the memory. What can
  change is the attention over them. With ``attention="widest"`` (the default) it runs in the wider of both dtypes:
  scores, softmax and the weighted sum in float32, its output rounded once. That takes the attention kernels of
  float32, which are slower.
* A float16 cache holds bfloat16 values exactly as long as they are within float16's range (normal from 6e-5 to 65,504).

Measured on ``tests/data/doc-llama-3m`` and ``heldout.txt`` on a CPU; KL divergences in nats per token:

* Computing in float32, 256 greedy tokens after 64 (three places, :func:`compare_kv_cache`): against a float32 cache a
  bfloat16 cache has KL 1.4e-5 to 2.4e-5, a float16 cache 1.8e-7 to 3.3e-7, and all tokens are the same.
* Computing in bfloat16, the same: by storage alone all caches give identical logits. Attention in float32 differs from
  attention in bfloat16 by KL 2.1e-4 to 3.2e-4; at one of three places the texts part after 108 tokens.
* But it does not come closer to the exact model: KL from the float32 model is 5.78e-4 with attention in bfloat16 and
  5.81e-4 in float32 (20 windows of 512 tokens); for the int8 model 2.5e-3 both ways, and no larger at the end of a
  window than at its beginning.
* The int8 model on an H200, 256 tokens after 200, computing in float16, bfloat16 and float32: all tokens are the same
  for every cache; mean KL at most 1.5e-5 (float16), 2.0e-4 (bfloat16, attention in float32) and 1.0e-5 (float32).

So no error was seen to build up through a half-precision cache, and for models that compute in bfloat16 a float32 cache
changes results without improving them, at twice the memory. One small model is no proof for large ones: measure yours.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._core.errors import InputError, UnsupportedError
from .._core.keywords import keywords, names_of
from .._core.options import DTYPES, choice
from .._gpu import torch as _torch
from .._models import running
from . import loading
from .clock import clocked
from .quality import kl_divergence
from .reports import Generation, KvCacheReport, KvCacheResult

if TYPE_CHECKING:
    import torch

ATTENTIONS = ("widest", "model")


def cache_dtype(dtype: Any) -> torch.dtype:
    """torch's dtype for ``"float32"``, ``torch.float32`` and so on."""
    torch = _torch.require()
    return getattr(torch, choice("kv_cache_dtype", str(dtype).removeprefix("torch."), DTYPES))


def _typed_cache() -> Any:
    running.require_transformers()
    try:
        from . import typed_cache as module
    except ImportError as error:
        raise UnsupportedError(
            f"this transformers has not the cache and attention interfaces that are needed: {error} (upgrade it)",
            code="U204",
        ) from None
    return module


@keywords()
@contextmanager
def with_kv_cache(model: Any, dtype: str | torch.dtype = "float32", *, attention: str = "widest") -> Iterator[Any]:
    """A key/value cache of that dtype, to be used with the model inside the ``with`` block.

    Each block gives a fresh, empty cache. Example::

        with wcodec.with_kv_cache(model, "float32") as cache:
            output = model.generate(**inputs, past_key_values=cache, max_new_tokens=64)

    From transformers 5.24 on the argument is called ``cache``, and the old name gives a warning.

    Attention runs in the wider of the cache's and the model's dtype (float32 for bfloat16 and float16), or with
    ``attention="model"`` in the model's. For a model that computes in half precision the latter makes a float32 cache
    change nothing but memory: its keys and values were rounded before. Inside the block the model's attention is set
    accordingly, and set back after it; do not use the model in another thread meanwhile.

    :param dtype: ``float32``, ``float16`` or ``bfloat16``; the cache takes 2 * layers * key/value heads * head size *
        tokens elements of it.
    :raises InputError: for another dtype, or if attention in a wider dtype is needed and the model's implementation is
        not ``sdpa``.
    """
    torch = _torch.require()
    running.check_model(model)
    store = cache_dtype(dtype)
    choice("attention", attention, ATTENTIONS)
    config = getattr(model, "config", None)
    if config is None:
        raise InputError(f"{type(model).__name__} has no config (pass a model of transformers)", code="I503")
    typed = _typed_cache()
    computing = running.dtype_of(model)
    widened = attention == "widest" and torch.promote_types(computing, store) != computing
    if not widened:
        yield typed.TypedCache(config, store, False)
        return
    decoder = config.get_text_config(decoder=True)
    configs = list({id(c): c for c in (config, decoder)}.values())
    before = [c._attn_implementation for c in configs]
    if any(name not in ("sdpa", typed.WIDE_ATTENTION) for name in before):
        raise InputError(
            f"a {store} cache of a {computing} model needs attn_implementation='sdpa', not {before[-1]!r} "
            "(load the model with it, or pass attention='model')",
            code="I610",
        )
    for c in configs:
        c._attn_implementation = typed.WIDE_ATTENTION
    try:
        yield typed.TypedCache(config, store, True)
    finally:
        for c, name in zip(configs, before, strict=True):
            c._attn_implementation = name


def _prompt(model: Any, prompt: Any, tokenizer: Any) -> tuple[torch.Tensor, Any]:
    """Token ids ``int64 [tokens]``, and the tokenizer if there is need of one. A ``str`` is text, never a path."""
    used_tokenizer = None
    if isinstance(prompt, str):
        used_tokenizer = running.tokenizer_for(model, tokenizer)
        prompt = used_tokenizer(prompt)["input_ids"] or _beginning(model, used_tokenizer)
        if not prompt:
            raise InputError(
                "the prompt is empty, and this model has no token that a text begins with (give it some text)",
                code="I325",
            )
    elif tokenizer is not None:
        used_tokenizer = running.tokenizer_for(model, tokenizer)
    ids = running.token_ids(prompt, model)
    running.check_ids(ids, model)
    return ids, used_tokenizer


def _beginning(model: Any, tokenizer: Any) -> list[int]:
    """The token that a text begins with, where the model has one: what an empty prompt stands for."""
    places = (tokenizer, getattr(model, "generation_config", None), getattr(model, "config", None))
    known = (getattr(place, "bos_token_id", None) for place in places)
    return [token for token in known if isinstance(token, int)][:1]


def generate(
    model: Any,
    prompt: str | Sequence[int] | torch.Tensor,
    tokenizer: Any = None,
    *,
    max_new_tokens: int = 64,
    kv_cache_dtype: str | torch.dtype | None = None,
    attention: str = "widest",
    device: str | torch.device | None = None,
    dtype: Any = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> Generation:
    """Continues a prompt with the model's own ``generate``, greedily unless the options say otherwise.

    Attention is not cuDNN's, which plans anew for each number of keys.

    :param model: a causal language model; or a path or the name of a repository, which :func:`wcodec.load_model` loads.
    :param prompt: text, or token ids. An empty text begins anew, with the token that texts of the model begin with.
    :param tokenizer: a tokenizer, or where to find one; the model's own if left out.
    :param kv_cache_dtype: keeps keys and values in this dtype (see :func:`with_kv_cache`); the model's if left out.
    :param device: the device that a model from a path runs on, the CPU if left out; ``dtype`` and ``trust_remote_code``
        as for :func:`wcodec.load_model`.
    :param options: handed on to ``generate``, such as ``do_sample=True`` and ``temperature=0.8``.
    :raises InputError: for options that ``generate`` does not have.
    """
    torch = _torch.require()
    model = loading.model_of(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    loading.check_generation("generate", names_of(generate), model, options)
    if trust_remote_code and isinstance(prompt, str):
        tokenizer = running.tokenizer_for(model, tokenizer, trust_remote_code)
    device = running.device_of(model)
    (max_new_tokens,) = running.whole_numbers("max_new_tokens", max_new_tokens)
    ids, used_tokenizer = _prompt(model, prompt, tokenizer)
    inputs = ids[None].to(device)
    arguments = {"do_sample": False, "attention_mask": torch.ones_like(inputs), **options}
    pad = getattr(getattr(model, "generation_config", None), "pad_token_id", None)
    if pad is None:
        # Never used for one prompt; without it transformers warns at every call.
        arguments.setdefault("pad_token_id", 0)
    with running.evaluating(model), running.plain_attention():
        running.synchronize(device)
        clock = clocked(model, arguments)
        begin = time.perf_counter()
        if kv_cache_dtype is None:
            output = model.generate(inputs, max_new_tokens=max_new_tokens, **arguments)
        else:
            with with_kv_cache(model, kv_cache_dtype, attention=attention) as cache:
                arguments[running.cache_name(model)] = cache
                output = model.generate(inputs, max_new_tokens=max_new_tokens, **arguments)
        running.synchronize(device)
        seconds = time.perf_counter() - begin
    tokens = [int(token) for token in output[0, ids.numel() :]]
    return Generation(
        prompt=prompt if isinstance(prompt, str) else None,
        text=None if used_tokenizer is None else used_tokenizer.decode(tokens, skip_special_tokens=True),
        prompt_tokens=ids.numel(),
        tokens=tuple(tokens),
        seconds=seconds,
        first_token_seconds=None if clock is None or clock.first is None else clock.first - begin,
        decode_tokens_per_second=None if clock is None else clock.speed,
    )


class _Decoding:
    """A sequence that grows token by token in one cache."""

    def __init__(self, model: Any, dtype: str, attention: str) -> None:
        self._model, self._dtype, self._attention = model, dtype, attention
        self._cache: Any = None

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Takes ids ``[tokens]``; the logits ``float32 [vocabulary]`` after the last one."""
        with with_kv_cache(self._model, self._dtype, attention=self._attention) as fresh:
            if self._cache is None:
                self._cache = fresh
            named = {running.cache_name(self._model): self._cache}
            logits = running.logits_of(self._model, ids[None], use_cache=True, **named)
        return logits[0, -1].float()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Decoding:
        twin = _Decoding(self._model, self._dtype, self._attention)
        twin._cache = copy.deepcopy(self._cache, memo)
        return twin

    @property
    def stored_bytes(self) -> int:
        """Bytes of the cache."""
        return int(self._cache.stored_bytes)


@keywords()
def compare_kv_cache(
    model: Any,
    prompt: str | Sequence[int] | torch.Tensor,
    tokens: int = 256,
    dtypes: Sequence[str | torch.dtype] = DTYPES,
    tokenizer: Any = None,
    *,
    attention: str = "widest",
    progress: bool | running.StepCallback = False,
) -> KvCacheReport:
    """Measures what the dtype of the key/value cache changes, against a float32 cache of the same model.

    The reference continues the prompt greedily with a float32 cache. Each dtype is measured twice: fed with the
    reference's tokens, its predictions are compared at every position (``KL(float32 || dtype)`` in nats, and how often
    both find the same token most likely); running freely, its tokens are compared with the reference's by position,
    where everything after the first difference usually differs. All caches advance side by side, token by token, so
    that no logits are kept. Generation does not stop at an end-of-text token.

    :param prompt: text, or token ids.
    :param tokens: tokens to generate.
    :param attention: as in :func:`with_kv_cache`. For a model that computes in half precision, ``"widest"`` compares
        attention in float32 with attention in the model's dtype; ``"model"`` compares storage alone.
    """
    torch = _torch.require()
    running.check_model(model)
    (tokens,) = running.whole_numbers("tokens", tokens)
    names = [str(cache_dtype(dtype)).removeprefix("torch.") for dtype in dtypes]
    device = running.device_of(model)
    ids = _prompt(model, prompt, tokenizer)[0].to(device)
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if limit is not None and ids.numel() + tokens > limit:
        raise InputError(
            f"{ids.numel()} tokens of prompt and {tokens} new ones are more than the model's {limit} positions "
            "(use fewer)",
            code="I324",
        )
    reference = _Decoding(model, "float32", attention)
    forced = [_Decoding(model, name, attention) for name in names]
    # A free run is the forced one until its first other token; from there it has a cache of its own.
    free: list[_Decoding | None] = [None for _ in names]
    wanted: list[int] = []
    written: list[list[int]] = [[] for _ in names]
    divergences: list[list[float]] = [[] for _ in names]
    same_top = [0] * len(names)
    identical = [True] * len(names)
    with running.evaluating(model), running.steps(progress, "comparing caches", "token") as advance:
        fed = ids
        for done in range(tokens):
            expected = reference.step(fed)
            logarithms = torch.log_softmax(expected, -1)
            token = expected.argmax(-1, keepdim=True)
            wanted.append(int(token))
            for i in range(len(names)):
                actual = forced[i].step(fed)
                top = int(actual.argmax(-1))
                identical[i] = identical[i] and bool(torch.equal(actual, expected))
                divergences[i].append(float(kl_divergence(logarithms, torch.log_softmax(actual, -1))))
                same_top[i] += top == wanted[-1]
                free_run = free[i]
                if free_run is not None:
                    top = int(free_run.step(ids.new_tensor(written[i][-1:])).argmax(-1))
                elif top != wanted[-1]:
                    free[i] = copy.deepcopy(forced[i])
                written[i].append(top)
            fed = token
            advance(done + 1, tokens)
    results = []
    for i, name in enumerate(names):
        equal = [a == b for a, b in zip(written[i], wanted, strict=True)]
        results.append(
            KvCacheResult(
                dtype=name,
                token_agreement=sum(equal) / tokens,
                first_difference=None if all(equal) else equal.index(False),
                top1_agreement=same_top[i] / tokens,
                kl_mean=sum(divergences[i]) / tokens,
                kl_max=max(divergences[i]),
                identical=identical[i],
                cache_bytes=forced[i].stored_bytes,
                token_kl=tuple(divergences[i]),
            )
        )
    return KvCacheReport(
        tokens=tokens,
        prompt_tokens=ids.numel(),
        model_dtype=str(running.dtype_of(model)).removeprefix("torch."),
        attention=attention,
        results=tuple(results),
    )
