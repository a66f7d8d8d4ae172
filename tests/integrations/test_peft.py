"""PEFT's LoRA on compressed layers: it learns what it learns on the dequantized model, bit for bit."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import small_models
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from wcodec.nn import CompressedConv1D, CompressedLayer, CompressedLinear  # noqa: E402
from wcodec.nn._weights.store import Store  # noqa: E402

TARGETS = ["q_proj", "v_proj", "down_proj"]
IDS = torch.arange(2 * 12).view(2, 12) * 7 % 90


def pair(make: Any = small_models.llama, **options: Any) -> tuple[Any, Any]:
    """A model with compressed layers and the same one with ordinary layers."""
    model = make()
    wcodec.compress_(model, progress=False, **options)
    reference = copy.deepcopy(model)
    wcodec.decompress_(reference)
    return model, reference


def config(**options: Any) -> Any:
    return peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "task_type": "CAUSAL_LM", **options})


def attached(model: Any, seed: int = 0, **options: Any) -> Any:
    """The model with adapters that do something from the start."""
    torch.manual_seed(seed)
    return shaken(peft.get_peft_model(model, config(**options)), seed)


def shaken(model: Any, seed: int) -> Any:
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=rng) / 10)
    return model


def logits(model: Any, ids: Any = IDS) -> Any:
    with torch.inference_mode():
        return model.eval()(ids).logits


def losses(model: Any, windows: list[Any], rate: float = 3e-3) -> list[float]:
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    found = []
    for ids in windows:
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def windows(model: Path, steps: int) -> list[Any]:
    """Batches of a text."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"))
    ids = torch.tensor(tokenizer((model / "heldout.txt").read_text(encoding="utf-8")).input_ids)
    # A few windows again and again, which can be learned quickly.
    return [ids[: 4 * 48].view(4, 48)] * steps


@pytest.fixture(scope="module")
def real(model: Path) -> Any:
    """A real model, at 4 bits."""
    return wcodec.load_model(model, scheme="rate", bits=4, dtype=torch.float32)


@pytest.mark.parametrize("options", [{}, {"lora_dropout": 0.1}, {"use_dora": True}], ids=str)
def test_it_learns_as_on_the_dequantized_model(real: Any, model: Path, options: dict[str, Any]) -> None:
    compressed = copy.deepcopy(real)
    reference = copy.deepcopy(compressed)
    wcodec.decompress_(reference)
    curves = []
    for each in (compressed, reference):
        torch.manual_seed(1)
        curves.append(losses(peft.get_peft_model(each, config(**options)), windows(model, 10)))
    assert curves[0] == curves[1] and curves[0][-1] < curves[0][0] - 0.2


def test_a_layer() -> None:
    model, reference = pair()
    # Attaching asks no weight for its dtype or device.
    decoded, original = [], Store.decoded
    Store.decoded = lambda self, name, *rest: decoded.append(name) or original(self, name, *rest)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model = attached(model)
    finally:
        Store.decoded = original
    assert decoded == []
    reference = attached(reference)
    assert torch.equal(logits(model), logits(reference))
    with model.disable_adapter(), reference.disable_adapter():
        plain = logits(reference)
        assert torch.equal(logits(model), plain) and not torch.equal(plain, logits_of_active(model))
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    assert isinstance(layer, peft.tuners.lora.Linear) and isinstance(layer.base_layer, CompressedLinear)
    x = torch.randn(3, 32)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.testing.assert_close(layer(x), layer.base_layer(x) + 2 * x @ a.t() @ b.t())
    assert torch.equal(layer.get_delta_weight("default"), (b @ a) * 2)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        n for n, p in reference.named_parameters() if p.requires_grad
    }


def logits_of_active(model: Any) -> Any:
    model.base_model.enable_adapter_layers()
    found = logits(model)
    model.base_model.disable_adapter_layers()
    return found


def test_several_adapters(tmp_path: Path) -> None:
    model, reference = pair()
    plain = copy.deepcopy(model)
    models = []
    for each in (model, reference):
        each = attached(each)
        each.add_adapter("other", config(r=2, target_modules=["q_proj", "up_proj"]))
        models.append(shaken(each, 3))
    model, reference = models
    for name in ("default", "other"):
        model.set_adapter(name)
        reference.set_adapter(name)
        assert torch.equal(logits(model), logits(reference))
        mixed = {"adapter_names": ["other", "__base__"]}
        with torch.inference_mode():
            assert torch.equal(model(IDS, **mixed).logits, reference(IDS, **mixed).logits)
    want = {name: chosen(model, name) for name in ("default", "other")}
    assert not torch.equal(*want.values())
    model.save_pretrained(tmp_path)
    files = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.safetensors"))
    assert files == ["adapter_model.safetensors", "other/adapter_model.safetensors"]
    assert sum((tmp_path / file).stat().st_size for file in files) < 40_000
    loaded = peft.PeftModel.from_pretrained(plain, tmp_path)
    loaded.load_adapter(tmp_path / "other", "other")
    for name, expected in want.items():
        assert torch.equal(chosen(loaded, name), expected)
    loaded.delete_adapter("other")
    assert torch.equal(chosen(loaded, "default"), want["default"])


def chosen(model: Any, name: str) -> Any:
    model.set_adapter(name)
    return logits(model)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=str)
@pytest.mark.parametrize("safe", [True, False])
def test_merging_makes_ordinary_layers(safe: bool, options: dict[str, Any], tmp_path: Path) -> None:
    model, reference = pair()
    model, reference = attached(model, **options), attached(reference, **options)
    with pytest.raises(wcodec.InputError, match="merge_and_unload"):
        model.merge_adapter()
    with pytest.warns(UserWarning, match="a merged layer is not compressed: .* became 4.00 KiB"):
        merged = model.merge_and_unload(safe_merge=safe)
    assert torch.equal(logits(merged), logits(reference.merge_and_unload(safe_merge=safe)))
    attention = merged.model.layers[0].self_attn
    assert type(attention.q_proj) is torch.nn.Linear and type(attention.k_proj) is CompressedLinear
    # Layers left compressed are saved so, and merged ones as they are.
    merged.save_pretrained(tmp_path / "merged")
    again = type(merged).from_pretrained(tmp_path / "merged")
    assert torch.equal(logits(again), logits(merged))
    assert type(again.model.layers[0].self_attn.q_proj) is torch.nn.Linear
    wcodec.decompress_(merged)
    report = wcodec.compress_(merged, progress=False)
    assert any(r.name == "model.layers.0.self_attn.q_proj" for r in report.replaced)


def test_unloading_and_decompressing() -> None:
    model, reference = pair()
    before = logits(model)
    model = attached(model).unload()
    assert torch.equal(logits(model), before)
    assert isinstance(model.model.layers[0].self_attn.q_proj, CompressedLinear)
    # Under adapters, too: they stay, and can be merged then.
    model, reference = attached(model, 4), attached(reference, 4)
    wcodec.decompress_(model)
    want = logits(reference)
    assert torch.equal(logits(model), want)
    model.merge_adapter()
    reference.merge_adapter()
    assert torch.equal(logits(model), logits(reference))
    model.unmerge_adapter()


def test_when_all_layers_are_merged_transformers_saves_again(tmp_path: Path) -> None:
    model = small_models.llama()
    wcodec.compress_(model, include="*q_proj", progress=False)
    model = attached(model, target_modules=["q_proj"])
    with pytest.warns(UserWarning, match="not compressed"):
        merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(again), logits(merged))


def test_conv1d() -> None:
    model, reference = pair(small_models.gpt2)
    models = []
    for each in (model, reference):
        with pytest.warns(UserWarning, match="fan_in_fan_out is set to"):
            models.append(attached(each, target_modules=["c_attn", "c_proj"]))
    model, reference = models
    assert isinstance(model.base_model.model.transformer.h[0].attn.c_attn.base_layer, CompressedConv1D)
    assert torch.equal(logits(model), logits(reference))
    with pytest.warns(UserWarning, match="not compressed"):
        merged = model.merge_and_unload()
    assert torch.equal(logits(merged), logits(reference.merge_and_unload()))
    assert type(merged.transformer.h[0].attn.c_attn) is transformers.pytorch_utils.Conv1D


def test_all_linear() -> None:
    model, reference = pair()
    model, reference = attached(model, target_modules="all-linear"), attached(reference, target_modules="all-linear")
    assert model.targeted_module_names == reference.targeted_module_names
    assert len(model.targeted_module_names) == 14
    model.add_adapter("other", config(target_modules="all-linear"))
    assert len(model.targeted_module_names) == 14


def test_layers_are_checkpointed_and_mixed_with_ordinary_ones() -> None:
    model, reference = pair(exclude="*.v_proj")
    curves = []
    for each in (model, reference):
        each = attached(each)
        each.enable_input_require_grads()
        each.gradient_checkpointing_enable({"use_reentrant": each is model})
        curves.append(losses(each, [IDS] * 4, 1e-2))
    assert curves[0] == curves[1]


def test_low_precision() -> None:
    model, reference = pair(lambda: small_models.llama().bfloat16())
    model, reference = attached(model, lora_dropout=0.2), attached(reference, lora_dropout=0.2)
    adapters = {p.dtype for p in model.parameters() if p.requires_grad}
    curves = []
    for each in (model, reference):
        torch.manual_seed(0)
        curves.append(losses(each, [IDS] * 4))
    # PEFT keeps adapters in float32.
    assert adapters == {torch.float32} and curves[0] == curves[1]
    dora, _ = pair(lambda: small_models.llama().bfloat16())
    found = losses(attached(dora, lora_dropout=0.2, use_dora=True), [IDS] * 8, 1e-2)
    assert found[-1] < found[0]


def test_dora_keeps_no_weight() -> None:
    model, _ = pair()
    model = attached(model, use_dora=True, lora_dropout=0.5, target_modules=["gate_proj"]).train()
    layers = {id(m): m for m in model.modules() if isinstance(m, CompressedLayer)}
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.detach().clone()) or t, lambda t: t):
        model(IDS, labels=IDS)
    for layer in layers.values():
        weight = layer.weight
        assert not any(k.shape == weight.shape and torch.equal(k, weight) for k in kept)
        assert not any(k.shape == weight.t().shape and torch.equal(k, weight.t()) for k in kept)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_modules": ["embed_tokens"]}, r"embed_tokens.weight': LoRA does not attach to a CompressedEmbedding"),
        ({"modules_to_save": ["lm_head"]}, r"lm_head.*modules_to_save are trained.*exclude"),
        ({"init_lora_weights": "pissa"}, r"init_lora_weights='pissa' changes the weight.*'gaussian'"),
        ({"init_lora_weights": "olora"}, "changes the weight"),
        ({"alora_invocation_tokens": [1]}, "LoRA and DoRA attach to compressed layers.*alora"),
    ],
    ids=str,
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    model, _ = pair(lambda: small_models.llama(tie_word_embeddings=False))
    with pytest.raises(wcodec.InputError, match=said):
        peft.get_peft_model(model, config(**options))


def test_adapters_are_attached_last() -> None:
    model = peft.get_peft_model(small_models.llama(), config())
    with pytest.raises(wcodec.InputError, match=r"q_proj' is an adapter of peft \(compress_ the model first"):
        wcodec.compress_(model, progress=False)
    wcodec.compress_(model.unload(), progress=False)


@pytest.mark.parametrize("kind", ["IA3Config", "LoHaConfig", "VeraConfig", "OFTConfig", "AdaLoraConfig"])
def test_other_tuners_refuse_compressed_layers(kind: str) -> None:
    model, _ = pair()
    options = {"IA3Config": {"feedforward_modules": []}, "AdaLoraConfig": {"total_step": 5}}.get(kind, {})
    with pytest.raises((ValueError, TypeError), match="Target module|compatible with VeRA"):
        peft.get_peft_model(model, getattr(peft, kind)(target_modules=["q_proj"], **options))


def test_experts_stay_as_they_are() -> None:
    model, reference = pair(small_models.mixtral)
    reference.set_experts_implementation("eager")
    targets = ["q_proj", "v_proj"]
    curves = [losses(attached(each, target_modules=targets), [IDS] * 4, 1e-2) for each in (model, reference)]
    assert curves[0] == curves[1] and curves[0][-1] < curves[0][0]


def test_a_trainer(model: Path, tmp_path: Path) -> None:
    wcodec.save_pretrained(wcodec.load_model(model), tmp_path / "small")
    compressed = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32)
    ids = windows(model, 1)[0]
    data = [{"input_ids": row, "labels": row} for row in ids] * 5
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=5, per_device_train_batch_size=4, learning_rate=3e-3, use_cpu=True,
        report_to=[], logging_steps=1, save_strategy="no", disable_tqdm=True, gradient_checkpointing=True,
    )  # fmt: skip
    with pytest.raises(ValueError, match="purely quantized"):
        transformers.Trainer(compressed, arguments, train_dataset=data)
    trainer = transformers.Trainer(peft.get_peft_model(compressed, config()), arguments, train_dataset=data)
    trainer.train()
    curve = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(curve) == 5 and curve[-1] < curve[0]
    trainer.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("first", ["wcodec", "peft"])
def test_whichever_is_imported_first(first: str) -> None:
    code = f"""
import {first}, sys
assert {first != "wcodec"} or "peft" not in sys.modules and "torch" not in sys.modules
from peft import LoraConfig, get_peft_model
import torch, wcodec
assert sum(type(finder).__module__ == "wcodec._integrations.hook" for finder in sys.meta_path) == (
    "transformers.quantizers.auto" not in sys.modules)
model = torch.nn.Sequential(torch.nn.Linear(64, 64))
wcodec.compress_(model, progress=False)
print(type(get_peft_model(model, LoraConfig(target_modules=["0"])).base_model.model[0]).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "LoraCompressedLinear"
