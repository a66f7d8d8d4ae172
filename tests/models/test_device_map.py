"""Maps of accelerate over several devices: what the planner counts, and where compressed layers go then."""

from pathlib import Path
from typing import Any

import pytest
import wcodec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from accelerate import init_empty_weights  # noqa: E402
from small_models import TEXT, llama  # noqa: E402
from transformers.integrations.accelerate import _get_device_map, compute_module_sizes  # noqa: E402
from wcodec._integrations.transformers import WCodecQuantizer, register  # noqa: E402
from wcodec._models import device_map as _device_map  # noqa: E402
from wcodec.nn import CompressedLayer  # noqa: E402
from wcodec.nn._weights.placement import RESIDENCIES  # noqa: E402

register()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("map") / "compressed"
    model = llama(hidden_size=64, intermediate_size=192, num_hidden_layers=6, tie_word_embeddings=False)
    wcodec.compress_(model, progress=False)
    wcodec.save_pretrained(model, place)
    return place


def waiting(folder: Path, device_map: Any = "auto") -> tuple[Any, Any]:
    """A model as it is when transformers asks where its layers go, and the quantizer that is asked."""
    config = transformers.AutoConfig.from_pretrained(folder)
    quantizer = WCodecQuantizer(wcodec.WCodecConfig.from_dict(config.quantization_config), pre_quantized=True)
    with init_empty_weights(include_buffers=False):
        model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.float32)
    files = [str(folder / "model.wcodec")]
    quantizer.preprocess_model(model, device_map=device_map, checkpoint_files=files)
    return model, quantizer


def layers_of(model: Any) -> dict[str, CompressedLayer]:
    return {name: m for name, m in model.named_modules() if isinstance(m, CompressedLayer)}


def test_sizes_are_those_of_compressed_bytes(folder: Path) -> None:
    model, quantizer = waiting(folder)
    sizes, _ = compute_module_sizes(model, quantizer)
    layers = layers_of(model)
    assert all(sizes[name] == layer.stored_bytes for name, layer in layers.items())
    norms = sum(p.nbytes for p in model.parameters())
    buffers = sum(b.nbytes for name, b in model.named_buffers() if not name.endswith("_marker"))
    assert sizes[""] == sum(layer.stored_bytes for layer in layers.values()) + norms + buffers
    assert sizes["model.layers.0"] < 0.4 * sum(m.elements for n, m in layers.items() if ".layers.0." in n) * 4
    # Nothing was put anywhere, and what is counted is not what is there.
    assert {layer.device.type for layer in layers.values()} == {"meta"}


@pytest.mark.parametrize("kind", ["auto", "balanced", "balanced_low_0", "sequential"])
def test_the_planner_fills_devices_by_these_sizes(folder: Path, kind: str) -> None:
    model, quantizer = waiting(folder, kind)
    sizes, _ = compute_module_sizes(model, quantizer)
    room = int(sizes[""] * 0.7)
    found = _get_device_map(model, kind, {0: room, 1: room, 2: room}, quantizer)
    assert quantizer._device_map is found
    used = {place: sum(sizes[name] for name, p in found.items() if p == place) for place in set(found.values())}
    assert set(used) <= {0, 1, 2} and all(n <= room for n in used.values()) and len(used) >= 2
    if kind == "balanced":
        assert max(used.values()) < 0.6 * sizes[""]
    # Had weights counted nothing, or as they were before, all or none of them would fit the first.
    assert sum(used.values()) <= sizes[""]


def test_what_does_not_fit_goes_to_the_hosts_memory(folder: Path) -> None:
    model, quantizer = waiting(folder)
    sizes, _ = compute_module_sizes(model, quantizer)
    found = _get_device_map(model, "sequential", {0: int(sizes[""] * 0.6), "cpu": "1GB"}, quantizer)
    assert set(found.values()) == {0, "cpu"}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device in the place of every GPU, on which nothing is computed."""
    real = _device_map.device_of
    monkeypatch.setattr(
        _device_map, "device_of", lambda place: torch.device("meta") if isinstance(place, int) else real(place)
    )


def test_layers_go_where_the_map_has_them(folder: Path, stand_in: None) -> None:
    model, quantizer = waiting(folder)
    entries = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu", "model": 0, "lm_head": "cpu"}
    quantizer.validate_environment(device_map=entries)
    quantizer.postprocess_model(model)
    layers = layers_of(model)
    # Layers that accelerate would bring to the GPU for each use run there, and stream.
    assert {layer.device.type for layer in layers.values()} == {"meta"}
    streamed = {name for name, layer in layers.items() if layer.residency == "host"}
    assert streamed == {n for n in layers if n.startswith("model.layers.1.") or n == "lm_head"}
    assert layers["lm_head"]._store is not layers["model.layers.0.mlp.up_proj"]._store
    assert layers["lm_head"]._store.container is layers["model.layers.0.mlp.up_proj"]._store.container
    assert all(layer._buffers["_marker"].numel() == 0 for layer in layers.values())


def test_a_block_on_two_devices_is_decoded_in_two_parts(folder: Path, stand_in: None) -> None:
    model, quantizer = waiting(folder)
    places = dict.fromkeys((name for name, _ in model.named_children()), "cpu")
    quantizer.validate_environment(device_map={**places, "model.layers.0.mlp": 0})
    quantizer.postprocess_model(model)
    # The only GPU runs everything; what is on it streams nothing.
    groups = next(iter(layers_of(model).values()))._store.tensor_groups.groups
    streamed = [group for group in groups if any("layers.0." in name for name in group)]
    assert len(streamed) == 1 and not any(".mlp." in name for name in streamed[0])
    kept = layers_of(model)["model.layers.0.mlp.up_proj"]._store.tensor_groups.groups
    assert len(kept) == 1 and len(kept[0]) == 3


@pytest.mark.parametrize("device_map", ["auto", "balanced", "sequential", {"": "cpu"}, "cpu"])
def test_without_a_gpu_all_maps_are_the_cpu(folder: Path, device_map: Any) -> None:
    if torch.cuda.is_available():
        device_map = "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=device_map)
    assert {layer.device.type for layer in layers_of(model).values()} == {"cpu"}
    same = wcodec.load_model(folder)
    with torch.no_grad():
        assert torch.equal(model(TEXT).logits, same(TEXT).logits)
    assert model.get_memory_footprint() == same.get_memory_footprint()


def test_compressing_while_loading(tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=wcodec.WCodecConfig(), device_map="cpu" if torch.cuda.is_available() else "auto"
    )
    wcodec.compress_(model, progress=False)
    with torch.no_grad():
        assert torch.equal(loaded(TEXT).logits, model(TEXT).logits)


def test_a_model_of_several_stores_is_saved_as_one(folder: Path, stand_in: None, tmp_path: Path) -> None:
    model, quantizer = waiting(folder)
    quantizer.validate_environment(device_map={"model": 0, "lm_head": "cpu"})
    quantizer.postprocess_model(model)
    stored = sum(entry.stored_bytes for entry in wcodec.open(folder).stored if entry.scheme != "raw")
    assert wcodec.WCodecModel(model).stored_bytes == stored
    assert len({id(layer._store) for layer in layers_of(model).values()}) == 2


@pytest.mark.parametrize("place", ["mps", "npu:0"])
def test_devices_that_decode_nothing(folder: Path, place: str) -> None:
    with pytest.raises(wcodec.InputError, match=f"cannot go to {place}"):
        waiting(folder, {"model": 0, "lm_head": place})


@pytest.mark.skipif("disk" in RESIDENCIES, reason="layers stay on disk")
def test_disk_is_refused_with_advice(folder: Path) -> None:
    with pytest.raises(wcodec.InputError, match=r"'lm_head' on disk, where compressed layers cannot stay \(give"):
        waiting(folder, {"model": 0, "lm_head": "disk"})


def test_a_layer_without_an_entry(folder: Path, stand_in: None) -> None:
    model, quantizer = waiting(folder)
    quantizer.validate_environment(device_map={"model": 0, "elsewhere": 0})
    with pytest.raises(wcodec.InputError, match="no entry for 'lm_head'"):
        quantizer.postprocess_model(model)
