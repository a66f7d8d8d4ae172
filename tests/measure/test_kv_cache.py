"""The dtype of the key/value cache: what it changes, and what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wcodec
from wcodec._measure import clock as _clock
from wcodec._measure import compare_kv_cache, generate, with_kv_cache
from wcodec._models.running import cache_name

from tests.measure.test_evaluate import tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79]
DTYPES = ("float32", "float16", "bfloat16")


def step_by_step(model: Any, ids: list[int], cache: Any) -> Any:
    """Logits after each token, one call for each."""
    with torch.inference_mode():
        found = [
            model(input_ids=torch.tensor([[i]]), use_cache=True, **{cache_name(model): cache}).logits[0, -1]
            for i in ids
        ]
    return torch.stack(found)


def plain(model: Any, ids: list[int]) -> Any:
    return step_by_step(model, ids, transformers.DynamicCache(config=model.config))


def test_float32_changes_nothing_in_float32() -> None:
    model = tiny()
    with with_kv_cache(model, "float32") as cache:
        found = step_by_step(model, PROMPT, cache)
    assert torch.equal(found, plain(model, PROMPT))
    assert cache.get_seq_length() == len(PROMPT)
    # 2 layers of keys and values, 2 heads of 8.
    assert cache.stored_bytes == 2 * 2 * 2 * 8 * len(PROMPT) * 4


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_rounds_what_is_kept(name: str) -> None:
    """The cache holds the rounded keys and values, and attention sees exactly those, in float32."""
    model = tiny()
    dtype = getattr(torch, name)
    with with_kv_cache(model, name) as cache:
        found = step_by_step(model, PROMPT, cache)
    assert {layer.keys.dtype for layer in cache.layers} == {dtype}
    assert not torch.equal(found, plain(model, PROMPT)) and torch.allclose(found, plain(model, PROMPT), atol=0.5)

    # Results are equal by other means: a cache of float32 that is given rounded keys and values.
    class Rounding(transformers.DynamicCache):
        def update(self, keys: Any, values: Any, *arguments: Any, **options: Any) -> Any:
            return super().update(keys.to(dtype).float(), values.to(dtype).float(), *arguments, **options)

    assert torch.equal(found, step_by_step(model, PROMPT, Rounding(config=model.config)))
    reference = transformers.DynamicCache(config=model.config)
    step_by_step(model, PROMPT[:1], reference)
    # Keys and values of the first token in the first layer depend on nothing before it.
    assert torch.equal(cache.layers[0].keys[:, :, :1], reference.layers[0].keys.to(dtype))
    assert torch.equal(cache.layers[0].values[:, :, :1], reference.layers[0].values.to(dtype))


@pytest.mark.parametrize("attention", ["widest", "model"])
def test_half_precision_models(attention: str) -> None:
    """Storage alone changes nothing in a model of half precision; attention in float32 does."""
    model = tiny(dtype=torch.bfloat16)
    before = model.config._attn_implementation
    with with_kv_cache(model, "float32", attention=attention) as cache:
        found = step_by_step(model, PROMPT, cache)
    assert {layer.keys.dtype for layer in cache.layers} == {torch.float32} and found.dtype == torch.bfloat16
    assert torch.equal(found, plain(model, PROMPT)) == (attention == "model")
    assert model.config._attn_implementation == before
    with with_kv_cache(model, torch.bfloat16, attention=attention) as cache:
        assert torch.equal(step_by_step(model, PROMPT, cache), plain(model, PROMPT))


def test_wide_attention_is_attention_in_float32() -> None:
    """Against the formula, with queries, keys and values of bfloat16."""
    from wcodec._measure.typed_cache import wide_attention

    torch.manual_seed(1)
    q, k, v = (torch.randn(2, heads, 5, 8).bfloat16() for heads in (4, 2, 2))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    module = torch.nn.Identity()
    module.num_key_value_groups = 2
    found, _ = wide_attention(module, q, k.float(), v.float(), mask, scaling=8**-0.5)
    wide_k, wide_v = (x.double().repeat_interleave(2, 1) for x in (k, v))
    scores = (q.double() @ wide_k.transpose(-1, -2)) * 8**-0.5
    expected = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1) @ wide_v
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected.transpose(1, 2).bfloat16())


def test_padding_and_sliding_windows() -> None:
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=6, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config).eval()
    with with_kv_cache(model, "float32") as cache:
        assert torch.equal(step_by_step(model, PROMPT * 2, cache), plain(model, PROMPT * 2))
    assert cache.layers[0].keys.shape[-2] == 5
    model = model.bfloat16()
    batch = torch.tensor([PROMPT, [0, 0, 0, *PROMPT[:5]]])
    mask = torch.tensor([[1] * 8, [0] * 3 + [1] * 5])
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with with_kv_cache(model, "float32") as cache:
        both = model.generate(batch, **{cache_name(model): cache}, **options)
    for row in range(2):
        single = batch[row][mask[row].bool()][None]
        with with_kv_cache(model, "float32") as cache:
            alone = model.generate(single, **{cache_name(model): cache}, **{**options, "attention_mask": None})
        assert both[row, 8:].tolist() == alone[0, single.shape[1] :].tolist()


def test_generate(model: Path) -> None:
    doc = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    prompt = "The function returns"
    inputs = tokenizer(prompt, return_tensors="pt")
    expected = doc.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=24,
                            do_sample=False, pad_token_id=0)[0, inputs["input_ids"].shape[1] :].tolist()  # fmt: skip
    found = generate(doc, prompt, max_new_tokens=24)
    assert list(found.tokens) == expected and found.text == tokenizer.decode(expected, skip_special_tokens=True)
    assert found.tokens_per_second > 0 and "tokens" in repr(found) and "<table>" in found._repr_html_()
    assert list(generate(doc, prompt, max_new_tokens=24, kv_cache_dtype="float32").tokens) == expected
    tokens = generate(doc, inputs["input_ids"], max_new_tokens=24)
    assert list(tokens.tokens) == expected and tokens.text is None and tokens.prompt is None
    sampled = generate(doc, prompt, max_new_tokens=8, do_sample=True, temperature=5.0)
    assert len(sampled.tokens) <= 8


def test_when_tokens_come(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doc = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found = generate(doc, "The function returns", max_new_tokens=8)
    assert found.first_token_seconds is not None and 0 < found.first_token_seconds < found.seconds
    assert found.decode_tokens_per_second is not None and found.decode_tokens_per_second > 0
    assert found.to_dict()["first_token_seconds"] == found.first_token_seconds and "the first after" in found.speed
    # The second token waits for much that is done once: it is not what the others take.
    arrivals = iter((1.0, 3.0, 3.25, 3.5, 3.75))
    monkeypatch.setattr(_clock.time, "perf_counter", lambda: next(arrivals))
    clock = _clock.Clock()
    for _ in range(6):
        clock.put(torch.zeros(1))
    assert clock.first == 1.0 and clock.speed == 4.0
    # Not each gap is a token's if several come at a time.
    arrivals = iter((1.0, 2.0, 3.0))
    clock = _clock.Clock()
    for count in (7, 1, 1, 5):
        clock.put(torch.zeros(count))
    assert clock.speed == 3.0
    # A coarse clock may see no time between most of them.
    arrivals = iter((1.0, 1.0, 1.0, 2.0))
    clock = _clock.Clock()
    for _ in range(5):
        clock.put(torch.zeros(1))
    assert clock.speed is None
    monkeypatch.undo()
    # A streamer of the caller's gets all tokens, the prompt's first; one token has no speed after the first.
    seen: list[Any] = []

    class Seen:
        def put(self, value: Any) -> None:
            seen.append(value)

        def end(self) -> None:
            seen.append("end")

    one = generate(doc, "The function returns", max_new_tokens=1, streamer=Seen())
    assert [int(token) for token in seen[1].reshape(-1)] == list(one.tokens) and seen[2:] == ["end"]
    assert one.decode_tokens_per_second is None and "the first" not in one.speed
    # With beams no token is sure before the last one.
    beams = generate(doc, "The function returns", max_new_tokens=4, num_beams=2)
    assert beams.first_token_seconds is None and beams.decode_tokens_per_second is None and len(beams.tokens) == 4
    several = generate(doc, "The function returns", max_new_tokens=4, do_sample=True, num_return_sequences=2)
    assert several.first_token_seconds is None
    guessed = generate(doc, "The function returns", max_new_tokens=12, prompt_lookup_num_tokens=4)
    assert guessed.first_token_seconds is not None and len(guessed.tokens) == 12
    # Models that are wrapped, or write in their own way, are asked as they are.
    wrapped = generate(torch.compile(doc, backend="eager"), "The function returns", tokenizer=model, max_new_tokens=2)
    assert len(wrapped.tokens) == 2
    doc.generate = lambda inputs, max_new_tokens, **options: inputs.repeat(1, 2)
    own = generate(doc, [5, 6, 7], max_new_tokens=3)
    assert own.tokens == (5, 6, 7) and own.first_token_seconds is None


def test_compare_in_float32() -> None:
    model = tiny()
    report = compare_kv_cache(model, PROMPT, tokens=40)
    by = {result.dtype: result for result in report.results}
    same = by["float32"]
    assert same.identical and same.kl_max == 0 and same.token_agreement == same.top1_agreement == 1
    assert same.first_difference is None
    assert not by["float16"].identical and 0 < by["float16"].kl_mean < by["bfloat16"].kl_mean < 0.5
    assert by["bfloat16"].cache_bytes * 2 == same.cache_bytes
    assert (report.model_dtype, report.tokens, report.prompt_tokens) == ("float32", 40, 8)
    # The free runs, by generate.
    for name in DTYPES:
        with with_kv_cache(model, name) as cache:
            free = model.generate(torch.tensor([PROMPT]), **{cache_name(model): cache}, max_new_tokens=40,
                                  min_new_tokens=40, do_sample=False, pad_token_id=0)[0, 8:].tolist()  # fmt: skip
        if name == "float32":
            reference = free
        equal = [a == b for a, b in zip(free, reference, strict=True)]
        assert by[name].token_agreement == pytest.approx(sum(equal) / 40), name
        assert by[name].first_difference == (None if all(equal) else equal.index(False))
    assert "bfloat16" in report.table() and "KvCacheReport" in repr(report) and "<table>" in report._repr_html_()
    assert report.to_dict()["results"][1]["kl_mean"] == by["float16"].kl_mean


def test_compare_in_bfloat16() -> None:
    model = tiny(dtype=torch.bfloat16)
    storage = compare_kv_cache(model, PROMPT, tokens=16, attention="model")
    assert all(result.identical and result.token_agreement == 1 for result in storage.results)
    widest = {result.dtype: result for result in compare_kv_cache(model, PROMPT, tokens=16).results}
    assert widest["float32"].identical and not widest["bfloat16"].identical and widest["bfloat16"].kl_mean > 0


def test_refusals() -> None:
    model = tiny(dtype=torch.bfloat16)
    model.config._attn_implementation = "eager"
    with pytest.raises(wcodec.InputError, match="attn_implementation='sdpa', not 'eager'"), with_kv_cache(model):
        pass
    with with_kv_cache(model, "float32", attention="model") as cache:
        step_by_step(model, PROMPT, cache)
    for call, message in (
        (lambda: with_kv_cache(model, "int8").__enter__(), "unknown kv_cache_dtype 'int8'"),
        (lambda: with_kv_cache(model, attention="half").__enter__(), "unknown attention"),
        (lambda: with_kv_cache(torch.nn.Linear(2, 2)).__enter__(), "has no config"),
        (lambda: generate(model, []), "the text has no tokens"),
        (lambda: generate(model, [97]), "vocabulary of 97"),
        (lambda: compare_kv_cache(model, PROMPT, tokens=57), "64 positions"),
        (lambda: compare_kv_cache(model, PROMPT, tokens=0), "tokens must be whole"),
    ):
        with pytest.raises(wcodec.InputError, match=message):
            call()
