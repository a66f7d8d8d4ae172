"""Values for architectures that no rule makes small and whole."""

from __future__ import annotations

from typing import Any

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SLIDING = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "head_dim": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
# Two layers whose keys and values others share, one of each kind.
_GEMMA_3N = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "intermediate_size": [128] * 4,
    "activation_sparsity_pattern": [0.95, 0.0, 0.95, 0.0],
    "laurel_rank": 16,
}
_DOTS_3 = {
    "layer_types": ["indexed_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse"],
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "shared_experts_intermediate_size": 64,
    "head_dim": 32,
    "per_layer_config": {1: _SLIDING},
}
_INKLING_2 = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "rel_extent": 64,
    "d_rel": 8,
    "sliding_window_size": 32,
    "unpadded_vocab_size": 500,
    "n_layers_per_attn_res_block": 2,
}
_QWEN_4 = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "ple_embed_dim": 64,
    "ngram_vocab_size_base": 1000,
    "split_ngram_parts": 4,
}
_GEMMA_4_ASSISTANT_TEXT = {
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "num_hidden_layers": 2,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
_MAMBA_2 = {"num_heads": 8, "head_dim": 16, "n_groups": 2}
_HYBRID = {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}

_SERIES = {"prediction_length": 8}
# Detectors whose encoder reads what a backbone of convolutions gives at its last three stages.
_AFTER_HGNET = {"encoder_in_channels": [32, 64, 64]}

# Each stage halves the image, and none may be smaller than a window.
_WINDOWS = {"window_size": 2, "patch_size": 2, "image_size": 32}
# Their own backbones need another library.
_RESNET = {
    "use_timm_backbone": False,
    "backbone": None,
    "use_pretrained_backbone": False,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 16,
        "hidden_sizes": [16, 32, 64, 128],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
    },
}

CARE: dict[str, dict[str, Any]] = {
    "align": {"projection_dim": 320},
    "align_vision_model": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
    "apertus1p5": {
        "image_token_offset": 300,
        "audio_token_offset": 364,
        "vision_config": {"codebook_size": 64},
        "audio_config": {"codebook_size": 64},
    },
    "autoformer": _SERIES,
    "bamba": {"attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "blip-2": {"image_token_index": 500},
    "blt": {"encoder_hash_byte_group_vocab": 512, "num_hidden_layers": 2},
    "chameleon": {"vocabulary_map": {"<image>": 400, "IMGIMGAZ": 401, "IMGIMGBZ": 402}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "conditional_detr": _RESNET,
    "cvt": {"depth": (1, 2, 3)},
    "d_fine": _AFTER_HGNET,
    "dab-detr": _RESNET,
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    # Their defaults have no number of experts, or none that a token is sent to.
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "deepseek_ocr2_text": {"num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse"]},
    "deformable_detr": _RESNET,
    "deimv2": _AFTER_HGNET,
    "detr": _RESNET,
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dots3_note_text": _DOTS_3,
    "donut-swin": _WINDOWS,
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
    "emu3": {"vocabulary_map": {"<image>": 400, "<|visual token 000000|>": 401, "<|extra_200|>": 402}},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {**_ROPE, "mrope_section": [2, 2, 4]},
        "moe_intermediate_size": [64, 32],
    },
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "gemma3n_text": _GEMMA_3N,
    "gemma4_assistant": {"text_config": _GEMMA_4_ASSISTANT_TEXT},
    "granitemoehybrid": _HYBRID,
    "hgnet_v2": {
        "hidden_sizes": [32, 32, 64, 64],
        "stage_in_channels": [48, 32, 32, 64],
        "stage_mid_channels": [16, 16, 16, 16],
        "stage_out_channels": [32, 32, 64, 64],
        "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [2, 2, 2, 2],
    },
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16},
    "informer": _SERIES,
    "inkling2_loop_text": _INKLING_2,
    "inkling2_text": _INKLING_2,
    "instructblip": {"image_token_index": 500},
    "instructblipvideo": {"video_token_index": 500},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "lw_detr": {"projector_scale_factors": [1.0]},
    "lw_detr_vit": {
        "num_hidden_layers": 2,
        "out_indices": [1, 2],
        "window_block_indices": [0],
        "image_size": 64,
        "num_windows": 4,
    },
    "maskformer-swin": _WINDOWS,
    "mamba2": _MAMBA_2,
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "pp_doclayout_v2": {**_AFTER_HGNET, "class_thresholds": [0.5, 0.5]},
    "pp_doclayout_v3": {**_AFTER_HGNET, "x4_feat_dim": 32},
    "pp_doclayout_v4": {**_AFTER_HGNET, "x4_feat_dim": 32},
    "qwen4_exp_text": _QWEN_4,
    "reformer": {
        "axial_pos_shape": (8, 16),
        "axial_pos_embds_dim": (16, 48),
        "attn_layers": ("local", "lsh"),
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "num_buckets": 4,
    },
    "rt_detr": {"encoder_in_channels": [32, 64, 128]},
    "rt_detr_v2": {"encoder_in_channels": [32, 64, 128]},
    "step3p5": {"sliding_window": 32},
    "swin": _WINDOWS,
    "table-transformer": _RESNET,
    "time_series_transformer": _SERIES,
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "xlstm": {"qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "n_mamba_heads": 2,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid"] * 2,
    },
    "zamba2": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "kv_channels": 16,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
    },
}
"""By architecture, arguments of its configuration; those of a configuration within it are a dictionary."""
