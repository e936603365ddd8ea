"""The maths of the models by itself: against plain loops and torch, in float64, outputs and all gradients."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional as F

from onward.ops import language_loss as language_loss_module
from onward.ops.language_loss import language_loss
from onward.ops.nearest_memory import read_nearest
from onward.ops.rms_norm import RMSNorm
from onward.ops.sliding_attention import attention_of_one, full_attention, position_buckets, sliding_attention
from onward.ops.unit_heads import unit_heads


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype).requires_grad_()


def close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def same_gradients(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Of a sum with weights that tell all outputs apart."""
    weights = numbers(*ours.shape, seed=99).detach()
    found = [torch.autograd.grad((out * weights).sum(), inputs) for out in (ours, theirs)]
    close(*found)


# -- sliding attention


def plain_sliding_attention(
    query: Tensor, key: Tensor, value: Tensor, past_key: Tensor, past_value: Tensor, bias: Tensor, seen: list[int],
    window: int, sees_itself: bool,
) -> Tensor:  # fmt: skip
    """Token by token. A row's past is what it has seen: the last `seen[row]` columns."""
    batch, heads, count, width = query.shape
    out = []
    for row, head in product(range(batch), range(heads)):
        past = seen[row]
        start = past_key.shape[2] - past
        keys = torch.cat([past_key[row, head, start:], key[row, head]])
        values = torch.cat([past_value[row, head, start:], value[row, head]])
        for i in range(past, past + count):
            last = i if sees_itself else i - 1
            places = list(range(max(0, last - window + 1), last + 1))
            if not places:
                out.append(torch.zeros(width, dtype=query.dtype))
                continue
            distances = [i - j for j in places]
            scores = keys[places] @ query[row, head, i - past] + bias[head, distances]
            out.append(scores.softmax(0) @ values[places])
    return torch.stack(out).view(batch, heads, count, width)


def attention_inputs(
    window: int, count: int, past: int, batch: int = 2, heads: int = 2, width: int = 3
) -> list[Tensor]:
    """query, key, value, past_key, past_value, bias"""
    new = [numbers(batch, heads, count, width, seed=seed) for seed in range(3)]
    old = [numbers(batch, heads, past, width, seed=seed) for seed in (3, 4)]
    return [*new, *old, numbers(heads, window + 1, seed=5)]


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


# -- root mean square norm


def norm_of(width: int, dtype: torch.dtype = torch.float64, eps: float = 1e-6) -> RMSNorm:
    norm = RMSNorm(width, eps=eps, dtype=dtype)
    norm.weight.data.copy_(numbers(width, seed=7).detach())
    return norm


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


# -- heads of length 1


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


# -- the memory of nearest neighbours


def plain_nearest(query: Tensor, keys: Tensor, values: Tensor, counts: list[int], top_k: int) -> Tensor:
    keys, values = keys.detach(), values.detach()
    out = torch.zeros_like(query)
    for row, head, token in product(*map(range, query.shape[:3])):
        remembered = range(keys.shape[2] - counts[row], keys.shape[2])
        scores = {j: (keys[row, head, j] @ query[row, head, token]).item() for j in remembered}
        nearest = sorted(scores, key=lambda j: -scores[j])[:top_k]
        if nearest:
            shares = (keys[row, head, nearest] @ query[row, head, token]).softmax(0)
            place = torch.zeros(query.shape[:3], dtype=query.dtype)
            place[row, head, token] = 1
            out = out + place[..., None] * (shares @ values[row, head, nearest])
    return out


@pytest.mark.parametrize("top_k", [1, 3, 7, 50])
@pytest.mark.parametrize("counts", [[7, 7], [7, 2], [0, 5], [1, 1]])
def test_the_nearest_are_read_and_the_query_alone_has_a_gradient(counts: list[int], top_k: int) -> None:
    query, keys, values = numbers(2, 2, 3, 4), numbers(2, 2, 7, 4, seed=1), numbers(2, 2, 7, 4, seed=2)
    ours, theirs = read_nearest(query, keys, values, counts, top_k), plain_nearest(query, keys, values, counts, top_k)
    close(ours, theirs)
    same_gradients(ours, theirs, [query])
    assert torch.autograd.grad(ours.sum(), [keys, values], allow_unused=True) == (None, None)


def test_the_gradient_of_reading_the_nearest_by_differences() -> None:
    keys, values = numbers(2, 1, 6, 3, seed=1).detach(), numbers(2, 1, 6, 3, seed=2).detach()
    assert gradcheck(lambda query: read_nearest(query, keys, values, [6, 4], 3), [numbers(2, 1, 2, 3)])


def test_what_is_not_remembered_is_never_read() -> None:
    query, keys, values = (x.detach() for x in (numbers(2, 2, 3, 4), numbers(2, 2, 7, 4), numbers(2, 2, 7, 4, seed=2)))
    expected = read_nearest(query, keys, values, [7, 3], 5)
    keys[1, :, :4], values[1, :, :4] = 1e6, 1e6
    close(read_nearest(query, keys, values, [7, 3], 5), expected)
    assert not read_nearest(query, keys, values, [0, 0], 5).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_nearest_in_lower_precision(dtype: torch.dtype) -> None:
    query, keys, values = (
        numbers(2, 2, 3, 8, dtype=dtype),
        *(numbers(2, 2, 7, 8, dtype=dtype, seed=s) for s in (1, 2)),
    )
    out = read_nearest(query, keys, values, [7, 0], 4)
    assert out.dtype == dtype and out.isfinite().all() and not out[1].any()
    (gradient,) = torch.autograd.grad(out.float().sum(), query)
    assert gradient.isfinite().all() and not gradient[1].any()


# -- the loss of a language model


def plain_loss(hidden: Tensor, weight: Tensor, labels: Tensor, factor: float) -> Tensor:
    return F.cross_entropy(factor * hidden @ weight.T, labels, reduction="sum", ignore_index=-100)


@pytest.fixture(params=[1, 7, 40, 10**6], ids=lambda n: f"{n} logits at once")
def logits_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_loss_module, "LOGITS_AT_ONCE", request.param)


@pytest.fixture(params=[True, False], ids=["looking at values", "as on GPUs"])
def may_look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_loss_module, "may_look", lambda x: request.param)


@pytest.mark.usefixtures("logits_at_once", "may_look")
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_the_loss_and_its_gradients_are_those_of_torch(factor: float) -> None:
    hidden, weight = numbers(13, 5), numbers(11, 5, seed=1)
    labels = torch.tensor([3, 10, -100, 0, 3, 3, -100, -100, 7, 1, 2, 10, 5])
    ours, theirs = language_loss(hidden, weight, labels, factor), plain_loss(hidden, weight, labels, factor)
    close(ours, theirs)
    for scale in (1.0, -2.5):
        close(*(torch.autograd.grad(scale * x, [hidden, weight], retain_graph=True) for x in (ours, theirs)))
    for wanted in ([hidden], [weight]):
        given = [x if x is wanted[0] else x.detach() for x in (hidden, weight)]
        close(*(torch.autograd.grad(f(*given, labels, factor), wanted) for f in (language_loss, plain_loss)))
    with torch.no_grad():
        close(language_loss(hidden, weight, labels, factor), theirs.detach())


def test_the_losss_gradients_by_differences() -> None:
    labels = torch.tensor([3, -100, 0])
    assert gradcheck(lambda h, w: language_loss(h, w, labels, 0.7), [numbers(3, 4), numbers(5, 4, seed=1)])


@pytest.mark.usefixtures("logits_at_once")
def test_tied_weights_get_both_gradients() -> None:
    weight, labels = numbers(11, 5), torch.tensor([1, 2, 10, 4])
    found = [f(weight[[0, 1, 2, 10]], weight, labels, 0.5) for f in (language_loss, plain_loss)]
    close(*(torch.autograd.grad(x, weight) for x in found))


@pytest.mark.usefixtures("logits_at_once")
def test_where_nothing_is_to_be_predicted_loss_and_gradients_are_zero() -> None:
    hidden, weight = numbers(6, 5), numbers(11, 5, seed=1)
    for count in (6, 0):
        loss = language_loss(hidden[:count], weight, torch.full((count,), -100))
        assert loss == 0
        assert all(not g.any() for g in torch.autograd.grad(loss, [hidden, weight], allow_unused=True) if g is not None)


@pytest.mark.usefixtures("may_look")
@pytest.mark.parametrize("size", [1e4, 1e6])
def test_large_logits_in_float32(size: float) -> None:
    hidden, weight = numbers(9, 4, dtype=torch.float32), numbers(7, 4, seed=1, dtype=torch.float32)
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 6, -100, 0])
    ours = language_loss(hidden, weight, labels, size)
    theirs = plain_loss(hidden.double(), weight.double(), labels, size)
    assert ours.dtype == torch.float32 and ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    gradients, exact = (torch.autograd.grad(x, [hidden, weight]) for x in (ours, theirs))
    for mine, other in zip(gradients, exact, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-3 * size)


@pytest.mark.usefixtures("may_look")
def test_losses_on_both_sides_of_what_float32_can_hold() -> None:
    """The share of a wrong word is a number up to a loss of about 100; beyond, it is no longer one."""
    sizes = torch.tensor([0.0, 1.0, 50.0, 79.9, 80.1, 87.0, 90.0, 104.0, 1000.0])
    hidden = torch.stack([sizes, torch.zeros_like(sizes)], 1).requires_grad_()
    labels = torch.ones(len(sizes), dtype=torch.long)
    exact = [math.log1p(math.exp(-size)) + size for size in sizes.tolist()]
    for row, expected in enumerate(exact):
        ours = language_loss(hidden[row : row + 1], torch.eye(2), labels[:1])
        assert ours.item() == pytest.approx(expected, rel=1e-5)
    whole = language_loss(hidden, torch.eye(2), labels)
    assert whole.item() == pytest.approx(sum(exact), rel=1e-5)
    (gradient,) = torch.autograd.grad(whole, hidden)
    torch.testing.assert_close(gradient[:, 0], sizes.sigmoid())


@pytest.mark.usefixtures("may_look")
def test_a_sure_and_right_prediction_has_no_loss_and_a_sure_and_wrong_one_a_large() -> None:
    hidden = torch.tensor([[1e4, -1e4]])
    weight = torch.eye(2)
    assert language_loss(hidden, weight, torch.tensor([0])) == 0
    assert language_loss(hidden, weight, torch.tensor([1])).item() == pytest.approx(2e4)


@pytest.mark.usefixtures("may_look")
def test_bfloat16_is_summed_in_float32() -> None:
    hidden, weight = numbers(4000, 8, dtype=torch.bfloat16), numbers(50, 8, seed=1, dtype=torch.bfloat16)
    labels = torch.randint(0, 50, (4000,), generator=torch.Generator().manual_seed(0))
    loss = language_loss(hidden, weight, labels, 0.5)
    exact = plain_loss(hidden.double(), weight.double(), labels, 0.5)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact.item(), rel=1e-3)
    ours, theirs = (torch.autograd.grad(x, [hidden, weight]) for x in (loss, exact))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == torch.bfloat16
        assert F.cosine_similarity(mine.double().flatten(), other.double().flatten(), dim=0) > 0.999


@pytest.mark.usefixtures("logits_at_once", "may_look")
def test_autocast_lowers_the_loss_as_it_does_a_linear_layer() -> None:
    hidden, weight = numbers(9, 4, dtype=torch.float32), numbers(7, 4, seed=1, dtype=torch.float32)
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 6, -100, 0])
    with torch.autocast("cpu", torch.bfloat16):
        ours = language_loss(hidden, weight, labels)
        theirs = F.cross_entropy(F.linear(hidden, weight).float(), labels, reduction="sum")
        exact = language_loss(hidden.double(), weight.double(), labels)
    torch.testing.assert_close(ours, theirs)
    close(exact, plain_loss(hidden.double(), weight.double(), labels, 1.0))
    gradients, expected = (torch.autograd.grad(x, [hidden, weight]) for x in (ours, theirs))
    for mine, other in zip(gradients, expected, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, other, rtol=2**-7, atol=2**-7)


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
