"""Compiled models return what they return uncompiled: a graph that remembers one window must not answer for another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import assert_same, recurrent_variant, tokens


def compiled(model: Any, part: str) -> Any:
    if part == "model":
        return torch.compile(model, backend="eager")
    if part == "base":
        model.backbone.model = torch.compile(model.backbone.model, backend="eager")
    for module in {"backbone": [model.backbone], "layers": model.backbone.model.layers, "base": []}[part]:
        module.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("variant", "part"), [("selected", "model"), ("selected", "base"), ("selected", "layers"), ("spans", "backbone")]
)
@torch.no_grad()
def test_a_compiled_model_is_the_model(variant: str, part: str) -> None:
    torch._dynamo.reset()
    model, ids, more = recurrent_variant("llama", variant), tokens(2, 23), tokens(2, 9, seed=1)
    expected = model(ids)
    then, bare = model(more, state=expected.state, use_cache=True).logits, model.backbone(more).logits
    same = compiled(model, part)
    found = same(ids)
    assert_same(found.logits, expected.logits, model)
    assert_same(same(more, state=found.state, use_cache=True).logits, then, model)
    assert_same(model.backbone(more).logits, bare, model)
    assert_same(same(ids).logits, expected.logits, model)
