"""Mixtures of experts: causal whatever the seed, their heads on windows, and the loss of their router."""

from __future__ import annotations

import pytest
import torch
from family_table import check, recurrent_of
from tiny_families import tiny_model
from tiny_models import tokens
from torch.testing import assert_close

from onward import add_recurrence

EXPERTS = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss", "deepseek_v3", "dots1", "glm4_moe"]


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "qwen3_moe"])
@pytest.mark.parametrize("stock", [True, False])
@torch.no_grad()
def test_rounding_never_makes_an_encoder_of_a_decoder(family: str, stock: bool) -> None:
    """Experts work on batches of other sizes when another token changes, and round otherwise."""
    ids = tokens(2, 13)
    for seed in range(5):
        model = add_recurrence(tiny_model(family, "model", seed=seed, stock=stock), window=5, overlap=1)
        assert model.config.causal
        first = model(ids[:, :7])
        second = model(ids[:, 7:], state=first.state)
        whole = model(ids, use_cache=False).last_hidden_state
        cut = torch.cat([first.last_hidden_state, second.last_hidden_state], dim=1)
        assert_close(cut, whole, rtol=0, atol=1e-4 * whole.abs().max().item())


@pytest.mark.parametrize("variant", ["spans", "recent"])
@pytest.mark.parametrize("family", [*EXPERTS, "gemma4_text"])
def test_a_causal_language_model_reads_generates_and_learns(family: str, variant: str) -> None:
    """Their heads ask for all that their base returns: a router's logits, shared keys and values."""
    check(recurrent_of(tiny_model(family, "causal-lm"), variant), tiny_model(family, "causal-lm"), "causal-lm")


def test_checkpointing_gives_the_gradients_of_plain_backpropagation() -> None:
    model, ids = recurrent_of(tiny_model("mixtral", "causal-lm"), "spans").train(), tokens(2, 13)
    found = []
    for switch in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
        switch()
        loss = model(ids, labels=ids).loss
        found.append(torch.autograd.grad(loss, list(model.carrier.parameters()), allow_unused=True))
    for plain, kept in zip(*found, strict=True):
        assert_close(kept, plain, rtol=1e-3, atol=1e-6)


def test_the_loss_of_a_router_is_refused_by_name() -> None:
    """It would be left out in silence."""
    asking = tiny_model("mixtral", "causal-lm", output_router_logits=True)
    with pytest.raises(ValueError, match=r"auxiliary loss of its router \(output_router_logits=True\).*set "):
        add_recurrence(asking, window=5)
    model, ids = add_recurrence(tiny_model("mixtral", "causal-lm"), window=5), tokens(1, 8)
    model.backbone.config.output_router_logits = True
    with pytest.raises(ValueError, match="auxiliary loss of its router"):
        model(ids, labels=ids)
    with torch.no_grad():
        assert model(ids).logits.shape == (1, 8, 99)
    with pytest.raises(TypeError, match="output_router_logits"):
        model(ids, output_router_logits=True)
