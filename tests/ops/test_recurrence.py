"""The light recurrence against its plain loop: values and all gradients; its bounds; the running maximum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from onward.ops import recurrence
from onward.ops.recurrence import ACTIVATIONS, gated_recurrence, plain_gated_recurrence, plain_recurrence


def numbers(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("stride", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("length", [1, 2, 5, 24, 33])
@pytest.mark.parametrize("at_once", [1, 30, 10**6])
def test_values_and_all_gradients_are_those_of_the_plain_loop(
    activation: str, stride: int, length: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrence, "VALUES_AT_ONCE", at_once)
    given = [numbers(length, 2, 10), numbers(5, seed=2)]
    before = [x.detach().clone() for x in given]
    ours, theirs = (f(*given, stride, activation) for f in (gated_recurrence, plain_gated_recurrence))
    assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert all(torch.equal(x, old) for x, old in zip(given, before, strict=True))
    with torch.no_grad():
        assert_close(gated_recurrence(*given, stride, activation), theirs, rtol=0, atol=1e-12)
    weights = numbers(length, 2, 5, seed=3).detach()
    for mine, other in zip(*(torch.autograd.grad((x * weights).sum(), given) for x in (ours, theirs)), strict=True):
        assert_close(mine, other, rtol=0, atol=1e-11)


def test_4096_steps() -> None:
    given = [numbers(4096, 1, 6), numbers(3, seed=2)]
    ours, theirs = (f(*given) for f in (gated_recurrence, plain_gated_recurrence))
    assert_close(ours, theirs, rtol=0, atol=1e-11)
    for mine, other in zip(*(torch.autograd.grad(x.sum(), given) for x in (ours, theirs)), strict=True):
        assert_close(mine, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stride", [1, 2])
def test_what_may_be_overwritten_gives_the_same_gradients(stride: int) -> None:
    x, start = numbers(24, 2, 10), numbers(5, seed=2)
    theirs = plain_gated_recurrence(x * 2, start, stride)
    doubled = x * 2
    ours = gated_recurrence(doubled, start, stride, overwrite=True)
    assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert not torch.equal(doubled, x * 2)
    for mine, other in zip(*(torch.autograd.grad(y.sum(), (x, start)) for y in (ours, theirs)), strict=True):
        assert_close(mine, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    """After a hundred steps, too, where rounding each would add up."""
    x, start = (t.detach().to(dtype) for t in (numbers(200, 2, 10), numbers(5, seed=2)))
    ours = gated_recurrence(x.requires_grad_(), start)
    theirs = plain_gated_recurrence(x.detach().double(), start.double())
    assert ours.dtype == dtype
    assert_close(ours.double(), theirs, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)
    ours.sum().backward()
    assert x.grad is not None and x.grad.dtype == dtype and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("stride", [1, 3])
def test_with_relu_it_is_the_running_maximum(stride: int) -> None:
    x = numbers(50, 2, 4)
    nothing = torch.zeros(4, dtype=x.dtype)
    found = plain_recurrence(x, nothing, stride, "relu")
    opened = torch.cat([x, torch.full_like(x, 50)], -1)  # gates that let everything through
    assert_close(gated_recurrence(opened, nothing, stride, "relu"), found)
    for first in range(stride):
        expected = torch.cat([torch.zeros(1, 2, 4, dtype=x.dtype), x[first::stride]]).cummax(0).values[1:]
        assert_close(found[first::stride], expected)


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-3, 1.0, 30.0]), stride=st.integers(1, 4))
def test_its_bounds(seed: int, scale: float, stride: int) -> None:
    """No lower than a little below x, no higher than the higher of x and the state before."""
    x = numbers(20, 3, seed=seed, scale=scale)
    c = plain_recurrence(x, torch.zeros(3, dtype=x.dtype), stride)
    before = torch.cat([torch.zeros(stride, 3, dtype=x.dtype), c])[: len(x)]
    assert (c >= x - 0.2785).all() and (c <= torch.maximum(before, x) + 1e-12).all()
