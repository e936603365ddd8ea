"""The language loss against torch's cross entropy, in float64: values and all gradients."""

from __future__ import annotations

import math

import pytest
import torch
from plain_ops import close, numbers, plain_loss
from torch.autograd import gradcheck
from torch.nn import functional as F

from onward.ops import language_loss as language_loss_module
from onward.ops.language_loss import language_loss


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
