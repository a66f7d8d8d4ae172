"""Methods of transformers' models with compressed layers: ties, sizes of tables, devices and dtypes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import wcodec
from wcodec.nn import CompressedEmbedding, CompressedLayer

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1,
    "bos_token_id": 2,
}  # fmt: skip
IDS = torch.arange(3, 15)[None]


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **options)).eval()


def bert() -> Any:
    torch.manual_seed(0)
    small = {k: v for k, v in SMALL.items() if k != "num_key_value_heads"}
    return transformers.BertForMaskedLM(transformers.BertConfig(**small)).eval()


def t5() -> Any:
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=64, d_ff=96, num_layers=1, vocab_size=128, d_kv=16, num_heads=8, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config).eval()


def logits(model: Any) -> torch.Tensor:
    more = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=IDS, **more).logits  # type: ignore[no-any-return]


MODELS = {"llama": lambda: llama(tie_word_embeddings=True), "bert": bert, "t5": t5}


@pytest.mark.parametrize("way", ["compress_", "load_model", "auto", "quantization_config", "copy", "excluded"])
@pytest.mark.parametrize("name", MODELS)
def test_tying_again_changes_nothing(name: str, way: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    kind = type(model)
    if way == "quantization_config":
        model.save_pretrained(tmp_path / "plain")
        config = wcodec.WCodecConfig(scheme="int8")
        model = kind.from_pretrained(tmp_path / "plain", quantization_config=config)
    else:
        exclude = ["lm_head", "shared", "*embed*", "*decoder"] if way == "excluded" else []
        wcodec.compress_(model, exclude=exclude, progress=False)
    if way in ("load_model", "auto"):
        model.save_pretrained(tmp_path / "saved")
        load = wcodec.load_model if way == "load_model" else kind.from_pretrained
        model = load(tmp_path / "saved")
    if way == "copy":
        model = copy.deepcopy(model)
    wanted = logits(model)
    names = list(model.state_dict())
    for again in (
        model.tie_weights,
        lambda: model.tie_weights(recompute_mapping=False),
        model.init_weights,
        lambda: model.resize_token_embeddings(model.config.vocab_size),
        lambda: model.resize_token_embeddings(None),
        lambda: model.base_model.tie_weights(),
    ):
        again()
        assert torch.equal(logits(model), wanted) and list(model.state_dict()) == names
        table, head = model.get_input_embeddings(), model.get_output_embeddings()
        assert torch.equal(table.weight, head.weight)
        if way == "excluded":
            assert head.weight is table.weight


def test_resizing_says_the_way_and_that_works() -> None:
    model = llama()
    wcodec.compress_(model, progress=False)
    for size in (140, 100):
        with pytest.raises(wcodec.InputError, match=r"resized.*decompress_\(model, include=.*embed_tokens.*lm_head"):
            model.resize_token_embeddings(size)
    with pytest.raises(wcodec.InputError, match="before compress_"):
        model.resize_token_embeddings(None, pad_to_multiple_of=100)
    assert model.resize_token_embeddings(120, pad_to_multiple_of=64) is model.get_input_embeddings()
    before = logits(model)
    wcodec.decompress_(model, include=["model.embed_tokens", "lm_head"])
    model.resize_token_embeddings(140)
    assert torch.equal(logits(model)[..., :128], before) and logits(model).shape[-1] == 140
    # With a table that was left out from the beginning it is as ever.
    model = llama()
    wcodec.compress_(model, exclude=["*embed_tokens", "lm_head"], progress=False)
    model.resize_token_embeddings(140)
    assert logits(model).shape[-1] == 140


def test_rows_of_a_compressed_table_are_not_trained() -> None:
    peft = pytest.importorskip("peft")
    model = llama()
    wcodec.compress_(model, progress=False)
    config = {"r": 4, "target_modules": ["q_proj"], "trainable_token_indices": [5]}
    with pytest.raises(wcodec.InputError, match=r"embed_tokens.*exclude=\.\.\..*decompress_"):
        peft.get_peft_model(model, peft.LoraConfig(**config))
    with pytest.raises(wcodec.InputError, match=r"trainable_token_indices.*exclude"):
        peft.get_peft_model(
            llama_compressed(), peft.TrainableTokensConfig(token_indices=[5], target_modules=["embed_tokens"])
        )
    model = llama()
    wcodec.compress_(model, exclude="*embed_tokens", progress=False)
    trained = peft.get_peft_model(model, peft.LoraConfig(**config))
    trained(input_ids=IDS, labels=IDS).loss.backward()


def llama_compressed() -> Any:
    model = llama()
    wcodec.compress_(model, progress=False)
    return model


@pytest.mark.parametrize("kind", ["OlmoForCausalLM", "NanoChatForCausalLM"])
def test_models_without_a_parameter(kind: str, tmp_path: Path) -> None:
    cls = getattr(transformers, kind, None)
    if cls is None:
        # An older transformers does not know it.
        return
    torch.manual_seed(0)
    model = cls(cls.config_class(**SMALL)).eval()
    wcodec.compress_(model, progress=False)
    assert not dict(model.named_parameters()) and not list(model.model.layers[0].parameters())
    wanted = model.generate(IDS, max_new_tokens=3, do_sample=False)
    assert wanted.shape == (1, 15) and model.dtype is torch.float32 and model.device == torch.device("cpu")
    model.save_pretrained(tmp_path / "saved")
    for made in (
        model,
        wcodec.load_model(tmp_path / "saved"),
        cls.from_pretrained(tmp_path / "saved"),
        copy.deepcopy(model),
    ):
        assert torch.equal(made.generate(IDS, max_new_tokens=3, do_sample=False), wanted)
        for part in (made, made.model):
            first = next(part.parameters())
            assert (first.dtype, first.device.type, first.numel()) == (torch.float32, "cpu", 0)
        if getattr(made, "is_quantized", False):
            # transformers refuses to change the dtype of what it loaded with a quantizer.
            continue
        made.half()
        assert made.dtype is made.model.dtype is next(made.parameters()).dtype is torch.float16
        made.to(torch.bfloat16)
        assert made.dtype is torch.bfloat16 and made.num_parameters() == 0 + sum(
            layer.elements for layer in made.modules() if isinstance(layer, CompressedLayer)
        )
        made.to("meta")
        assert made.device.type == "meta"


def test_the_dtype_is_that_of_the_first_weight() -> None:
    model = llama().to(torch.bfloat16)
    # As those that transformers keeps in float32.
    model.model.norm.float()
    for layer in model.model.layers:
        layer.input_layernorm.float()
    assert model.dtype is torch.bfloat16
    wcodec.compress_(model, progress=False)
    assert model.dtype is model.model.dtype is torch.bfloat16
    wcodec.decompress_(model)
    assert model.dtype is torch.bfloat16 and not any(isinstance(m, CompressedEmbedding) for m in model.modules())


def test_lora_on_all_linear_layers_leaves_those_that_compute_otherwise() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    options = {"intermediate_size_mlp": 96, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16}
    model = transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**SMALL, **options))
    wcodec.compress_(model, progress=False)
    trained = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    names = trained.peft_config["default"].target_modules
    assert any("q_proj" in name for name in names) and not any("router" in name for name in names)
    trained(input_ids=IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for n, p in trained.named_parameters() if "lora_" in n and "q_proj" in n)
