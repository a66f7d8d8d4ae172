"""Whole models with compressed layers: what they compute is what the decoded weights compute, bit for bit."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from wcodec._models.find import group_of
from wcodec.nn import CompressedConv1D, CompressedEmbedding, CompressedExperts, CompressedLayer, CompressedLinear
from wcodec.nn._weights import providers as _providers

transformers = pytest.importorskip("transformers")
CODERS = ["rans", "huffman", "zstd", "raw"]
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300, "bos_token_id": 1, "eos_token_id": 2}


def config_of(name: str) -> Any:
    t = transformers
    grouped = {**SMALL, "num_key_value_heads": 2}
    made = {
        "llama": lambda: t.LlamaConfig(**grouped, tie_word_embeddings=False),
        "llama-tied": lambda: t.LlamaConfig(**grouped, tie_word_embeddings=True),
        "mistral": lambda: t.MistralConfig(**grouped),
        "qwen2": lambda: t.Qwen2Config(**grouped, tie_word_embeddings=True),
        "gpt2": lambda: t.GPT2Config(**GPT2),
        "gemma": lambda: t.GemmaConfig(**grouped, head_dim=16),
        "phi": lambda: t.PhiConfig(**SMALL),
        "mixtral": lambda: t.MixtralConfig(**grouped, num_local_experts=4, experts_implementation="eager"),
    }[name]()
    return made


NAMES = ["llama", "llama-tied", "mistral", "qwen2", "gpt2", "gemma", "phi", "mixtral"]


def build(name: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config_of(name), dtype=dtype).eval()
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms too, so that none goes unnoticed.
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(dtype) / 20)
    return model


def dequantized(model: Any, **options: Any) -> Any:
    """A copy of the model with plain layers that hold the weights as the codec gives them back, decoded apart from
    it."""
    out = copy.deepcopy(model)
    for module in out.modules():
        kind = type(module).__name__
        if kind not in ("Linear", "Conv1D", "Embedding", "GemmaTextScaledWordEmbedding", "MixtralExperts"):
            continue
        for key, parameter in module._parameters.items():
            if key == "bias" or parameter is None:
                continue
            matrices = parameter.detach() if parameter.dim() == 3 else parameter.detach()[None]
            extra = {"transpose": "*"} if kind == "Conv1D" else {}
            for i, matrix in enumerate(matrices):
                data, _ = wcodec.compress_to_bytes({"w": matrix.contiguous()}, **options, **extra)
                matrices[i].copy_(wcodec.open(data)["w"].torch(matrix.dtype))
    return out


IDS = torch.tensor([[3, 17, 256, 255, 5, 41], [299, 1, 1, 60, 61, 8]])


def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.inference_mode():
        return model(ids).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_decoded_weights(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = build(name, dtype)
    # A tied weight is quantized once, and the copies with it.
    reference = dequantized(model) if not model.config.tie_word_embeddings else None
    report = wcodec.compress_(model, progress=False)
    left = [s.name for s in report.skipped if not s.vectors]
    assert report.replaced and left == ([f"model.layers.{i}.mlp.gate" for i in range(2)] if name == "mixtral" else [])
    if reference is None:
        reference = copy.deepcopy(model)
        wcodec.decompress_(reference)
        assert reference.get_output_embeddings().weight is reference.get_input_embeddings().weight
    assert not any(isinstance(m, CompressedLayer) for m in reference.modules())
    if name == "mixtral":
        reference.set_experts_implementation("eager")
    wanted = logits(reference)
    assert torch.equal(logits(model), wanted)
    # Saved, loaded by both ways, with equal results; from an ordinary checkpoint of it too.
    wcodec.save_pretrained(model, tmp_path / "ours")
    assert torch.equal(logits(wcodec.load_model(tmp_path / "ours")), wanted)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert any(isinstance(m, CompressedLayer) for m in theirs.modules()) and torch.equal(logits(theirs), wanted)
    build(name, dtype).save_pretrained(tmp_path / "plain", max_shard_size="50KB")
    assert torch.equal(logits(wcodec.load_model(tmp_path / "plain")), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_replaced(name: str) -> None:
    model = build(name)
    before = sum(p.nbytes for p in model.parameters())
    report = wcodec.compress_(model, progress=False)
    kinds = {type(m) for m in model.modules() if isinstance(m, CompressedLayer)}
    assert CompressedEmbedding in kinds and CompressedLinear in kinds
    assert (CompressedConv1D in kinds) == (name == "gpt2") and (CompressedExperts in kinds) == (name == "mixtral")
    assert report.bytes_before == before and report.bytes_after < before / 3
    assert report.original_bytes + sum(p.nbytes for p in model.parameters()) == before
    assert report.bytes_by_dtype == {"float32": (report.original_bytes, report.stored_bytes)}
    tied = [layer.tied_to for layer in report.replaced if layer.tied_to]
    assert len(tied) == int(model.config.tie_word_embeddings)
    assert not any(p.requires_grad for p in model.parameters())
    assert "replaced" in repr(report) and "<table" in report._repr_html_() and report.to_dict()["ratio"] > 3


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "mixtral"])
def test_copies_and_state(name: str) -> None:
    model = build(name)
    wcodec.compress_(model, progress=False)
    wanted = logits(model)
    assert torch.equal(logits(copy.deepcopy(model)), wanted)
    assert torch.equal(logits(pickle.loads(pickle.dumps(model))), wanted)
    other = build(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    wcodec.compress_(other, coder="huffman", progress=False)
    assert not torch.equal(logits(other), wanted)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(logits(other), wanted)
    names = wcodec.decompress_(other)
    assert len(names) == len(set(names)) and not any(isinstance(m, CompressedLayer) for m in other.modules())
    if name == "mixtral":
        other.set_experts_implementation("eager")
    assert torch.equal(logits(other), wanted)


def test_only_routed_experts_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("mixtral")
    wcodec.compress_(model, progress=False)
    decoded: list[str] = []
    rows = wcodec.nn._weights.store.Store.rows
    monkeypatch.setattr(
        wcodec.nn._weights.store.Store,
        "rows",
        lambda self, name, *rest: decoded.append(name) or rows(self, name, *rest),
    )
    logits(model, IDS[:1, :1])
    experts = [name for name in decoded if ".experts." in name]
    # One token, two of four experts in each of two layers, with two matrices each; and no more of others than once.
    assert len(experts) == len(set(experts)) == 2 * 2 * 2


def test_blocks_are_decoded_together() -> None:
    assert group_of("model.layers.3.self_attn.q_proj") == group_of("model.layers.3.mlp.down_proj") == "model.layers.3"
    model = build("llama")
    wcodec.compress_(model, progress=False)
    logits(model)
    providers = {
        id(m._weights.provider[0]): m._weights.provider[0] for m in model.modules() if isinstance(m, CompressedLinear)
    }
    assert sorted(len(plan.names) for plan in providers.values()) == [1, 7, 7]


def test_slices_in_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    wcodec.compress_(model, cache=0, progress=False)
    wanted = logits(model)
    monkeypatch.setattr(_providers, "SLICE_BYTES", 80 * 64 * 4)
    sliced = copy.deepcopy(model)
    sliced.lm_head._store._devices.clear()
    torch.testing.assert_close(logits(sliced), wanted)
    assert isinstance(sliced.lm_head._weights.provider[0], _providers.SlicedProvider)


def test_include_and_exclude() -> None:
    model = build("llama")
    report = wcodec.compress_(model, include="*.mlp.*", exclude=["*.1.*"], progress=False)
    assert [layer.name for layer in report.replaced] == [f"model.layers.0.mlp.{n}_proj" for n in ("gate", "up", "down")]
    whys = {skipped.name: skipped.why for skipped in report.skipped}
    assert whys["lm_head"] == "not among include" and whys["model.layers.1.mlp.up_proj"] == "among exclude"
    # The rest, afterwards.
    assert len(wcodec.compress_(model, progress=False).replaced) == 2 * 7 + 2 - 3
    with pytest.raises(wcodec.InputError, match="compressed already"):
        wcodec.compress_(model, progress=False)
    with pytest.raises(wcodec.InputError, match="2 containers"):
        wcodec.save_pretrained(model, "nowhere")


def test_tied_weights_stay_tied_or_as_they_are() -> None:
    model = build("llama-tied")
    report = wcodec.compress_(model, embeddings=False, progress=False)
    whys = {skipped.name: skipped.why for skipped in report.skipped}
    assert "embeddings=True" in whys["model.embed_tokens"] and "tied to model.embed_tokens" in whys["lm_head"]
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model = build("llama-tied")
    report = wcodec.compress_(model, exclude="lm_head", progress=False)
    assert "tied to lm_head" in {s.name: s.why for s in report.skipped}["model.embed_tokens"]


def test_errors_of_compress() -> None:
    with pytest.raises(wcodec.InputError, match="no linear layers"):
        wcodec.compress_(torch.nn.Sequential(torch.nn.ReLU()))
    with pytest.raises(wcodec.InputError, match="not among include"):
        wcodec.compress_(build("llama"), include="nothing")
    with pytest.raises(wcodec.InputError, match="from_linear"):
        wcodec.compress_(torch.nn.Linear(3, 4))
    with pytest.raises(wcodec.InputError, match="residency"):
        wcodec.compress_(build("llama"), residency="disk")
    with pytest.raises(wcodec.InputError, match="no compressed layer"):
        wcodec.decompress_(build("llama"))
    with torch.device("meta"):
        empty = torch.nn.Sequential(torch.nn.Linear(64, 64))
    with pytest.raises(wcodec.InputError, match="meta device"):
        wcodec.compress_(empty)
    bad = torch.nn.Sequential(torch.nn.Linear(64, 64))
    with torch.no_grad():
        bad[0].weight[3, 4] = float("nan")
    with pytest.raises(wcodec.InputError, match=r"0\.weight"):
        wcodec.compress_(bad, progress=False)
    assert type(bad[0]) is torch.nn.Linear


def test_compressed_weights_are_not_among_what_is_trained() -> None:
    model = build("llama")
    wcodec.compress_(model, progress=False)
    model.train()
    assert not model(IDS, labels=IDS).loss.requires_grad
    model.requires_grad_(True)
    assert all(p.dim() == 1 for p in model.parameters())
    model(IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    with torch.no_grad():
        assert not model(IDS).logits.requires_grad


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_compile_a_model(name: str) -> None:
    torch._dynamo.reset()
    model = build(name)
    wcodec.compress_(model, progress=False)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(IDS, use_cache=False).logits, logits(model), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("coder", CODERS)
def test_text_of_the_real_model(coder: str, model: Path, tmp_path: Path) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"))
    prompt = tokenizer("The function returns", return_tensors="pt").input_ids
    reference = dequantized(transformers.AutoModelForCausalLM.from_pretrained(model), coder=coder)
    compressed = wcodec.load_model(model, coder=coder)
    assert {m.coder for m in compressed.modules() if isinstance(m, CompressedLinear)} == {coder}
    settings = {"max_new_tokens": 64, "do_sample": False}
    wanted = reference.generate(prompt, **settings)
    assert torch.equal(compressed.generate(prompt, **settings), wanted)
    wcodec.save_pretrained(compressed, tmp_path / "saved")
    loaded = wcodec.WCodecModel.from_pretrained(tmp_path / "saved")
    assert torch.equal(loaded.generate(prompt, **settings), wanted)
    assert (tmp_path / "saved" / "tokenizer.json").is_file() and "30 compressed layers" in repr(loaded)
    assert loaded.stored_bytes < 0.55 * sum(p.nbytes for p in reference.parameters())
