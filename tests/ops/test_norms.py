"""RMS norm and heads of length 1 against torch, in float64: outputs and all gradients."""

from __future__ import annotations

import pytest
import torch
from plain_ops import close, norm_of, numbers, same_gradients
from torch.autograd import gradcheck
from torch.nn import functional as F

from onward.ops.norms import unit_heads


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 3, 5), (2, 1, 4, 8)])
def test_the_norm_is_torchs_with_all_gradients(shape: tuple[int, ...]) -> None:
    x, norm = numbers(*shape), norm_of(shape[-1], eps=0.01)
    ours, theirs = norm(x), F.rms_norm(x, shape[-1:], norm.weight, 0.01)
    close(ours, theirs)
    same_gradients(ours, theirs, [x, norm.weight])
    assert gradcheck(lambda x, weight: torch.func.functional_call(norm, {"weight": weight}, x), [x, norm.weight])
    for wanted in (x, norm.weight):
        norm.weight.requires_grad_(wanted is norm.weight)
        given = x if wanted is x else x.detach()
        same_gradients(norm(given), F.rms_norm(given, shape[-1:], norm.weight, 0.01), [wanted])


def test_the_norm_of_zero_and_of_part_of_a_larger_tensor() -> None:
    whole, norm = numbers(2, 3, 10), norm_of(5)
    part = whole.transpose(0, 1)[..., ::2]
    same_gradients(norm(part), F.rms_norm(part, (5,), norm.weight, 1e-6), [whole, norm.weight])
    zero = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    assert not norm(zero).any()
    same_gradients(norm(zero), F.rms_norm(zero, (5,), norm.weight, 1e-6), [zero, norm.weight])


@pytest.mark.parametrize("size", [1e-4, 1.0, 40.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_norm_in_lower_precision_is_as_good_as_torchs(dtype: torch.dtype, size: float) -> None:
    """Half precision ends at 65,504: the square of the length of a wide vector must not be there in it."""
    x, norm = (size * numbers(6, 256).detach()).to(dtype).requires_grad_(), norm_of(256, dtype)
    weights = numbers(6, 256, seed=99).detach()
    exact = F.rms_norm(x.double(), (256,), norm.weight.double(), 1e-6)
    close_by = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    ours = norm(x)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, rtol=close_by, atol=close_by)
    found = [torch.autograd.grad((y.double() * weights).sum(), [x, norm.weight]) for y in (ours, exact)]
    for mine, other in zip(*found, strict=True):
        assert F.cosine_similarity(mine.double().flatten(), other.double().flatten(), dim=0) > 0.999


def test_the_norm_of_another_dtype_and_under_autocast() -> None:
    x, norm = numbers(3, 8, dtype=torch.float32), norm_of(8, torch.float32)
    expected = norm(x)
    torch.testing.assert_close(norm(x.bfloat16()).float(), expected, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", torch.bfloat16):
        under = norm(x)
    torch.testing.assert_close(under.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 3, 5), (2, 7, 1, 4), (2, 3, 4, 5)])
def test_unit_heads_are_normalized_and_scaled(shape: tuple[int, ...]) -> None:
    x, scale = numbers(*shape), numbers(shape[-2], seed=1)
    ours, theirs = unit_heads(x, scale), F.normalize(x, dim=-1, eps=1e-6) * scale[:, None]
    close(ours, theirs)
    same_gradients(ours, theirs, [x, scale])
    assert gradcheck(unit_heads, [x, scale])


def test_unit_heads_of_part_of_a_larger_tensor() -> None:
    """As the model has them: a slice, whose gradient goes back into the whole."""
    whole, scale = numbers(2, 3, 4, 2, 5), numbers(2, seed=1)
    for part in (whole[:, :, 1], whole[:, :, 1].transpose(0, 1), whole[:, :, :2].flatten(2, 3)):
        wide = scale.repeat(part.shape[-2] // 2)
        same_gradients(unit_heads(part, wide), F.normalize(part, dim=-1) * wide[:, None], [whole, scale])


def test_zero_stays_zero_and_shorter_than_the_shortest_is_not_made_longer() -> None:
    x = torch.zeros(3, 2, 4, dtype=torch.float64)
    x[1, 0, 2], x[1, 1, 3] = 1e-9, -1e-7
    x[2] = numbers(2, 4).detach()
    x.requires_grad_()
    scale = numbers(2, seed=1)
    ours, theirs = unit_heads(x, scale), x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6) * scale[:, None]
    close(ours, theirs)
    assert not ours[0].any() and ours[1].abs().max() < 0.2
    weights = numbers(*ours.shape, seed=99).detach()
    for mine, other in zip(
        *(torch.autograd.grad((y * weights).sum(), [x, scale]) for y in (ours, theirs)), strict=True
    ):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, other.nan_to_num(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unit_heads_in_lower_precision(dtype: torch.dtype) -> None:
    x, scale = numbers(5, 3, 8), numbers(3, seed=1)
    low = [t.detach().to(dtype).requires_grad_() for t in (x, scale)]
    ours = unit_heads(*low)
    assert ours.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(ours.double(), unit_heads(x, scale), rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(ours.float().pow(2).sum(), low)
    assert all(g.dtype == dtype and g.isfinite().all() for g in gradients)
