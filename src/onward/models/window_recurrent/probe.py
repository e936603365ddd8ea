"""Asks a live backbone whether the seam is taken, and whether it reads from left to right only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .insertion import SUPPORTED, Insertion, backbone_layers, inserting

WORKING = (
    "gpt2, opt, gpt_neox, llama (SmolLM2), mistral, qwen3, phi, olmo2, gemma3, bert, roberta, electra, distilbert, "
    "modernbert"
)


class UnsupportedBackboneError(ValueError):
    """The backbone's attention cannot be given extra keys and values."""


@dataclass(frozen=True)
class Probe:
    causal: bool
    layers: tuple[int, ...]  # whose attention went through the seam, counted from 1


def _refuse(model: PreTrainedModel, why: str) -> UnsupportedBackboneError:
    family = model.config.model_type
    return UnsupportedBackboneError(
        f"recurrence cannot be added to {type(model).__name__} of the family {family!r}: {why}. "
        f"Families known to work: {WORKING}."
    )


@torch.no_grad()
def probe(model: PreTrainedModel, wanted: tuple[int, ...], space: str = "layer") -> Probe:
    """Runs the backbone on three tokens, with and without random vectors at the wanted layers."""
    base = cast(PreTrainedModel, model.base_model)
    config = base.config.get_text_config()
    if config._attn_implementation not in SUPPORTED:
        raise _refuse(
            model,
            f"it was loaded with attn_implementation={config._attn_implementation!r}; load it with "
            f"{' or '.join(map(repr, SUPPORTED))}",
        )
    if config.is_encoder_decoder:
        raise _refuse(model, "it is an encoder-decoder, and windows are for encoders or decoders")
    try:
        layers = backbone_layers(base, config.num_hidden_layers)
    except ValueError as error:
        raise _refuse(model, str(error)) from None
    training = model.training
    model.eval()
    try:
        return _run(model, base, layers, wanted, space)
    finally:
        model.train(training)


def _run(
    model: PreTrainedModel, base: PreTrainedModel, layers: nn.ModuleList, wanted: tuple[int, ...], space: str
) -> Probe:
    config = base.config.get_text_config()
    low = max(x for x in (config.pad_token_id, config.bos_token_id, 2) if isinstance(x, int)) + 1
    tokens = torch.arange(3, device=base.device)[None] + (low if low + 4 < config.vocab_size else 0)
    other = tokens.clone()
    other[0, -1] += 1

    def run(ids: Tensor, vectors: dict[int, Tensor], space: str = "layer") -> tuple[Tensor, Insertion]:
        insertion = Insertion(vectors=vectors, positions=[-1.0] if vectors else [], space=space)
        with inserting(base, layers, insertion) as seen:
            output = base(input_ids=ids)
        return output[0], seen

    try:
        plain, seen = run(tokens, {})
        scale = seen.hidden[0].float().std().clamp(min=1e-3)
        chance = torch.Generator().manual_seed(0)  # its own: the user's random numbers stay as they are
        vector = torch.randn(1, 1, config.hidden_size, generator=chance).to(base.device, plain.dtype) * scale
        missing = [layer for layer in wanted if layer not in seen.attended]
        if missing:
            raise _refuse(model, f"its attention at layer {missing[0]} does not go through the seam")
        changed, used = run(tokens, dict.fromkeys(wanted, vector), space)
        if torch.equal(plain, changed) or used.inserted.keys() != set(wanted):
            raise _refuse(model, f"vectors inserted at layers {wanted} change nothing")
        causal = torch.equal(plain[:, 0], run(other, {})[0][:, 0])
    except UnsupportedBackboneError:
        raise
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise _refuse(model, f"the seam fails with {type(error).__name__}: {error}") from error
    return Probe(causal=causal, layers=tuple(sorted(seen.attended)))
