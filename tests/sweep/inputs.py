"""Inputs for any model, by the arguments of its ``forward`` and what its configuration says of sizes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from .configs import PLAIN_IDS

_TOKENS = 10
_SEED = 7


def forward_inputs(model: Any) -> Iterator[dict[str, Any]]:
    """Arguments to try ``forward`` with, the likeliest first: shapes that configurations do not tell are guessed."""
    names = inspect.signature(model.forward).parameters
    seen: set[str] = set()
    for made in _attempts(model, set(names)):
        made = {name: value for name, value in made.items() if name in names}
        key = repr({name: getattr(value, "shape", value) for name, value in made.items()})
        if made and key not in seen:
            seen.add(key)
            yield made


def generate_inputs(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``generate`` for those of ``forward``: without what it makes itself."""
    out = {name: value for name, value in given.items() if not name.startswith("decoder_")}
    if "input_ids" in out and "attention_mask" not in out:
        out["attention_mask"] = torch.ones_like(out["input_ids"])
    return out


def _attempts(model: Any, names: set[str]) -> Iterator[dict[str, Any]]:
    ids = _ids(model)
    text = {"input_ids": ids, "decoder_input_ids": ids}
    if "input_ids" in names:
        yield text
        yield {"input_ids": ids}
        end = next((e for e in _said(model, "eos_token_id") if isinstance(e, int)), None)
        if end is not None:
            # Some classify what they have read at the end of a text.
            ended = torch.cat([ids, torch.tensor([[end]])], dim=1)
            yield {"input_ids": ended, "decoder_input_ids": ended}
            yield {"input_ids": ended}
    images, sounds = list(_images(model, names)), list(_sounds(model, names))
    for made in (*images, *sounds):
        yield made
    for made in (*images, *sounds):
        yield {**made, **text}
        yield {**made, "input_ids": ids}
        yield {**made, "decoder_input_ids": ids}
    for image, sound in product(images[:2], sounds[:2]):
        yield {**image, **sound, **text}
    yield from _with_images(model, ids)
    for made in _patches(model):
        yield {**made, **text}
        yield made
    yield from _others(model, ids)


def _ids(model: Any) -> torch.Tensor:
    sizes = [getattr(c, "vocab_size", None) for c in _configs(model.config)]
    most = min([s for s in sizes if isinstance(s, int) and s > PLAIN_IDS[0]] or [PLAIN_IDS[1]])
    return torch.randint(PLAIN_IDS[0], min(most, PLAIN_IDS[1]), (1, _TOKENS), generator=_generator())


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(_SEED)


def noise(*shape: int) -> torch.Tensor:
    """The same numbers in each process."""
    return torch.randn(*shape, generator=_generator())


def _configs(config: Any) -> Iterator[Any]:
    from transformers import PreTrainedConfig

    yield config
    for value in list(config.__dict__.values()):
        if isinstance(value, PreTrainedConfig):
            yield from _configs(value)


def _said(model: Any, *names: str) -> list[Any]:
    """Values of the configuration under any of these names, those of configurations within it first."""
    found = [getattr(c, name, None) for c in [*_configs(model.config)][::-1] for name in names]
    return list(dict.fromkeys(tuple(v) if isinstance(v, list) else v for v in found if v))


def _images(model: Any, names: set[str]) -> Iterator[dict[str, Any]]:
    if "pixel_values" not in names and "pixel_values_videos" not in names:
        return
    channels = next((c for c in _said(model, "num_channels", "in_channels", "in_chans") if isinstance(c, int)), 3)
    sizes = [s for s in _said(model, "image_size", "img_size", "crop_size", "input_size") if isinstance(s, int | tuple)]
    frames = next((f for f in _said(model, "num_frames", "frames_per_clip") if isinstance(f, int)), 2)
    for size in [*sizes, 64, 224]:
        high, wide = size if isinstance(size, tuple) else (size, size)
        image = noise(1, channels, high, wide)
        yield {"pixel_values": image}
        yield {"pixel_values_videos": noise(1, frames, channels, high, wide)}
        yield {"pixel_values": noise(1, frames, channels, high, wide)}
        yield {"pixel_values": image[:, None], "image_attention_mask": torch.ones(1, _TOKENS, 1, dtype=torch.long)}
        yield {"pixel_values": image[:, None], "pixel_attention_mask": torch.ones(1, 1, high, wide, dtype=torch.long)}


def _patches(model: Any) -> Iterator[dict[str, Any]]:
    """Images that are patches already."""
    size = next((s for s in _said(model, "patch_size") if isinstance(s, int)), 16)
    shape = torch.tensor([[4, 4]])
    yield {
        "pixel_values": noise(1, 16, 3 * size * size),
        "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long),
        "spatial_shapes": shape,
    }
    depth = next((d for d in _said(model, "temporal_patch_size", "patch_temporal") if isinstance(d, int)), 1)
    grid = torch.tensor([[1, 4, 4]])
    for long in (3 * depth * size * size, 3 * size * size):
        yield {"pixel_values": noise(16, long), "hidden_states": noise(16, long), "grid_thw": grid}
        yield {"pixel_values": noise(16, long), "hidden_states": noise(16, long), "image_grid_thw": grid}
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), dim=-1).reshape(1, 16, 2)
    yield {"pixel_values": noise(1, 16, 3 * size * size), "pixel_position_ids": places}
    rows = torch.cat([torch.arange(16)[:, None] // 4 + 1, torch.arange(16)[:, None] % 4 + 1], dim=1)
    yield {"flattened_patches": torch.cat([rows, noise(16, 3 * size * size)], dim=1)[None]}


def _with_images(model: Any, ids: torch.Tensor) -> Iterator[dict[str, Any]]:
    """Texts with as many places for an image as the model has features of one."""
    token = next((t for t in _said(model, "image_token_id", "image_token_index") if isinstance(t, int)), None)
    features = getattr(model, "get_image_features", None)
    if token is None or features is None:
        return
    for image in _images(model, {"pixel_values"}):
        pixels = image["pixel_values"].to(model.config.dtype or torch.float32) if "pixel_values" in image else None
        if pixels is None or len(image) > 1:
            continue
        try:
            with torch.inference_mode():
                asked = "qformer_input_ids" in inspect.signature(features).parameters
                found = features(pixels, **({"qformer_input_ids": ids} if asked else {}))
        except Exception:
            continue
        found = found if torch.is_tensor(found) else getattr(found, "pooler_output", found)
        found = found[0] if isinstance(found, list | tuple) else found
        if torch.is_tensor(found) and found.dim() >= 2:
            places = torch.full((1, found.numel() // found.shape[-1]), token)
            yield {
                "input_ids": torch.cat([ids[:, :2], places, ids[:, 2:]], dim=1),
                "pixel_values": image["pixel_values"],
                "decoder_input_ids": ids,
                "qformer_input_ids": ids,
            }


def _sounds(model: Any, names: set[str]) -> Iterator[dict[str, Any]]:
    mels = [
        m
        for m in _said(model, "num_mel_bins", "input_feat_per_channel", "feature_size", "feature_projection_input_dim")
        if isinstance(m, int)
    ]
    long = [2 * n for n in _said(model, "max_source_positions") if isinstance(n, int)]
    long += [n for n in _said(model, "max_length") if isinstance(n, int)]
    for name in ("input_features", "input_values"):
        if name not in names:
            continue
        for mel, length in product([*mels, 80], [*long, 64, 128]):
            yield {name: noise(1, mel, length)}
            yield {name: noise(1, length, mel)}
            mask = torch.ones(1, length, dtype=torch.long)
            yield {name: noise(1, length, mel), "attention_mask": mask}
            yield {name: noise(1, mel, length), f"{name}_mask": mask}
            yield {name: noise(1, length, mel), f"{name}_mask": mask}
            yield {name: noise(1, 1, length, mel)}
    for samples in (4000, 16000):
        yield {"input_values": noise(1, samples)}
        yield {"input_values": noise(1, 1, samples)}


def _others(model: Any, ids: torch.Tensor) -> Iterator[dict[str, Any]]:
    """Tables, layouts and series of numbers."""
    boxes = torch.zeros(1, ids.shape[1], 4, dtype=torch.long)
    yield {"input_ids": ids, "bbox": boxes}
    yield {"input_ids": ids, "bbox": boxes, "decoder_input_ids": ids}
    yield {"input_ids": ids, "bbox": torch.zeros(1, ids.shape[1], 8)}
    for image in _images(model, {"pixel_values"}):
        yield {"input_ids": ids, "bbox": boxes, "decoder_input_ids": ids, **image}
    config = model.config
    width, length = getattr(config, "input_size", 1) or 1, getattr(config, "context_length", 32) or 32
    lags = max(getattr(config, "lags_sequence", None) or [0])
    ahead = getattr(config, "prediction_length", 8) or 8
    channels = getattr(config, "num_input_channels", 1)
    features = getattr(config, "num_time_features", 0)
    past = noise(1, length + lags) if width == 1 else noise(1, length + lags, width)
    yield {
        "past_values": past,
        "past_time_features": noise(1, length + lags, features),
        "past_observed_mask": torch.ones_like(past),
        "future_values": noise(1, ahead),
        "future_time_features": noise(1, ahead, features),
    }
    yield {"past_values": noise(1, length, channels)}
    yield {"past_values": noise(1, length)}
    yield {"inputs": noise(1, _TOKENS, getattr(config, "d_model", 64))}
    yield {"inputs": ids}
    yield {"query_embeds": noise(1, 4, getattr(config, "hidden_size", 64) or 64)}
    yield {"inputs_embeds": noise(1, _TOKENS, getattr(config, "hidden_size", 64) or 64)}
    yield {"hidden_states": noise(1, _TOKENS, getattr(config, "hidden_size", 64) or 64)}
    yield {"input_ids": ids, "visual_feats": noise(1, 4, 2048), "visual_pos": noise(1, 4, 4)}
    mask = torch.zeros(1, ids.shape[1], dtype=torch.long)
    for image in _images(model, {"pixel_values"}):
        # As many places as the model makes of an image.
        latent = next((n for n in _said(model, "latent_query_num") if isinstance(n, int)), 64)
        long = torch.cat([mask, torch.ones(1, latent, dtype=torch.long)], dim=1)
        yield {**image, "input_ids": torch.full_like(long, PLAIN_IDS[0]), "image_embeds_position_mask": long}
