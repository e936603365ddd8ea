"""Attention to the nearest remembered tokens against plain loops, in float64."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from plain_ops import close, numbers, same_gradients
from torch import Tensor
from torch.autograd import gradcheck

from onward.ops.nearest_memory import read_nearest


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
