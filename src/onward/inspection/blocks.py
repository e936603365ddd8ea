"""What is in a block-recurrent model: its sizes, what it carries, and what a token costs."""

from __future__ import annotations

from ..evaluation.cost import block_cost
from ..models.block_recurrent import BlockRecurrentConfig, BlockRecurrentForCausalLM


def block_facts(model: BlockRecurrentForCausalLM) -> dict[str, str]:
    config, cost = model.config, block_cost(model)
    numbers = state_numbers(config)
    listed = ", ".join(f"{count:,} {what}" for what, count in numbers.items())
    return {
        "model": type(model).__name__,
        "layers": f"{config.num_hidden_layers} of width {config.hidden_size}, {config.num_attention_heads} heads of "
        f"{config.head_dim}, MLP of {config.intermediate_size} ({config.hidden_act})",
        "vocabulary": f"{config.vocab_size:,} tokens",
        "reads": f"a window of {config.window} tokens; trained on segments of {config.segment_length}",
        "carries": _carried(config),
        "parameters": f"{cost.parameters:,} ({cost.parameters_without_embeddings:,} without embeddings)",
        "state": f"{sum(numbers.values()):,} numbers per document ({listed})",
        "FLOPs per token": f"{cost.counted:.3g} (all matrix products, counted)",
    }


def _carried(config: BlockRecurrentConfig) -> str:
    carried = []
    if config.recurrent_layers:
        layers = ", ".join(map(str, config.recurrent_layers))
        readers = "in every layer" if config.feedback else "there"
        carried.append(
            f"{config.num_states} states at layer {layers}, gate {config.gate}:{config.gate_configuration}, read "
            f"{readers}"
        )
    if config.memory_size:
        carried.append(
            f"{config.memory_size:,} remembered tokens at layer {config.memory_layer}, of which each token reads "
            f"{config.memory_top_k}"
        )
    return "; ".join(carried) or "nothing but the window's keys and values"


def state_numbers(config: BlockRecurrentConfig) -> dict[str, int]:
    """How many numbers are carried for one document from block to block, once window and memory are full."""
    pair = 2 * config.attention_width  # the key and the value of a token
    assert config.num_states is not None
    numbers = {
        "keys and values of the window": config.num_hidden_layers * config.window * pair,
        "in state vectors": len(config.recurrent_layers) * config.num_states * config.hidden_size,
        "remembered": config.memory_size * pair,
    }
    return {what: count for what, count in numbers.items() if count}
