"""What holds for all ops: autocast, and second derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_ops import attention_inputs, close, norm_of, numbers, plain_loss, plain_sliding_attention
from torch import Tensor
from torch.nn import functional as F

from onward.ops.language_loss import language_loss
from onward.ops.norms import unit_heads
from onward.ops.sliding_attention import sliding_attention


def test_ops_under_autocast() -> None:
    """They are called with what autocast gives them, and their gradients come outside of it."""
    hidden, weight = numbers(9, 4, dtype=torch.float32), numbers(7, 4, seed=1, dtype=torch.float32)
    labels = torch.arange(9) % 7
    x, scale = numbers(3, 2, 4, dtype=torch.float32), numbers(2, dtype=torch.float32)
    attended = [t.detach().float().requires_grad_() for t in attention_inputs(4, 9, 3)]
    with torch.autocast("cpu", torch.bfloat16):
        loss = language_loss(hidden, weight, labels)
        units = unit_heads(x, scale)
        half = sliding_attention(*(t.bfloat16() for t in attended), [3, 1], window=4)  # a projection's bfloat16
    out = sliding_attention(*attended, [3, 1], window=4)
    assert loss.item() == pytest.approx(plain_loss(hidden, weight, labels, 1.0).item(), rel=0.02)
    torch.testing.assert_close(half.float(), out.float(), rtol=0.1, atol=0.1)
    for value, inputs in ((loss, [hidden, weight]), (units, [x, scale]), (half, attended)):
        assert all(g.isfinite().all() for g in torch.autograd.grad(value.float().sum(), inputs))


@pytest.mark.parametrize("op", ["norm", "unit heads", "sliding attention", "language loss"])
def test_second_derivatives_are_refused_or_right(op: str) -> None:
    """Gradients are written by hand, once: a second time round they must not be wrong in silence."""
    hidden, weight, labels = numbers(3, 4), numbers(5, 4, seed=1), torch.tensor([1, 2, 3])
    inputs = attention_inputs(3, 4, 2, batch=1)
    norm = norm_of(4)
    pairs: dict[str, tuple[Any, Any, Tensor]] = {
        "norm": (norm, lambda x: F.rms_norm(x, (4,), norm.weight, 1e-6), hidden),
        "unit heads": (
            lambda x: unit_heads(x.view(3, 2, 2), torch.ones(2, dtype=x.dtype)),
            lambda x: F.normalize(x.view(3, 2, 2), dim=-1),
            hidden,
        ),
        "sliding attention": (
            lambda x: sliding_attention(x, *inputs[1:], [2], window=3),
            lambda x: plain_sliding_attention(x, *inputs[1:], [2], 3, True),
            inputs[0],
        ),
        "language loss": (
            lambda x: language_loss(x, weight, labels),
            lambda x: plain_loss(x, weight, labels, 1.0),
            hidden,
        ),
    }
    ours, theirs, x = pairs[op]

    def second(function: Any) -> Tensor:
        (first,) = torch.autograd.grad(function(x).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x)[0]

    try:
        found = second(ours)
    except RuntimeError:
        return
    close(found, second(theirs))
