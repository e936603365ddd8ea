"""Sliding attention against plain loops, in float64: outputs and all gradients."""

from __future__ import annotations

import pytest
import torch
from plain_ops import attention_inputs, close, numbers, plain_sliding_attention, same_gradients
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional as F

from onward.ops.sliding_attention import attention_of_one, full_attention, position_buckets, sliding_attention

SHAPES = [
    # window, new tokens, tokens before
    (1, 1, 0),
    (1, 5, 1),
    (2, 3, 1),
    (3, 2, 3),
    (4, 4, 0),
    (4, 4, 4),
    (4, 5, 2),
    (4, 13, 3),
    (5, 1, 5),
    (5, 1, 2),
    (5, 20, 0),
    (7, 3, 0),
    (7, 16, 7),
]


@pytest.mark.parametrize("sees_itself", [True, False])
@pytest.mark.parametrize(("window", "count", "past"), SHAPES)
def test_sliding_attention_is_the_plain_one_with_all_gradients(
    window: int, count: int, past: int, sees_itself: bool
) -> None:
    inputs = attention_inputs(window, count, past)
    for seen in ([past, past], [past, past // 2], [0, past]):
        ours = sliding_attention(*inputs, seen, window=window, sees_itself=sees_itself)
        theirs = plain_sliding_attention(*inputs, seen, window, sees_itself)
        assert ours.shape == inputs[0].shape
        close(ours, theirs)
        if theirs.requires_grad:
            same_gradients(ours, theirs + 0 * sum(x.sum() for x in inputs), inputs)


@pytest.mark.parametrize("sees_itself", [True, False])
@pytest.mark.parametrize(("window", "count", "past"), [(2, 3, 1), (3, 2, 2), (2, 5, 2)])
def test_sliding_attentions_gradients_by_differences(window: int, count: int, past: int, sees_itself: bool) -> None:
    inputs = attention_inputs(window, count, past, batch=2, heads=1, width=2)
    for seen in ([past, past], [0, past]):
        assert gradcheck(
            lambda *x, seen=seen: sliding_attention(*x, seen, window=window, sees_itself=sees_itself), inputs
        )


@pytest.mark.parametrize("needed", range(6))
def test_sliding_attention_where_only_one_input_wants_a_gradient(needed: int) -> None:
    inputs = [x if i == needed else x.detach() for i, x in enumerate(attention_inputs(4, 9, 3))]
    ours = sliding_attention(*inputs, [3, 1], window=4)
    theirs = plain_sliding_attention(*inputs, [3, 1], 4, True)
    same_gradients(ours, theirs, [inputs[needed]])


def test_what_a_row_has_not_seen_is_never_looked_at() -> None:
    inputs = attention_inputs(4, 9, 4)
    expected = sliding_attention(*inputs, [4, 1], window=4)
    changed = [x.detach().clone() for x in inputs]
    for old in changed[3:5]:
        old[1, :, :3] = 1e6
    close(sliding_attention(*changed, [4, 1], window=4), expected.detach())


@pytest.mark.parametrize("past", [0, 1, 3])
def test_a_single_tokens_attention_is_the_plain_one_with_all_gradients(past: int) -> None:
    inputs = attention_inputs(4, 1, past)
    query, key, value, past_key, past_value, bias = inputs
    for seen in ([past, past], [0, past]):
        keys, values = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
        by_place = bias[:, : past + 1].flip(1).mT
        ours = attention_of_one(query, keys, values, by_place, [n + 1 for n in seen])
        theirs = plain_sliding_attention(*inputs, seen, 4, True)
        close(ours, theirs)
        used = inputs if past else [query, key, value, bias]
        same_gradients(ours, theirs + 0 * sum(x.sum() for x in inputs), used)
        with torch.no_grad():
            close(attention_of_one(query, keys, values, by_place, [n + 1 for n in seen]), theirs)


def test_sliding_attention_in_pieces_is_the_whole() -> None:
    query, key, value, *_, bias = attention_inputs(5, 17, 0)
    empty = key[:, :, :0]
    whole = sliding_attention(query, key, value, empty, empty, bias, [0, 0], window=5)
    out = []
    for start, stop in ((0, 1), (1, 4), (4, 15), (15, 17)):
        past = slice(max(0, start - 5), start)
        new = slice(start, stop)
        pieces = [x[:, :, new] for x in (query, key, value)] + [x[:, :, past] for x in (key, value)]
        out.append(sliding_attention(*pieces, bias, [min(5, start)] * 2, window=5))
    close(torch.cat(out, 2), whole)
    same_gradients(torch.cat(out, 2), whole, [query, key, value, bias])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_scores_do_not_overflow(dtype: torch.dtype) -> None:
    inputs = [(100 * x.detach()).to(dtype).requires_grad_() for x in attention_inputs(4, 9, 3)]
    ours = sliding_attention(*inputs, [3, 0], window=4)
    gradients = torch.autograd.grad(ours.float().sum(), inputs)
    assert ours.isfinite().all() and all(g.isfinite().all() for g in gradients)
    if dtype == torch.float32:
        theirs = plain_sliding_attention(*(x.double() for x in inputs), [3, 0], 4, True)
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-2, atol=1e-2)


def test_dropout_leaves_the_expectation_and_drops_its_share() -> None:
    inputs = [x.detach() for x in attention_inputs(6, 40, 6, batch=1, heads=2, width=2)]
    inputs[2], inputs[4] = torch.ones_like(inputs[2]), torch.ones_like(inputs[4])  # attention sums to 1 without it
    torch.manual_seed(0)
    mean = torch.stack([sliding_attention(*inputs, [6], window=6, dropout=0.3) for _ in range(300)]).mean(0)
    assert mean.mean().item() == pytest.approx(1, abs=0.01)
    assert (mean - 1).abs().max() < 0.25
    alone = [x[:, :, :1] for x in inputs[:3]] + [x[:, :, :0] for x in inputs[3:5]] + [inputs[5]]
    many = [x.expand(2000, -1, -1, -1) for x in alone[:5]] + [alone[5]]
    out = sliding_attention(*many, [0] * 2000, window=6, dropout=0.3)
    assert set(out.unique().tolist()) == {0.0, 1 / 0.7}, "one token with all weight: dropped, or scaled up"
    assert (out == 0).double().mean().item() == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize(("count", "past"), [(3, 2), (7, 2)])
def test_dropout_is_the_same_forwards_and_backwards(count: int, past: int) -> None:
    """With one seed the noise is fixed, and what is left is a function whose gradients can be checked."""
    inputs = attention_inputs(3, count, past, batch=1, heads=2, width=2)

    def drawn(*x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return sliding_attention(*x, [past], window=3, dropout=0.4)

    assert (drawn(*inputs) - sliding_attention(*inputs, [past], window=3)).abs().max() > 1e-3
    assert gradcheck(drawn, inputs)


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (6, 7), (2, 2), (7, 50)])
def test_buckets_are_exact_then_logarithmic_then_all_the_same(buckets: int, max_distance: int) -> None:
    found = position_buckets(3 * max_distance, buckets, max_distance).tolist()
    exact = buckets // 2
    assert found[:exact] == list(range(exact))
    assert found == sorted(found) and set(found) <= set(range(buckets))
    assert set(found[max_distance:]) == {buckets - 1}
    assert found[exact] == exact


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 6), (5, 1), (4, 7)])
def test_full_attention_sees_every_key(queries: int, keys: int) -> None:
    inputs = [numbers(2, 3, n, 4, seed=seed) for seed, n in enumerate((queries, keys, keys))]
    ours, theirs = full_attention(*inputs), F.scaled_dot_product_attention(*inputs, scale=1.0)
    close(ours, theirs)
    same_gradients(ours, theirs, inputs)
    assert gradcheck(full_attention, [x[:1, :1, :, :2] for x in inputs])


def test_full_attention_of_parts_of_larger_tensors() -> None:
    """As the model has them: heads behind tokens, one batch for all."""
    whole = numbers(3, 5, 2, 4, seed=1)
    query, keys = whole.transpose(1, 2), whole[:1].transpose(1, 2).expand(3, -1, -1, -1)
    ours, theirs = full_attention(query, keys, keys), F.scaled_dot_product_attention(query, keys, keys, scale=1.0)
    close(ours, theirs)
    same_gradients(ours, theirs, [whole])


def test_the_scale_of_the_tiles_bias_is_that_of_distance() -> None:
    """A bias that grows with the distance draws all attention to the far end of the window, whatever the tile."""
    window, count = 5, 17
    value = torch.arange(count, dtype=torch.float64).view(1, 1, count, 1)
    zeros = torch.zeros(1, 1, count, 1, dtype=torch.float64)
    bias = 1000.0 * torch.arange(window + 1, dtype=torch.float64)[None]
    for sees_itself, reach in ((True, window - 1), (False, window)):
        out = sliding_attention(
            zeros, zeros, value, zeros[:, :, :0], zeros[:, :, :0], bias, [0], window=window, sees_itself=sees_itself
        )
        assert out.flatten().tolist() == [max(0, i - reach) for i in range(count)]
