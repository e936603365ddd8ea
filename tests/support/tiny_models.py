"""Tiny random models for tests, the same on every run.

`tiny_model` and `recurrent` make GPT-2 and BERT, which the reference covers; `backbone` and `recurrent_variant` make
every family that recurrence works with, with every carrier: one line in FAMILIES adds a family to all tests.

Weights are drawn wide and nothing stays zero or one, so that every part of a model matters to its output.
Sliding windows are shorter than the windows of the tests, so that both kinds of layer occur.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoConfig, BertConfig, GPT2Config, PreTrainedModel
from transformers.models import auto

from onward import WindowRecurrenceConfig, add_recurrence
from onward.models.window_recurrent import CARRIERS

VOCABULARY, WIDTH, LAYERS, HEADS, POSITIONS, PAD = 99, 32, 3, 4, 64, 0
FEW_POSITIONS = 16  # of the families' backbones
_ENDS = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": PAD}
_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
    "max_position_embeddings": FEW_POSITIONS,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_LOCAL_AND_GLOBAL = ["sliding_attention", "full_attention", "sliding_attention"]

DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": FEW_POSITIONS},
    "opt": {**_SIZES, "ffn_dim": 40, "word_embed_proj_dim": WIDTH},
    "gpt_neox": {**_SIZES, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    "llama": {**_GROUPED, "num_hidden_layers": 3},
    "mistral": {**_GROUPED, "sliding_window": 4},
    "qwen3": {**_GROUPED, "head_dim": 8},
    "phi": _GROUPED,
    "olmo2": _GROUPED,
    "gemma3_text": {
        **_GROUPED,
        "num_hidden_layers": 3,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 4,
        "layer_types": _LOCAL_AND_GLOBAL,
    },
    "smollm3": {**_GROUPED, "no_rope_layers": [1, 0], "layer_types": ["full_attention"] * 2},
    "biogpt": _SIZES,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {**_SIZES, "num_hidden_layers": 3},
    # positions are counted from behind the padding's
    "roberta": {**_SIZES, "max_position_embeddings": FEW_POSITIONS + 2, "pad_token_id": 1},
    "electra": {**_SIZES, "embedding_size": 24},
    "distilbert": {
        "dim": WIDTH,
        "n_layers": 2,
        "n_heads": HEADS,
        "hidden_dim": 40,
        "max_position_embeddings": FEW_POSITIONS,
    },
    "modernbert": {
        **_SIZES,
        "num_hidden_layers": 3,
        "local_attention": 6,
        "global_attn_every_n_layers": 2,
        "cls_token_id": 2,
        "sep_token_id": 2,
    },
}
FAMILIES = {**DECODERS, **ENCODERS}

# Every carrier, and variants of their own, at a size that fits into small windows.
_VARIANTS: dict[str, dict[str, Any]] = {
    "pooled": {"hidden": [12]},
    "paper": {"carrier": "pooled", "residual": False, "hidden": [12]},
    "spans": {"vectors": 3, "rank": 4},
    "history": {"carrier": "spans", "vectors": 5, "rank": 4, "history": 2},
    "fading": {"carrier": "spans", "rank": 4, "history": [3, 2, 1]},
    "constant": {"stands_for": "pooled", "hidden": [12]},
    "recent": {"slots": 5},
    "selected": {"slots": 5},
    "received": {"carrier": "selected", "slots": 5, "score": "received"},
    "key_difference": {"carrier": "selected", "slots": 5, "score": "key_difference"},
    "matched": {"slots": 10},  # one of them merged
    "constant slots": {"carrier": "constant", "stands_for": "selected", "slots": 5},
}
VARIANTS: dict[str, dict[str, Any]] = {name: {"carrier": name} for name in CARRIERS}
VARIANTS |= {name: {"carrier": name, **fields} for name, fields in _VARIANTS.items()}
SHORTEST = {"spans": 3, "history": 3, "fading": 4}
"""Windows that the spans of a variant fit into, in tokens."""
REMEMBERS = [name for name in VARIANTS if name not in ("constant", "constant slots", "none")]

AUTO = {
    "model": auto.AutoModel,
    "causal-lm": auto.AutoModelForCausalLM,
    "masked-lm": auto.AutoModelForMaskedLM,
    "question-answering": auto.AutoModelForQuestionAnswering,
    "sequence-classification": auto.AutoModelForSequenceClassification,
    "token-classification": auto.AutoModelForTokenClassification,
}


def tiny_config(family: str, **overrides: Any) -> GPT2Config | BertConfig:
    """Weights are drawn wide, so that every part of the model matters to its output."""
    if family == "gpt2":
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS}
        ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        return GPT2Config(**{"vocab_size": VOCABULARY, "initializer_range": 0.2, **sizes, **ends, **overrides})
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": POSITIONS,
    }
    return BertConfig(**{"vocab_size": VOCABULARY, "initializer_range": 0.2, **sizes, **overrides})


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
        model = AUTO[head].from_config(tiny_config(family, **overrides)).to(dtype).eval()
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
        model = add_recurrence(model, WindowRecurrenceConfig(**{"carrier": "pooled", "stands_for": "pooled", **fields}))
        shake(model.carrier)
    return model


# -- of any family


def language_head(family: str) -> str:
    return "causal-lm" if family in DECODERS else "masked-lm"


def backbone(
    family: str,
    head: str | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    attention: str = "sdpa",
    seed: int = 0,
    **overrides: Any,
) -> PreTrainedModel:
    """A tiny random model, the same on every call; by default with its language modelling head."""
    fields = {"vocab_size": VOCABULARY, **_ENDS, **FAMILIES[family], **overrides}
    config = AutoConfig.for_model(family, **fields)
    auto_class = AUTO[head or language_head(family)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto_class.from_config(config, attn_implementation=attention).to(dtype)
        randomise(model)
    return model.eval()


def randomise(module: nn.Module) -> None:
    """Draws every parameter anew: matrices keep the size of what passes them, the others move a little."""
    for parameter in module.parameters():
        noise = torch.randn_like(parameter)
        if parameter.dim() == 2:
            parameter.data = noise * 1.5 / parameter.shape[-1] ** 0.5
        else:
            parameter.data += 0.3 * noise


def recurrent_variant(
    family: str,
    variant: str = "pooled",
    head: str | None = None,
    *,
    window: int = 5,
    overlap: int = 0,
    fields: dict[str, Any] | None = None,
    **backbone_options: Any,
) -> Any:
    """A tiny window-recurrent model whose carrier's parameters are random and not zero."""
    model = backbone(family, head, **backbone_options)
    config = WindowRecurrenceConfig(**{"window": window, "overlap": overlap, **VARIANTS[variant], **(fields or {})})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = add_recurrence(model, config)
        randomise(model.carrier)
    return model


shared = cache(recurrent_variant)  # for tests that do not change it


# -- inputs and outputs


def tokens(*shape: int, seed: int = 0) -> Tensor:
    """Token ids without special tokens."""
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows: list[Tensor], side: str, fill: int = PAD) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one batch, padded on the left or the right, and its mask."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), fill)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for r, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[r, place], mask[r, place] = row, 1
    return ids, mask


def unpadded(values: Tensor, mask: Tensor) -> list[Tensor]:
    """The values of each row's real tokens."""
    return [row[marks.bool()] for row, marks in zip(values, mask, strict=True)]


def assert_same(actual: Tensor, expected: Tensor, model: nn.Module) -> None:
    """Equal up to rounding: of float64, or of float32 if the family's norms compute in it."""
    rounding = 2e-5 if any(type(m).__name__.endswith("RMSNorm") for m in model.modules()) else 1e-9
    assert actual.shape == expected.shape
    if expected.numel():
        scale = expected.detach().abs().max().clamp(min=1.0).item()
        assert_close(actual, expected, rtol=0.0, atol=rounding * scale)


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """A loaded model with its weights copied: their alignment in a file can change the last bit of a product."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model
