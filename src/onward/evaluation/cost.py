"""What a token costs: by the paper's formula, and counted in a real step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from ..models.block_recurrent import BlockRecurrentConfig, BlockRecurrentForCausalLM
from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..models.window_recurrent.seam import backbone_layers, watching_attention
from ..ops import windows
from .perplexity import backbone_of, plain


def parameter_count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# --- windows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """FLOPs are per new token; a multiplication with an addition counts as two."""

    formula: float  # the paper's: the backbone's layers only
    counted: float  # all matrix products of a window with a memory: layers, carrier and language model head
    counted_plain: float  # the same without the carrier
    parameters: int
    parameters_added: int

    @property
    def counted_added(self) -> float:
        return self.counted - self.counted_plain


def cost(model: WindowRecurrentForCausalLM) -> Cost:
    """The cost of a model with the window and overlap of its configuration."""
    window, overlap = model.config.window, model.config.overlap
    counted = counted_flops_per_token(model)
    carries = model.config.carrier != "none"
    return Cost(
        formula=formula_flops_per_token(model, window, overlap),
        counted=counted,
        counted_plain=counted_flops_per_token(plain(model, window, overlap)) if carries else counted,
        parameters=parameter_count(model),
        parameters_added=parameter_count(model.carrier),
    )


def formula_flops_per_token(model: PreTrainedModel, window: int, overlap: int = 0) -> float:
    """FLOPs per token by the paper's formula, c T / (T - o) with c = 2 N + 2 L T k.

    N counts the weight matrices of the layers, without embeddings, biases and norms. The language model head
    and the recurrence module are left out.
    """
    windows.check(window, overlap)
    backbone = backbone_of(model)
    config = backbone.config.get_text_config()
    layers = backbone_layers(backbone.base_model)
    weights = sum(p.numel() for p in layers.parameters() if p.dim() > 1)
    per_input = 2 * weights + 2 * config.num_hidden_layers * window * config.hidden_size
    return per_input * window / (window - overlap)


@torch.no_grad()
def counted_flops_per_token(model: WindowRecurrentForCausalLM) -> float:
    """FLOPs per new token of a document's second window, the first one with a memory, for one row.

    Attention is counted as if every token attended to the whole window, which is how it is computed without special
    kernels.
    """
    window, overlap = model.config.window, model.config.overlap
    ids = torch.ones(1, windows.segment_length(2, window, overlap), dtype=torch.long, device=model.device)
    training = model.training
    model.eval()
    try:
        # torch counts sdpa on the CPU as 0.
        with watching_attention():
            state = model(ids[:, :window], use_cache=False, logits_to_keep=1).state
            with FlopCounterMode(display=False) as counter:
                model(ids[:, window:], state=state, use_cache=False)
    finally:
        model.train(training)
    return counter.get_total_flops() / (window - overlap)


# --- blocks -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockCost:
    counted: float  # FLOPs per token of all matrix products, language model head included
    parameters: int
    parameters_without_embeddings: int


def block_cost(model: BlockRecurrentForCausalLM) -> BlockCost:
    parameters = parameter_count(model)
    embeddings = model.model.embed_tokens.weight.numel()
    if not model.config.tie_word_embeddings:
        embeddings += model.lm_head.weight.numel()
    return BlockCost(block_flops_per_token(model.config), parameters, parameters - embeddings)


@torch.no_grad()
def block_flops_per_token(config: BlockRecurrentConfig) -> float:
    """FLOPs per token of a whole block, far enough into a document that the window and the memory are full.

    Counted on the meta device, where tensors have shapes but no values: this takes neither time nor memory, and all
    attention is counted.
    """
    with torch.device("meta"):
        model = BlockRecurrentForCausalLM(config).eval()
    ids = torch.zeros(1, config.window, dtype=torch.long, device="meta")
    state = None
    for _ in range(max(1, config.memory_size // config.window)):
        state = model(ids, state=state, logits_to_keep=1).state
    with FlopCounterMode(display=False) as counter:
        model(ids, state=state)
    return counter.get_total_flops() / config.window
