"""Small configurations of every architecture of transformers, derived from its defaults.

A configuration begins as its class makes it without arguments. Numbers whose names are in :data:`SIZES` become small,
never larger than they were, and what is ``None`` stays so: the class derives it. Lists that have an entry for each
layer keep entries of a few layers, among them one of each kind, so that a hybrid has attention and state space layers.
Configurations within a configuration are made in the same way. If a model of that does not work, groups of sizes stay
at their defaults, one after the other (:data:`LEFT`), as long as the model is small enough. :data:`CARE` has, by
architecture, values that no rule gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .care import CARE

AUTO_CLASSES = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "AutoModelForSpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "AutoModelForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForCTC": "MODEL_FOR_CTC_MAPPING_NAMES",
    "AutoModelForAudioClassification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForObjectDetection": "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "AutoModel": "MODEL_MAPPING_NAMES",
}
"""The Auto classes that are swept, and where transformers lists the architectures of each."""

VOCABULARY = 512
# Below are ids of tokens with a meaning, and above ids that configs name, such as those of images.
PLAIN_IDS = (3, VOCABULARY - 64)

_WIDTH, _INNER, _HEADS, _HEAD = 64, 128, 4, 16


def _same(value: Any, *names: str) -> dict[str, Any]:
    return dict.fromkeys(names, value)


SIZES: dict[str, dict[str, Any]] = {
    "vocabulary": {
        **_same(VOCABULARY, "vocab_size", "text_vocab_size", "vocab_size_per_layer_input", "shape_vocab_size"),
        **_same(
            VOCABULARY, "pronunciation_vocab_size", "t2u_vocab_size", "char_vocab_size", "unit_hifi_gan_vocab_size"
        ),
        **_same(VOCABULARY, "codebook_size", "num_hash_buckets", "audio_vocab_size", "text_encoder_vocab_size"),
        **_same(
            VOCABULARY,
            "num_embeddings",
            "num_bpe_labels",
            "num_wordpiece_labels",
            "src_vocab_size",
            "tgt_vocab_size",
            "entity_vocab_size",
        ),
        **_same(128, "max_position_embeddings", "n_positions", "n_ctx", "max_2d_position_embeddings", "context_length"),
        **_same(128, "max_target_positions", "seq_length", "max_seq_len", "max_sequence_length", "model_max_length"),
        **_same(128, "original_max_position_embeddings", "initial_context_length"),
        **_same(64, "max_source_positions"),
        **_same(32, "sliding_window", "attention_window_size", "attention_chunk_size", "local_attention"),
    },
    "depth": {
        **_same(
            2, "num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "depth"
        ),
        **_same(2, "num_encoder_layers", "num_decoder_layers", "encoder_num_hidden_layers", "num_adapter_layers"),
        **_same(2, "decoder_num_hidden_layers", "decoder_num_layers", "encoder_num_layers", "num_blocks", "n_blocks"),
        **_same(2, "text_encoder_num_layers", "query_dec_layers", "num_spatial_layers", "num_temporal_layers"),
        **_same(2, "num_self_attends_per_block", "speech_encoder_layers", "t2u_encoder_layers", "t2u_decoder_layers"),
        **_same(
            2,
            "pred_num_hidden_layers",
            "num_auxiliary_layers",
            "num_timestamp_prediction_layers",
            "posterior_encoder_num_wavenet_layers",
        ),
        **_same(2, "llm_num_layers", "entity_vocab_layers", "l_layers", "x_layers", "r_layers", "num_detector_layers"),
        **_same(1, "first_k_dense_replace", "num_dense_layers", "num_global_layers", "num_nextn_predict_layers"),
        **_same(1, "moe_layer_start_index", "num_mem_blocks"),
    },
    "width": {
        **_same(
            _WIDTH, "hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "word_embed_proj_dim"
        ),
        **_same(_WIDTH, "projection_dim", "out_hidden_size", "output_hidden_size", "encoder_hidden_dim", "hidden_dim"),
        **_same(
            _WIDTH, "decoder_hidden_size", "encoder_hidden_size", "pooler_output_size", "hidden_size_global", "emb_dim"
        ),
        **_same(_WIDTH, "input_embedding_size", "output_embedding_size", "decoder_hidden_dim", "mm_embed_dim"),
        **_same(_WIDTH, "text_encoder_width", "mask_dim", "feature_size", "fpn_feature_size", "d_embed", "lru_width"),
        **_same(_WIDTH, "mask_feature_size", "neck_hidden_size", "pred_hidden_size", "vision_embed_dim", "output_dim"),
        **_same(_WIDTH, "text_hidden_size", "vision_hidden_size", "audio_hidden_size", "projector_hidden_size"),
        **_same(_WIDTH, "d_latents", "d_text", "classifier_proj_size", "visual_embedding_dim", "speaker_embedding_dim"),
        **_same(_WIDTH, "shared_embed_dim", "token_dim", "latent_dim", "fpn_hidden_size", "codevector_dim"),
        **_same(_WIDTH, "proj_codevector_dim", "speech_decoder_prenet_units", "text_embed_dim", "modality_width"),
        **_same(_WIDTH, "vision_output_dim", "projector_input_dim", "projector_output_dim", "codebook_dim"),
        **_same(
            _WIDTH,
            "entity_emb_size",
            "adapter_in_dim",
            "adapter_input_size",
            "cross_hidden_size",
            "projector_out_channels",
            "backbone_hidden_size",
        ),
        **_same(_WIDTH, "adapter_output_size", "adapter_out_dim", "adapter_hidden_dim"),
        **_same(32, "pronunciation_embed_dim", "shape_embed_dim", "embedding_rank", "hc_lowrank"),
        **_same(16, "hidden_size_per_layer_input", "relpe_dim", "d_pos"),
    },
    "inner": _same(
        _INNER,
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        "d_ff",
        "ffn_hidden_size",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "d_inner",
        "block_ff_dim",
        "feed_forward_size",
        "mlp_dim",
        "hidden_dim_ff",
        "decoder_intermediate_size",
        "speech_encoder_intermediate_size",
        "t2u_encoder_ffn_dim",
        "t2u_decoder_ffn_dim",
        "ff_dim",
        "mlp_hidden_size",
        "task_encoder_hidden_dim",
        "encoder_dim_feedforward",
        "decoder_dim_feedforward",
        "dim_feedforward",
        "encoder_feedforward_dim",
        "alignment_intermediate_size",
        "encoder_intermediate_size",
        "shared_intermediate_size",
        "projector_intermediate_size",
        "vision_intermediate_size",
        "intermediate_size_mlp",
        "dense_intermediate_size",
        "feed_forward_hidden_size",
    ),
    "heads": {
        **_same(_HEADS, "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"),
        **_same(_HEADS, "decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"),
        **_same(
            _HEADS, "attention_heads", "decoder_num_attention_heads", "encoder_num_attention_heads", "num_query_heads"
        ),
        **_same(_HEADS, "speech_encoder_attention_heads", "t2u_encoder_attention_heads", "t2u_decoder_attention_heads"),
        **_same(
            _HEADS,
            "pred_num_attention_heads",
            "cross_num_attention_heads",
            "num_cross_attention_heads",
            "num_self_attention_heads",
        ),
        **_same(_HEADS, "decoder_self_attention_heads", "decoder_cross_attention_heads"),
        **_same(_HEADS, "num_sliding_attention_heads", "cross_num_key_value_heads"),
        **_same(2, "num_key_value_heads", "n_kv_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads"),
        **_same(2, "num_key_value_attention_heads"),
    },
    "head": {
        **_same(
            _HEAD,
            "head_dim",
            "cross_head_dim",
            "d_kv",
            "d_head",
            "attention_head_dim",
            "kv_channels",
            "attention_head_size",
        ),
        **_same(_HEAD, "global_head_dim", "rotary_dim"),
    },
    "experts": {
        **_same(4, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"),
        **_same(2, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k"),
        **_same(1, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "n_group", "topk_group"),
        **_same(1, "num_shared_expert", "num_expert_group"),
        **_same(_WIDTH, "moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"),
        **_same(_WIDTH, "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "expert_intermediate_size"),
        **_same(_WIDTH, "expert_dim", "router_hidden_size", "expert_hidden_size"),
        **_same(_WIDTH, "moe_hidden_size", "share_expert_dim", "shared_experts_intermediate_size"),
    },
    "latent": {
        **_same(32, "q_lora_rank", "kv_lora_rank", "v_head_dim", "qk_head_dim", "o_lora_rank", "index_head_dim"),
        **_same(16, "qk_rope_head_dim", "qk_nope_head_dim", "index_topk"),
        **_same(2, "index_n_heads"),
    },
    "state": {
        **_same(
            16, "state_size", "mamba_d_state", "ssm_state_size", "time_step_rank", "mamba_dt_rank", "mamba_head_dim"
        ),
        **_same(16, "linear_key_head_dim", "linear_value_head_dim", "mamba_d_head", "mamba_headdim", "chunk_size"),
        **_same(16, "mamba_chunk_size"),
        **_same(8, "mamba_n_heads", "n_mamba_heads", "mamba_num_heads"),
        **_same(128, "mamba_d_ssm"),
        **_same(4, "linear_num_value_heads"),
        **_same(2, "linear_num_key_heads", "linear_num_heads"),
    },
    "vision": {
        **_same(32, "image_size", "img_size", "input_size", "max_image_size", "base_channels"),
        **_same(8, "patch_size", "num_queries", "num_query_tokens", "num_detection_tokens", "num_prompts"),
        **_same(8, "qformer_num_queries", "num_register_tokens", "num_latents"),
        **_same(4, "num_frames", "frames_per_clip"),
        **_same(32, "window_size"),
    },
    "audio": {
        **_same(32, "num_mel_bins", "input_feat_per_channel", "tdnn_channels", "xvector_output_dim"),
        **_same(16, "num_conv_pos_embeddings", "num_codevectors_per_group"),
        **_same(2, "num_conv_pos_embedding_groups"),
        **_same(8, "num_filters"),
        **_same(64, "upsample_initial_channel", "conv_channels", "subsampling_conv_channels", "upsample_groups"),
    },
}
"""Small values by the names that configurations give them, in groups of what belongs together."""

LEFT: tuple[tuple[str, ...], ...] = (
    (),
    ("head",),
    ("head", "heads"),
    ("vision",),
    ("audio",),
    ("latent",),
    ("state",),
    ("experts",),
    ("latent", "head", "heads", "state"),
    ("lists",),
    ("depth",),
    ("depth", "lists", "vision"),
    ("width", "heads", "head", "lists"),
    ("width", "heads", "head", "inner", "vision", "audio", "lists", "latent"),
    ("width", "heads", "head", "inner", "vision", "audio", "lists", "latent", "state", "depth"),
)
"""Groups that stay at their defaults, in the order in which it is tried."""

# Lists whose entries are widths of stages, which all shrink alike, and lists of how many blocks each stage has.
_WIDTHS = re.compile(
    "(^|_)(hidden_sizes|embed_dims?|embed_dim_per_stage|layer_dims|dims|conv_dim|hidden_dims|neck_hidden_sizes|tdnn_dim"
    "|decoder_in_channels)$"
)
_DEPTHS = re.compile(r"(^|_)(depths|blocks_per_stage|num_blocks|layers_per_stage|depth)$")
_TOKEN = re.compile(r"(^|_)token_(id|index)$")
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth", "decoder_layers", "encoder_layers")
_MOST_LAYERS = 4


def architectures(auto: str) -> list[str]:
    """Names of the architectures that the installed transformers lists for an Auto class."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    names = getattr(modeling_auto, AUTO_CLASSES[auto], {})
    return [name for name in names if name in CONFIG_MAPPING_NAMES]


def small_configs(architecture: str, auto: str) -> Iterator[Any]:
    """Configurations of an architecture for an Auto class, the best first: the next one is for a model that fails."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[architecture]
    care = dict(CARE.get(architecture, {}))
    if auto == "AutoModelForCausalLM" and _is_encoder(kind):
        care["is_decoder"] = True
    error: Exception | None = None
    made = False
    seen: set[str] = set()
    for left in LEFT:
        try:
            config = _small(kind, None, left, {}, care)
        except Exception as failure:
            error = error or failure
            continue
        text = config.to_json_string(use_diff=False)
        if text not in seen:
            seen.add(text)
            made = True
            yield config
    if not made and error is not None:
        raise error


def _is_encoder(kind: Any) -> bool:
    try:
        config = kind()
    except Exception:
        return False
    return getattr(config, "is_decoder", None) is False and not getattr(config, "is_encoder_decoder", False)


def _small(kind: Any, given: Any, left: tuple[str, ...], ids: dict[str, int], care: Mapping[str, Any]) -> Any:
    """A small configuration of a class. ``given`` is the one that another configuration has of it by default."""
    from transformers import AutoConfig, PreTrainedConfig

    base = given if given is not None else _plain(kind, care)
    sizes = {name: value for group, names in SIZES.items() if group not in left for name, value in names.items()}
    values = dict(base.__dict__)
    values["ignore_keys_at_rope_validation"] = getattr(base, "ignore_keys_at_rope_validation", ())
    layers = next((values[name] for name in _LAYERS if isinstance(values.get(name), int)), 0)
    if not layers:
        layers = len(values.get("layers_block_type") or ())
    kept = [] if "depth" in left else _kept_layers(values, layers)
    new: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if isinstance(care.get(name), dict) and "model_type" in care[name]:
            new[name] = AutoConfig.for_model(**care[name])
        elif isinstance(value, PreTrainedConfig):
            new[name] = _small(type(value), value, left, ids, {**CARE.get(value.model_type, {}), **care.get(name, {})})
        elif _is_number(value) and name in _LAYERS and kept:
            new[name] = len(kept)
        elif _is_number(value) and name in sizes:
            new[name] = min(value, sizes[name])
        elif _TOKEN.search(name):
            found = _token(name, value, ids, base)
            if found is not None:
                new[name] = found
        elif name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            sections[name] = value
        elif name in ("num_heads", "encoder_num_heads") and isinstance(value, list | tuple) and "width" not in left:
            if _is_number(values.get("embed_dim")):
                # Stages that double a width, which becomes a power of two.
                new[name] = type(value)(2 * 2**i for i in range(len(value)))
        elif isinstance(value, list | tuple) and kept and len(value) == layers and layers > 2:
            shorter = type(value)(value[i] for i in kept)
            new[name] = (None if "lists" in left else _list(name, shorter)) or shorter
        elif isinstance(value, list | tuple) and "lists" not in left:
            found = _list(name, value)
            if found is not None:
                new[name] = found
    for name, value in care.items():
        if not isinstance(new.get(name), PreTrainedConfig):
            new[name] = value
    indices = getattr(base, "_out_indices", None)
    if given is not None and kept and indices and max(indices) > len(kept):
        # The last of the stages that are left, which are its layers.
        new["out_indices"] = [len(kept)]
    new.update({name: care.get(name) or _rope(value, values, new) for name, value in sections.items()})
    return kind(**{**_own(base, given is not None), **new})


def _rope(value: dict[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of rotary positions whose sections are parts of a small head."""
    section = value.get("mrope_section")
    if not section and "mrope_section" in (old.get("ignore_keys_at_rope_validation") or ()):
        # Its class has sections of larger heads.
        section = [16, 24, 24]
    if not section:
        return value
    now = {**old, **new}
    head = now.get("head_dim") or now["hidden_size"] // now["num_attention_heads"]
    half = int(now.get("qk_rope_head_dim") or head * value.get("partial_rotary_factor", 1.0)) // 2
    small = [half * part // sum(section) for part in section]
    return {**value, "mrope_section": [*small[:-1], half - sum(small[:-1])]}


def _plain(kind: Any, care: Mapping[str, Any]) -> Any:
    try:
        return kind()
    except Exception:
        # Some classes find their own defaults invalid.
        return kind(**care)


def _own(base: Any, is_given: bool) -> dict[str, Any]:
    """Values by which a configuration that another one holds differs from its class's defaults."""
    if not is_given:
        return {}
    plain = type(base)().__dict__
    out = {}
    if getattr(base, "_out_indices", None) is not None:
        # A backbone's stages, which it derives from each other.
        out["out_indices"] = list(base._out_indices)
    for name, value in base.__dict__.items():
        if name.startswith("_") or name in ("dtype", "torch_dtype", "transformers_version", "architectures"):
            continue
        if isinstance(value, bool | int | float | str | list | tuple | type(None)) and plain.get(name) != value:
            out[name] = value
    return out


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kept_layers(values: Mapping[str, Any], layers: int) -> list[int]:
    """Layers that stay where lists say something of each layer: one of each kind, two at least."""
    lists = [v for v in values.values() if isinstance(v, list | tuple) and len(v) == layers and layers > 2]
    kept: list[int] = []
    seen = set()
    for i in range(layers):
        kind = repr([v[i] for v in lists if isinstance(v[i], str | bool)])
        if lists and kind not in seen and len(kept) < _MOST_LAYERS:
            seen.add(kind)
            kept.append(i)
    return sorted({*kept, kept[-1] + 1 if kept[-1] + 1 < layers else 0}) if len(kept) == 1 else kept


def _token(name: str, value: Any, ids: dict[str, int], base: Any) -> Any:
    """An id below the vocabulary's size, the same for the same name everywhere."""
    if name in _ENDS:
        if isinstance(value, list | tuple):
            return [_ENDS[name]]
        return _ENDS[name] if _is_number(value) and value >= PLAIN_IDS[1] else None
    if not _is_number(value) or value < PLAIN_IDS[1]:
        return None
    key = name.replace("_index", "_id")
    return ids.setdefault(key, VOCABULARY - 1 - len(ids))


def _list(name: str, value: list[Any] | tuple[Any, ...]) -> Any:
    if not value or not all(_is_number(v) and v > 0 for v in value):
        return None
    if _DEPTHS.search(name):
        return type(value)(min(v, 1) for v in value)
    if _WIDTHS.search(name):
        by = 1
        # Halves keep what groups and heads divide by.
        while min(value) // (by * 2) >= 16 and max(value) // by > _WIDTH and all(v % (by * 16) == 0 for v in value):
            by *= 2
        return type(value)(v // by for v in value)
    return None
