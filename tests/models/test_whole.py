"""Loading gives every value and dtype that transformers gives, whichever way: nothing is left to chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import earlier_folders
import pytest
import wcodec
from wcodec._integrations.from_pretrained import Left
from whole_models import IDS, SIZES, both_ways, differences, fresh, llama, out_of, t5

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

CAUSAL = transformers.AutoModelForCausalLM
SEQ2SEQ = transformers.AutoModelForSeq2SeqLM


def rewritten(folder: Path, change: Any) -> None:
    """Changes the tensors of a folder's file."""
    path = folder / "model.safetensors"
    tensors = safetensors.load_file(path)
    change(tensors)
    safetensors.save_file(tensors, path, {"format": "pt"})


def bert_classifier() -> Any:
    config = transformers.BertConfig(**{**SIZES, "num_hidden_layers": 1}, num_labels=3)
    return fresh(transformers.BertForSequenceClassification, config)


# Layers that a container stores raw, or in another dtype than the model's


@pytest.mark.parametrize(
    ("make", "auto", "options"),
    [
        (bert_classifier, "AutoModelForSequenceClassification", {"scheme": "lossless"}),
        (bert_classifier, "AutoModelForSequenceClassification", {"scheme": "raw"}),
        (t5, "AutoModelForSeq2SeqLM", {}),
        (t5, "AutoModelForSeq2SeqLM", {"scheme": "lossless"}),
        (llama, "AutoModelForCausalLM", {"rules": {"*.down_proj.*": "raw", "*embed*": "lossless"}}),
        (lambda: llama(tie_word_embeddings=True), "AutoModelForCausalLM", {"rules": {"*embed*": "raw"}}),
    ],
)
def test_what_layers_do_not_run_from_is_loaded_both_ways(
    tmp_path: Path, make: Any, auto: str, options: dict[str, Any]
) -> None:
    model = make()
    wcodec.compress_(model, progress=False, **options)
    model.save_pretrained(tmp_path)
    want = out_of(model)
    for way, loaded in both_ways(tmp_path, getattr(transformers, auto)).items():
        assert differences(loaded, model) == [] and torch.equal(out_of(loaded), want), way


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("rules", [{"*": "lossless"}, {"*.down_proj.*": "raw"}, {"*.q_proj.*": "lossless"}])
def test_another_dtype_is_loaded_both_ways(tmp_path: Path, dtype: Any, rules: dict[str, str]) -> None:
    llama().save_pretrained(tmp_path / "original")
    wcodec.compress(tmp_path / "original", f"{tmp_path}/out/", rules=rules, progress=False)
    loaded = both_ways(tmp_path / "out", CAUSAL, dtype=dtype)
    assert differences(*loaded.values()) == []
    assert torch.equal(*map(out_of, loaded.values()))


def test_what_nothing_has_values_for_is_an_error_both_ways(tmp_path: Path) -> None:
    model = llama()
    wcodec.compress_(model, progress=False)
    model.save_pretrained(tmp_path / "now")
    model.save_pretrained(tmp_path / "before")
    rewritten(earlier_folders.split(tmp_path / "before"), lambda tensors: tensors.pop("model.norm.weight"))
    with wcodec.open(tmp_path / "now") as container:
        data = container.extract([name for name in container if name != "model.norm.weight"])
    (tmp_path / "now/model.wcodec").write_bytes(data)
    for folder in ("now", "before"):
        for load in (wcodec.load_model, CAUSAL.from_pretrained):
            with pytest.raises(wcodec.InputError, match=r"model\.norm\.weight"):
                load(tmp_path / folder)


def test_a_head_that_a_folder_has_not_is_transformers_to_make(tmp_path: Path) -> None:
    model = bert_classifier()
    wcodec.compress_(model, progress=False)
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"has no use for .*classifier\.weight"):
        other = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    assert other.qa_outputs.weight.isfinite().all()
    left = [name for name in differences(other, model) if not name.startswith(("classifier", "bert.pooler"))]
    assert left == []


def test_parameters_that_a_class_makes_itself_are_made(tmp_path: Path) -> None:
    sizes = {"d_model": 64, "vocab_size": 128, "max_position_embeddings": 64, "pad_token_id": 0}
    sizes |= dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96)
    model = fresh(transformers.MarianMTModel, transformers.MarianConfig(**sizes, decoder_start_token_id=0))
    model.save_pretrained(tmp_path)
    rewritten(tmp_path, lambda tensors: [tensors.pop(n) for n in list(tensors) if "embed_positions" in n])
    want = SEQ2SEQ.from_pretrained(tmp_path)
    found = wcodec.load_model(tmp_path, scheme="lossless")
    assert differences(found, want) == []


# Tied weights


def two_tensors(folder: Path, same: bool) -> None:
    model = llama(tie_word_embeddings=False)
    if same:
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("embeddings", [True, False])
def test_two_tensors_that_a_config_ties_are_what_transformers_makes_of_them(
    tmp_path: Path, same: bool, embeddings: bool
) -> None:
    two_tensors(tmp_path, same)
    want = CAUSAL.from_pretrained(tmp_path)
    config = wcodec.WCodecConfig(scheme="lossless", embeddings=embeddings)
    loaded = {
        "load_model": wcodec.load_model(tmp_path, scheme="lossless", embeddings=embeddings),
        "config": CAUSAL.from_pretrained(tmp_path, quantization_config=config),
    }
    wcodec.compress(tmp_path, f"{tmp_path}/out/", scheme="lossless", progress=False)
    loaded |= both_ways(tmp_path / "out", CAUSAL)
    for way, model in loaded.items():
        assert differences(model, want) == [] and torch.equal(out_of(model), out_of(want)), way
    saved = tmp_path / "again"
    loaded["load_model"].save_pretrained(saved)
    for way, model in both_ways(saved, CAUSAL).items():
        assert differences(model, want) == [], way


def test_a_source_of_ties_that_a_file_has_not_is_what_stands_in(tmp_path: Path) -> None:
    model = t5(num_heads=16)
    model.save_pretrained(tmp_path)

    def change(tensors: dict[str, Any]) -> None:
        tensors["decoder.embed_tokens.weight"] = tensors.pop("shared.weight")
        tensors["lm_head.weight"] = torch.randn(128, 64, dtype=torch.bfloat16)

    rewritten(tmp_path, change)
    want = SEQ2SEQ.from_pretrained(tmp_path)
    loaded = {
        "load_model": wcodec.load_model(tmp_path, scheme="lossless"),
        "without tables": wcodec.load_model(tmp_path, scheme="lossless", embeddings=False),
        "config": SEQ2SEQ.from_pretrained(tmp_path, quantization_config=wcodec.WCodecConfig(scheme="lossless")),
    }
    wcodec.compress(tmp_path, f"{tmp_path}/out/", scheme="lossless", progress=False)
    for way, found in (loaded | both_ways(tmp_path / "out", SEQ2SEQ)).items():
        assert differences(found, want) == [] and torch.equal(out_of(found), out_of(want)), way


# Dtypes


def gptj() -> Any:
    sizes = {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": 128, "rotary_dim": 8}
    return fresh(transformers.GPTJForCausalLM, transformers.GPTJConfig(**sizes, bos_token_id=1, eos_token_id=2))


def codegen() -> Any:
    sizes = {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64, "n_ctx": 64, "vocab_size": 128}
    config = transformers.CodeGenConfig(**sizes, rotary_dim=8, bos_token_id=1, eos_token_id=2)
    return fresh(transformers.CodeGenForCausalLM, config)


def hunyuan(experts: int = 4, each: int = 2) -> Any:
    config = transformers.HunYuanMoEV1Config(
        **SIZES, num_key_value_heads=2, head_dim=16, num_experts=experts, moe_topk=each, pad_token_id=0
    )
    return fresh(transformers.HunYuanMoEV1ForCausalLM, config)


def switch() -> Any:
    sizes = {"d_model": 64, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": 128, "d_kv": 16}
    config = transformers.SwitchTransformersConfig(**sizes, num_heads=4, num_experts=4, decoder_start_token_id=0)
    return fresh(transformers.SwitchTransformersForConditionalGeneration, config)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make", [t5, switch, gptj, codegen, hunyuan])
def test_dtypes_are_those_of_transformers(tmp_path: Path, make: Any, dtype: Any) -> None:
    model = make()
    auto = SEQ2SEQ if model.config.is_encoder_decoder else CAUSAL
    model.save_pretrained(tmp_path)
    # Compressed experts compute one by one.
    want = auto.from_pretrained(tmp_path, dtype=dtype, experts_implementation="eager")
    config = wcodec.WCodecConfig(scheme="lossless")
    loaded = {
        "load_model": wcodec.load_model(tmp_path, dtype=dtype, scheme="lossless"),
        "config": auto.from_pretrained(tmp_path, dtype=dtype, quantization_config=config),
    }
    wcodec.compress(tmp_path, f"{tmp_path}/out/", scheme="lossless", progress=False)
    for way, found in (loaded | both_ways(tmp_path / "out", auto, dtype=dtype)).items():
        assert differences(found, want) == [], way
        # Not the same bits: products in float16 on a CPU may depend on where their factors lie.
        torch.testing.assert_close(out_of(found), out_of(want), atol=4e-3, rtol=0)


def test_a_layer_of_another_dtype_is_not_decoded_with_the_others(tmp_path: Path) -> None:
    model = hunyuan()
    wcodec.compress_(model, progress=False)
    gate = model.model.layers[0].mlp.gate.wg
    assert gate.dtype is torch.float32 and model.model.layers[0].self_attn.q_proj.dtype is torch.bfloat16
    groups = [set(group) for group in gate._store.tensor_groups.groups]
    mine = next(group for group in groups if gate.tensor in group)
    assert all(".gate.wg." in name for name in mine)


def test_a_stack_of_one_expert_is_encoded_as_compress_makes_it(tmp_path: Path) -> None:
    model = hunyuan(experts=1, each=1)
    model.save_pretrained(tmp_path)
    report = wcodec.compress(tmp_path, f"{tmp_path}/out/", progress=False)
    raw = [t.name for t in report.tensors if t.scheme == "raw" and len(t.shape) > 1]
    assert raw == [], "matrices of its only expert are left as they are"
    want = CAUSAL.from_pretrained(tmp_path)
    wcodec.compress_(want, progress=False)
    for way, found in both_ways(tmp_path / "out", CAUSAL).items():
        assert torch.equal(out_of(found), out_of(want)), way


def test_raw_tensors_have_the_dtype_of_the_model() -> None:
    """transformers leaves those of compressed folders as they are stored where it renames them."""
    stored = {"a.w": torch.ones(3, dtype=torch.bfloat16), "b.w": torch.ones(3, dtype=torch.bfloat16)}
    left = Left(list(stored), stored, lambda key: (3,), {"a.w": torch.float32})
    assert left["a.w"][:].dtype is torch.float32 and left["a.w"].get_dtype() == "F32"
    assert left["b.w"][:].dtype is torch.bfloat16 and left["b.w"].get_dtype() == "BF16"


# Names


def hrm() -> Any:
    config = transformers.HrmTextConfig(**SIZES, num_key_value_heads=4, head_dim=16)
    return fresh(transformers.HrmTextForCausalLM, config)


def mixtral() -> Any:
    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    return fresh(transformers.MixtralForCausalLM, config)


@pytest.mark.parametrize("make", [hrm, mixtral])
def test_names_that_transformers_converts(tmp_path: Path, make: Any) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    want = CAUSAL.from_pretrained(tmp_path, experts_implementation="eager")
    total = sum(p.numel() for p in want.parameters())
    found = CAUSAL.from_pretrained(tmp_path, quantization_config=wcodec.WCodecConfig(scheme="lossless"))
    assert sum(p.numel() for p in found.parameters()) < 0.1 * total
    loaded = {"config": found, "load_model": wcodec.load_model(tmp_path, scheme="lossless")}
    wcodec.compress(tmp_path, f"{tmp_path}/out/", scheme="lossless", progress=False)
    for way, found in (loaded | both_ways(tmp_path / "out", CAUSAL)).items():
        assert differences(found, want) == [] and torch.equal(out_of(found), out_of(want)), way


def test_parts_of_a_conversion_that_stay_as_they_are(tmp_path: Path) -> None:
    model = hrm()
    model.save_pretrained(tmp_path)
    want = CAUSAL.from_pretrained(tmp_path)
    for excluded in ("*q_proj*", "*up_proj*", "*down_proj*", "*v_proj*"):
        config = wcodec.WCodecConfig(scheme="lossless", exclude=excluded)
        found = CAUSAL.from_pretrained(tmp_path, quantization_config=config)
        assert differences(found, want) == [], excluded
        assert differences(wcodec.load_model(tmp_path, scheme="lossless", exclude=excluded), want) == [], excluded


@pytest.mark.parametrize(
    ("make", "extra"),
    [
        (
            lambda: fresh(transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig(**SIZES)),
            {"gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 8, 8).tril().bool()},
        ),
        (t5, {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.rand(64, 64)}),
    ],
)
def test_tensors_that_a_class_has_no_use_for_stay_in_the_folder(
    tmp_path: Path, make: Any, extra: dict[str, Any]
) -> None:
    model = make()
    auto = SEQ2SEQ if model.config.is_encoder_decoder else CAUSAL
    model.save_pretrained(tmp_path)
    rewritten(tmp_path, lambda tensors: tensors.update(extra))
    want = auto.from_pretrained(tmp_path)
    wcodec.compress(tmp_path, f"{tmp_path}/out/", scheme="lossless", progress=False)
    loaded = {"load": wcodec.load_model(tmp_path, scheme="lossless"), **both_ways(tmp_path / "out", auto)}
    for way, found in loaded.items():
        assert differences(found, want) == [] and torch.equal(out_of(found), out_of(want)), way
    (name,) = extra
    with wcodec.open(tmp_path / "out" / "model.wcodec") as container:
        assert name in container


def test_an_extra_tensor_is_still_an_error(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    rewritten(tmp_path, lambda tensors: tensors.update({"model.layers.9.mlp.weight": torch.rand(4, 4)}))
    with pytest.raises(wcodec.InputError, match=r"extra: model\.layers\.9"):
        wcodec.load_model(tmp_path)


# Configs and surroundings


def test_sizes_of_layers_are_no_numbers_of_layers(tmp_path: Path) -> None:
    config = transformers.Gemma4TextConfig(
        **SIZES, num_key_value_heads=2, head_dim=16, global_head_dim=16, hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=100_001, pad_token_id=0,
    )  # fmt: skip
    model = fresh(transformers.Gemma4ForCausalLM, config)
    wcodec.compress_(model, progress=False)
    model.save_pretrained(tmp_path)
    for way, found in both_ways(tmp_path, CAUSAL).items():
        assert torch.equal(out_of(found), out_of(model)), way


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "decoder_layers"])
def test_numbers_of_layers_that_no_model_has_are_refused(tmp_path: Path, key: str) -> None:
    llama().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: 200_000}))
    with pytest.raises(wcodec.InputError, match=key):
        wcodec.load_model(tmp_path)


def test_a_class_of_another_kind_of_config_is_found(tmp_path: Path) -> None:
    from transformers.models.auto import modeling_auto
    from wcodec._core.foreign import class_of

    pairs = getattr(modeling_auto, "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", {})
    if "glmga" not in pairs:
        pytest.skip("this transformers has no such model")
    config = transformers.AutoConfig.for_model("glmga")
    config.architectures = [pairs["glmga"]]
    assert class_of(config).__name__ == pairs["glmga"]
    config.architectures = ["LlamaForCausalLM"]
    assert class_of(config) is None


@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad, lambda: torch.device("meta")])
def test_what_surrounds_a_load_does_not_matter(tmp_path: Path, around: Any) -> None:
    llama().save_pretrained(tmp_path / "original")
    with around():
        wcodec.compress(tmp_path / "original", f"{tmp_path}/out/", progress=False)
        models = [wcodec.load_model(tmp_path / name) for name in ("original", "out")]
    for model in models:
        assert not any(p.is_inference() or p.device.type == "meta" for p in model.parameters())
        model.model.norm.weight.requires_grad_(True)
        model(input_ids=IDS, labels=IDS).loss.backward()
        assert model.model.norm.weight.grad is not None


# Modules of classes of their own


def minicpm() -> Any:
    config = transformers.MiniCPM3Config(
        **SIZES, num_key_value_heads=4, scale_emb=12.0, pad_token_id=0, q_lora_rank=32, kv_lora_rank=32,
        qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32,
    )  # fmt: skip
    return fresh(transformers.MiniCPM3ForCausalLM, config)


def zamba() -> Any:
    config = transformers.ZambaConfig(
        **{**SIZES, "num_hidden_layers": 5}, num_key_value_heads=4, attn_layer_period=2, attn_layer_offset=1,
        n_mamba_heads=2, mamba_d_state=16, mamba_dt_rank=8, use_mamba_kernels=False, pad_token_id=0,
    )  # fmt: skip
    return fresh(transformers.ZambaForCausalLM, config)


def rwkv() -> Any:
    config = transformers.RwkvConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=2, attention_hidden_size=64, intermediate_size=128,
        context_length=64, rescale_every=1, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return fresh(transformers.RwkvForCausalLM, config)


@pytest.mark.parametrize("make", [minicpm, zamba, rwkv])
def test_buffers_dtypes_and_writes_of_other_modules(tmp_path: Path, make: Any) -> None:
    """A buffer that the class makes beside a compressed table, a module of two dtypes, and weights that the model
    changes when it first runs."""
    make().save_pretrained(tmp_path)
    want = CAUSAL.from_pretrained(tmp_path)
    config = wcodec.WCodecConfig(scheme="lossless")
    loaded = {
        "load_model": wcodec.load_model(tmp_path, scheme="lossless"),
        "config": CAUSAL.from_pretrained(tmp_path, quantization_config=config),
    }
    wcodec.compress(tmp_path, f"{tmp_path}/out/", scheme="lossless", progress=False)
    loaded |= {f"folder, {way}": model for way, model in both_ways(tmp_path / "out", CAUSAL).items()}
    for way, found in loaded.items():
        assert differences(found, want) == [], way
    for way, found in loaded.items():
        torch.testing.assert_close(out_of(found), out_of(want), atol=1e-2, rtol=0)
        assert differences(found, want) == [], way
