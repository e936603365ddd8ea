"""What is in a model: its sizes, what it carries, and what a token costs."""

from __future__ import annotations

from typing import Any

from ..evaluation.cost import block_cost, formula_flops_per_token, parameter_count
from ..evaluation.memory_size import memory_bytes
from ..models.block_recurrent import BlockRecurrentConfig, BlockRecurrentForCausalLM
from ..models.window_recurrent.probe import probe


def facts(model: Any) -> dict[str, str]:
    """Name and value of everything worth knowing, in reading order."""
    return _block_facts(model) if isinstance(model, BlockRecurrentForCausalLM) else _window_facts(model)


def _window_facts(model: Any) -> dict[str, str]:
    config = model.config
    seam = probe(model.backbone, config)
    total, added = parameter_count(model), parameter_count(model.carrier)
    carries = f"{config.carrier}: {config.vector_count} vectors into the {config.space}"
    if config.takes_slots:
        carries = f"{config.carrier}: {config.vector_count} slots of each head ({config.sinks} of first tokens)"
    elif config.carrier == "none":
        carries = "nothing"
    return {
        "model": type(model).__name__,
        "backbone": f"{config.backbone_name or 'made in memory'} ({config.backbone.model_type}, "
        f"{config.num_hidden_layers} layers, width {config.hidden_size})",
        "reads": f"{'left to right' if config.causal else 'both ways'}, windows of {config.window}, "
        f"overlap {config.overlap}",
        "carries": carries,
        "inserted at layers": ", ".join(map(str, config.insertion_layers)),
        "seam taken at layers": ", ".join(map(str, seam.layers)),
        "parameters": f"{total:,} ({added:,} added, {100 * added / total:.2f} %; "
        f"{model.num_parameters(only_trainable=True):,} trainable)",
        "memory": f"{memory_bytes(model):,} bytes per document",
        "FLOPs per token": f"{formula_flops_per_token(model.backbone, config.window, config.overlap):.3g} "
        "(the paper's formula)",
    }


def _block_facts(model: BlockRecurrentForCausalLM) -> dict[str, str]:
    config, cost, numbers = model.config, block_cost(model), state_numbers(model.config)
    listed = ", ".join(f"{count:,} {what}" for what, count in numbers.items())
    carried = []
    if config.recurrent_layers:
        layers = ", ".join(map(str, config.recurrent_layers))
        carried.append(
            f"{config.num_states} states at layer {layers}, gate {config.gate}:{config.gate_configuration}, read "
            f"{'in every layer' if config.feedback else 'there'}"
        )
    if config.memory_size:
        carried.append(
            f"{config.memory_size:,} remembered tokens at layer {config.memory_layer}, of which each token reads "
            f"{config.memory_top_k}"
        )
    return {
        "model": type(model).__name__,
        "layers": f"{config.num_hidden_layers} of width {config.hidden_size}, {config.num_attention_heads} heads of "
        f"{config.head_dim}, MLP of {config.intermediate_size} ({config.hidden_act})",
        "vocabulary": f"{config.vocab_size:,} tokens",
        "reads": f"a window of {config.window} tokens; trained on segments of {config.segment_length}",
        "carries": "; ".join(carried) or "nothing but the window's keys and values",
        "parameters": f"{cost.parameters:,} ({cost.parameters_without_embeddings:,} without embeddings)",
        "state": f"{sum(numbers.values()):,} numbers per document ({listed})",
        "FLOPs per token": f"{cost.counted:.3g} (all matrix products, counted)",
    }


def state_numbers(config: BlockRecurrentConfig) -> dict[str, int]:
    """How many numbers one document carries from block to block, once its window and memory are full."""
    pair = 2 * config.attention_width  # the key and the value of a token
    assert config.num_states is not None
    numbers = {
        "keys and values of the window": config.num_hidden_layers * config.window * pair,
        "in state vectors": len(config.recurrent_layers) * config.num_states * config.hidden_size,
        "remembered": config.memory_size * pair,
    }
    return {what: count for what, count in numbers.items() if count}
