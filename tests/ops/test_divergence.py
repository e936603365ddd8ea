"""The divergence from a teacher, against torch's own, which keeps every distribution."""

import pytest
import torch
from torch.nn import functional as F

from onward.ops import divergence as module
from onward.ops.divergence import divergence


def plain(teacher, student, counted):
    theirs, ours = (logits[counted].log_softmax(-1) for logits in (teacher, student))
    return F.kl_div(ours, theirs, log_target=True, reduction="sum")


def drawn(dtype=torch.float64, tokens=11, ids=7):
    torch.manual_seed(0)
    teacher, student = (3 * torch.randn(tokens, ids, dtype=dtype) for _ in range(2))
    return teacher, student.requires_grad_(), torch.rand(tokens) < 0.7


@pytest.mark.parametrize("at_once", [7, 28, 8_000_000])
def test_value_and_gradient(at_once, monkeypatch):
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", at_once)
    teacher, student, counted = drawn()
    found, wanted = (2.5 * f(teacher, student, counted) for f in (divergence, plain))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(x, student)[0] for x in (found, wanted)), rtol=0, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(divergence(teacher, student, counted), found / 2.5)


def test_no_gradient_reaches_the_teacher():
    teacher, student, counted = drawn()
    teacher.requires_grad_()
    divergence(teacher, student, counted).backward()
    assert teacher.grad is None and student.grad.any()


def test_equal_predictions_diverge_nowhere_and_nothing_counted_is_zero():
    teacher, student, counted = drawn()
    shifted = student.detach() + 4.0  # the same distributions
    assert divergence(shifted, student, counted).abs() < 1e-12
    assert divergence(teacher, student, torch.zeros_like(counted)) == 0
    assert divergence(teacher[:0], student[:0], counted[:0]) == 0


def test_half_precision_is_summed_in_float32():
    teacher, student, counted = drawn(torch.bfloat16, tokens=300)
    found = divergence(teacher, student, counted)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, plain(teacher.float(), student.float(), counted), rtol=1e-5, atol=0)
    found.backward()
    assert student.grad.dtype == torch.bfloat16


def test_ids_that_a_teacher_excludes_count_nothing():
    teacher, student, counted = drawn()
    teacher[:, 2] = student.data[:, 2] = -torch.inf
    kept = [0, 1, 3, 4, 5, 6]
    wanted = plain(teacher[:, kept], student[:, kept], counted)
    found = divergence(teacher, student, counted)
    torch.testing.assert_close(found, wanted)
    found.backward()
    assert student.grad.isfinite().all()
