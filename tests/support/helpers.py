"""Tiny models of the two families that the reference covers; random, and the same on every run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    GPT2Config,
    PreTrainedModel,
)

from onward import WindowRecurrenceConfig, add_recurrence

VOCABULARY, WIDTH, LAYERS, HEADS, POSITIONS = 99, 32, 3, 4, 64
_COMMON = {"vocab_size": VOCABULARY, "initializer_range": 0.2}

_AUTO = {
    "model": AutoModel,
    "causal-lm": AutoModelForCausalLM,
    "masked-lm": AutoModelForMaskedLM,
    "question-answering": AutoModelForQuestionAnswering,
    "sequence-classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
}


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """A loaded model, its weights in memory as a new model's are: in a file they begin anywhere, and on some processors
    the last bit of a matrix product hangs on that."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model


def tiny_config(family: str, **overrides: Any) -> GPT2Config | BertConfig:
    """Weights are drawn wide, so that every part of the model matters to its output."""
    if family == "gpt2":
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS}
        ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        return GPT2Config(**{**_COMMON, **sizes, **ends, **overrides})
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": POSITIONS,
    }
    return BertConfig(**{**_COMMON, **sizes, **overrides})


def tiny_model(
    family: str,
    head: str = "causal-lm",
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **overrides: Any,
) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _AUTO[head].from_config(tiny_config(family, **overrides)).to(dtype).eval()
        shake(model)
    return model


def shake(module: nn.Module) -> None:
    """Adds noise to parameters that start as constants (biases, norms, corrections): none may hide a bug."""
    for parameter in module.parameters():
        if parameter.numel() > 1 and parameter.detach().std() == 0:
            parameter.data += 0.3 * torch.randn_like(parameter)


def recurrent(
    family: str,
    head: str = "causal-lm",
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    backbone: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """A tiny window-recurrent model whose carrier has random parameters, none of them zero."""
    model = tiny_model(family, head, dtype=dtype, seed=seed, **(backbone or {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        model = add_recurrence(model, WindowRecurrenceConfig(**fields))
        shake(model.carrier)
    return model


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))
