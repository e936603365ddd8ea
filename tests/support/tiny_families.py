"""Tiny random models of every text family that transformers knows, made from the names that a configuration has.

Sizes are set by name, wherever a configuration has the name; what a family asks for beyond that stands in `SPECIAL`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tiny_models import AUTO, randomise
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models import auto
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LARGEST = 100_000_000  # parameters: what is larger has a size that no name below sets

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "embedding_size": 32,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # mixtures of experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "moe_top_k": 2,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
    "expert_ffn_hidden_size": 24,
    "ffn_hidden_size": 40,
    "shared_expert_intermediate_size": 24,
    "shared_intermediate_size": 24,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    # attention with small inner widths
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 4,
    "sliding_window": 4,
    "rotary_dim": 4,
    # two stacks in one configuration
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    # recurrent layers
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "n_mamba_heads": 8,
    "mamba_d_head": 8,
    "mamba_head_dim": 8,
    "mamba_d_state": 8,
    "linear_num_heads": 4,
    "linear_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    # what else is large
    "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "entity_vocab_size": 9,
    "entity_emb_size": 8,
    "pronunciation_vocab_size": 99,
    "shape_vocab_size": 99,
    "ngram_vocab_size_base": 64,
    "split_ngram_parts": 1,
    "num_latents": 4,
    "d_latents": 32,
    "d_model": 32,
    "image_size": 28,
    "patch_size": 14,
    "depth": 2,
    "num_heads": 4,
    "out_hidden_size": 32,
    "zero_expert_num": 2,
}
_LOCAL_AND_GLOBAL = ["sliding_attention", "full_attention", "sliding_attention"]
_HYBRID = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]}}


SPECIAL: dict[str, dict[str, Any]] = {
    "bailing_hybrid": _HYBRID,
    "qwen3_next": _HYBRID,
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "kimi_linear": _HYBRID,
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba"]},
    "zamba": {"layers_block_type": ["mamba", "hybrid", "hybrid"]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
    "mamba2": {"num_heads": 8},
    "gpt_neo": {"attention_types": [[["global", "local", "global"], 1]]},
    "cohere_compass_text": {
        "rope_parameters": dict.fromkeys(_LOCAL_AND_GLOBAL, {"rope_type": "default", "rope_theta": 10_000.0}),
        "layer_types": _LOCAL_AND_GLOBAL,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10_000.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "falcon_h1": {"mamba_d_ssm": 64},
    "funnel": {"block_sizes": [1, 1, 1], "architectures": ["FunnelModel"]},
    "lilt": {"hidden_size": 48},
    "qwen4_exp_text": _HYBRID
    | {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8}
    | {"indexer_budget": 8, "indexer_compress_ratio": 2, "ple_embed_dim": 32, "ple_layer_ids": [1]},
    "xlstm": {"hidden_size": 64, "qk_dim_factor": 1.0},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "gemma3n_text": {"layer_types": _LOCAL_AND_GLOBAL},
    "esmc": {"num_key_value_heads": 4},
    "glm5_next_text": {"index_topk": 16, "qk_rope_head_dim": 0, **_HYBRID},
    "neomme": {"head_dim": 16},
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16]},
    **dict.fromkeys(
        ("cosmos3_edge_text", "hunyuan_vl_text", "qwen2_vl_text", "qwen2_5_vl_text"),
        _SECTIONS,
    ),
    **dict.fromkeys(
        ("glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text"),
        _SECTIONS | {"head_dim": 16},  # half of it is rotated
    ),
}
"""What a family asks for beyond its names."""


_MORE_THAN_TEXT = {
    # parts of a configuration
    *("text_config", "vision_config", "audio_config", "audio_encoder", "audio_encoder_config"),
    # types that say it by no part
    *("blip_2_qformer", "layoutlmv2", "layoutlmv3", "lxmert", "vilt", "visual_bert", "vits"),
    # no model of its own: it drafts tokens from another model's keys and values
    *("gemma4_assistant",),
}


@cache
def text_families() -> dict[str, list[str]]:
    """Every type that reads token ids, with the heads that transformers has for it: all with a head for language, and
    the bare ones that are made of one configuration and take token ids alone."""
    causal, masked = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    found: dict[str, list[str]] = {}
    for family in sorted({*causal, *masked, *modeling_auto.MODEL_MAPPING_NAMES}):
        heads = [head for head, listed in (("causal-lm", causal), ("masked-lm", masked)) if family in listed]
        if family in modeling_auto.MODEL_MAPPING_NAMES and (heads or _reads_token_ids(family)):
            heads.append("model")
        kind = CONFIG_MAPPING[family]
        if heads and kind.__module__.startswith("transformers.") and not _MORE_THAN_TEXT & {family, *kind.sub_configs}:
            found[family] = heads
    return found


def _reads_token_ids(family: str) -> bool:
    kind = CONFIG_MAPPING[family]
    if kind.sub_configs or "vocab_size" not in {*kind.__dataclass_fields__, *kind.attribute_map}:
        return False
    if getattr(kind, "is_encoder_decoder", False):
        return False
    try:
        model = auto.AutoModel._model_mapping[kind]
    except ValueError:  # listed, but transformers cannot find the class itself
        return False
    return (model[0] if isinstance(model, tuple) else model).main_input_name == "input_ids"


def tiny_config(family: str, head: str, **fields: Any) -> PreTrainedConfig:
    kind = CONFIG_MAPPING[family]
    config = kind(**_sizes(kind, SPECIAL.get(family, {}) | fields))
    if head == "causal-lm" and hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


def _sizes(kind: type[PreTrainedConfig], special: dict[str, Any]) -> dict[str, Any]:
    """The sizes that a kind of configuration has a name for, also those of the configurations inside it."""
    names = {*kind.__dataclass_fields__, *kind.attribute_map}
    own = {name: value for name, value in SIZES.items() if name in names and name not in kind.attribute_map}
    own |= {kind.attribute_map[name]: SIZES[name] for name in SIZES if name in kind.attribute_map}
    if "kv_lora_rank" in names and "num_key_value_heads" in names:
        own["num_key_value_heads"] = own["num_attention_heads"]  # every head has a key of its own
    for name, inner in kind.sub_configs.items():
        if isinstance(inner, type) and inner is not AutoConfig and name not in special:
            own[name] = _sizes(inner, {})
    return own | special


def tiny_model(family: str, head: str, *, seed: int = 0, stock: bool = False, **fields: Any) -> PreTrainedModel:
    """A random model whose every part matters to its output, or a `stock` one as transformers starts it; in float32,
    with sdpa, or eager attention where there is no other."""
    make = AUTO[head].from_config
    with torch.device("meta"):
        size = sum(p.numel() for p in make(tiny_config(family, head, **fields)).parameters())
    if size > LARGEST:
        raise ValueError(f"a tiny {family} has {size:,} parameters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(tiny_config(family, head, **fields)).to(torch.float32)
        if not stock:
            randomise(model)
    return model.eval()
