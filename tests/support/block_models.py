"""Tiny block-recurrent models, one for every preset and option, with all parameters drawn wide."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM

PRESETS = [
    "XL:512",
    "XL:1024",
    "XL:2048",
    "Slide:12L",
    "Slide:13L",
    "Rec:lstm:dual",
    "Rec:lstm:single",
    "Rec:lstm:skip",
    "Rec:fixed:dual",
    "Rec:fixed:single",
    "Rec:fixed:skip",
    "Feedback:lstm:single",
    "Feedback:fixed:skip",
    "Memorizing:32k",
    "Slide:13L:large",
    "Rec:lstm:single:large",
    "Rec:fixed:skip:large",
]
SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "window": 8,
    "dropout": 0.0,
}
LITTLE_MEMORY: dict[str, Any] = {"memory_size": 16, "memory_top_k": 5}
EXACT_BUCKETS: dict[str, Any] = {"relative_attention_num_buckets": 17, "relative_attention_max_distance": 27}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "not itself": ("Slide:12L", {"attends_to_itself": False}),
    "not itself, with states": ("Rec:fixed:skip", {"attends_to_itself": False}),
    "not itself, with memory": ("Memorizing:32k", {"attends_to_itself": False, **LITTLE_MEMORY}),
    "not itself, with feedback": ("Feedback:lstm:single", {"attends_to_itself": False, "num_states": 5}),
    "tanh in lstm:single": ("Rec:lstm:single", {"gate_tanh": "single"}),
    "tanh in fixed:single": ("Rec:fixed:single", {"gate_tanh": "single"}),
    "no tanh in lstm:skip": ("Rec:lstm:skip", {"gate_tanh": "single"}),
    "no tanh in lstm:dual": ("Rec:lstm:dual", {"gate_tanh": "single"}),
    "no tanh in fixed:dual": ("Rec:fixed:dual", {"gate_tanh": "single"}),
    "one state": ("Rec:fixed:skip", {"num_states": 1}),
    "fewer states": ("Rec:lstm:dual", {"num_states": 5}),
    "more states": ("Rec:fixed:single", {"num_states": 13}),
    "two recurrent layers": ("Rec:lstm:dual", {"recurrent_layers": [1, 2]}),
    "every layer recurrent": ("Rec:fixed:skip", {"recurrent_layers": [1, 2, 3], "num_states": 6}),
    "last layer recurrent": ("Rec:lstm:single", {"recurrent_layers": [3]}),
    "feedback from the last of two": ("Feedback:lstm:single", {"recurrent_layers": [1, 3], "num_states": 6}),
    "feedback from the first layer": ("Feedback:fixed:skip", {"recurrent_layers": [1], "num_states": 11}),
    "narrow heads": ("Rec:lstm:dual", {"head_dim": 5}),
    "wide heads": ("Feedback:fixed:skip", {"head_dim": 12}),
    "wide buckets": ("Rec:fixed:skip", {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 7}),
    # the distances at which T5's formula, in float32, misses its bucket by rounding
    "buckets that begin at 12 and 18": ("Slide:12L", {"num_hidden_layers": 1, "window": 20, **EXACT_BUCKETS}),
    "little memory": ("Memorizing:32k", LITTLE_MEMORY),
    "memory in the first layer": ("Memorizing:32k", {**LITTLE_MEMORY, "memory_layer": 1, "memory_top_k": 1}),
    "memory and states": ("Rec:lstm:skip", {**LITTLE_MEMORY, "memory_layer": 2, "recurrent_layers": [2]}),
    "memory and feedback": ("Feedback:fixed:skip", {**LITTLE_MEMORY, "memory_layer": 3, "recurrent_layers": [2]}),
    "gelu": ("Rec:lstm:dual", {"hidden_act": "gelu"}),
    "blocks of one token": ("Rec:fixed:dual", {"window": 1, "num_states": 4}),
    "blocks of three tokens": ("Feedback:lstm:single", {"window": 3, "num_states": 4}),
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in PRESETS} | OPTIONS


def tiny(case: str, **overrides: Any) -> BlockRecurrentConfig:
    preset, fields = CASES[case]
    return BlockRecurrentConfig.preset(preset, **{**SIZES, **fields, **overrides})


def shapes(config: BlockRecurrentConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of a BlockRecurrentModel."""
    d, ff, heads, states = config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_states
    width = heads * config.head_dim
    found: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, d), "norm.weight": (d,)}

    def gate(name: str, fan_in: int) -> dict[str, tuple[int, ...]]:
        if config.gate == "fixed":
            return {f"{name}.kernel.weight": (d, fan_in), f"{name}.kernel.bias": (d,), f"{name}.forget": (d,)}
        return {f"{name}.kernel.weight": (3 * d, fan_in), f"{name}.kernel.bias": (3 * d,)}

    for number in range(1, config.num_hidden_layers + 1):
        recurrent = number in config.recurrent_layers
        reads = recurrent or config.feedback
        layer: dict[str, tuple[int, ...]] = {
            "attention_norm.weight": (d,),
            "attention.projection.weight": ((4 if reads else 3) * width, d),
            "attention.scale": (heads,),
            "attention.position_bias.weight": (config.relative_attention_num_buckets, heads),
            "attention.output.weight": (d, (2 if reads else 1) * width),
            "mlp_norm.weight": (d,),
            "mlp.up.weight": (ff, d),
            "mlp.down.weight": (d, ff),
        }
        if reads:
            layer["attention.state_scale"] = (heads,)
        if number == config.memory_layer:
            layer["attention.memory_gate"] = (heads,)
        if recurrent:
            layer |= {
                "cell.norm.weight": (d,),
                "cell.ids": (states, d),
                "cell.initial": (states, d),
                "cell.projection.weight": (4 * width, d),
                "cell.self_scale": (heads,),
                "cell.token_scale": (heads,),
            }
            if config.gate_configuration == "dual":
                layer |= {"cell.mlp_norm.weight": (d,), "cell.mlp_up.weight": (ff, d)}
            if config.gate_configuration == "single":
                layer["cell.mlp_up.weight"] = (ff, 2 * width)
            if config.gate_configuration != "single":
                layer |= gate("cell.attention_gate", 2 * width)
            if config.gate_configuration != "skip":
                layer |= gate("cell.mlp_gate", ff)
        found |= {f"layers.{number - 1}.{name}": shape for name, shape in layer.items()}
    return found


def draw(config: BlockRecurrentConfig, seed: int = 0) -> dict[str, Tensor]:
    """Parameters in float64 with which every part of the model matters to its output."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, shape in shapes(config).items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("norm.weight"):
            x = 1 + 0.3 * x
        elif name.endswith("scale"):
            x = 2 + 0.5 * x
        elif len(shape) == 2 and not name.endswith(("embed_tokens.weight", "position_bias.weight", "ids", "initial")):
            x = 1.5 * x / math.sqrt(shape[1])
        drawn[name] = x.requires_grad_()
    return drawn


def build(case: str, dtype: torch.dtype = torch.float64, **overrides: Any) -> Any:
    """A language model in which every part matters."""
    config = tiny(case, **overrides)
    model = BlockRecurrentForCausalLM(config).to(dtype).eval()
    model.model.load_state_dict(draw(config))
    return model


def without_effect(config: BlockRecurrentConfig) -> set[str]:
    """Parameters of attention scores have no effect if there is only one key."""
    names = set()
    if config.num_states == 1:
        names |= {"attention.state_scale", "cell.self_scale"}
    if config.window == 1:
        names |= {"attention.scale", "attention.position_bias.weight"}
    return {name for name in shapes(config) if name.split(".", 2)[-1] in names}
