"""The loss with a teacher, computed window by window, against both predictions of a whole document in one piece."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VARIANTS, padded, recurrent_variant, tokens
from torch.nn import functional as F

from onward.models.window_recurrent.lesson import Lesson
from onward.ops.language_loss import IGNORED
from onward.utils.fields import FieldError

IDS = tokens(2, 14)  # a backbone has 16 positions


def lesson_of(teacher, ids, mask=None, share=0.3):
    with torch.no_grad():
        return Lesson(teacher, teacher.base_model(ids, attention_mask=mask).last_hidden_state, share)


def divergences(model, teacher, ids, mask=None):
    """[B, N - 1]: of each prediction, from all logits at once."""
    with torch.no_grad():
        theirs = teacher(ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    ours = model(ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    return F.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1)


def gradients(model, loss):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def assert_close(found, wanted, tolerance=1e-9):
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def student(variant="matched", family="gpt2", **options):
    """Trains everything; the teacher is a model with other weights."""
    model = recurrent_variant(family, variant, **options)
    model.train()  # these families have no dropout, or it is switched off here
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model, recurrent_variant(family, "none", seed=3).backbone


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_loss_and_all_gradients(variant, checkpointing):
    model, teacher = student(variant, overlap=1)
    wanted = 0.7 * model(IDS, labels=IDS).loss + 0.3 * divergences(model, teacher, IDS).mean()
    expected = gradients(model, wanted)
    if checkpointing:
        model.gradient_checkpointing_enable()
    found = model(IDS, labels=IDS, lesson=lesson_of(teacher, IDS)).loss
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=0)
    assert_close(gradients(model, found), expected)
    plain = gradients(model, model(IDS, labels=IDS).loss)
    assert not all(torch.allclose(a, b) for a, b in zip(plain, expected, strict=True))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_labels_that_are_left_out(side):
    model, teacher = student(overlap=2)
    rows = [tokens(14), tokens(9, seed=1)]
    ids, mask = padded(rows, side)
    labels = ids.masked_fill(ids % 3 == 0, IGNORED)
    total = count = 0
    for row in rows:
        counted = row[1:] % 3 != 0
        total = total + divergences(model, teacher, row[None])[0][counted].sum()
        count += counted.sum()
    hidden = torch.randn(2, 14, 32, dtype=torch.float64)  # of padding: anything
    for r, row in enumerate(rows):
        hidden[r, mask[r].bool()] = teacher.base_model(row[None]).last_hidden_state[0].detach()
    found = model(ids, mask, labels=labels, lesson=Lesson(teacher, hidden, share=1.0)).loss
    torch.testing.assert_close(found, total / count)
    assert_close(gradients(model, found), gradients(model, total / count))


def test_parts_of_a_batch_add_up():
    model, teacher = student()
    whole = model(IDS, labels=IDS, lesson=lesson_of(teacher, IDS)).loss
    parts = [model(row, labels=row, lesson=lesson_of(teacher, row), num_items_in_batch=26).loss for row in IDS.split(1)]
    torch.testing.assert_close(sum(parts), whole)


def test_a_share_of_nothing_is_the_plain_loss_and_one_leaves_only_the_divergence():
    model, teacher = student()
    plain = model(IDS, labels=IDS).loss
    none = model(IDS, labels=IDS, lesson=lesson_of(teacher, IDS, share=0)).loss
    assert torch.equal(none, plain)
    assert all(map(torch.equal, gradients(model, none), gradients(model, plain)))
    only = model(IDS, labels=IDS, lesson=lesson_of(teacher, IDS, share=1)).loss
    torch.testing.assert_close(only, divergences(model, teacher, IDS).mean())


def test_a_model_without_windows_to_cross_is_its_own_teacher():
    """The whole document fits into one window: there is nothing to learn."""
    model = recurrent_variant("llama", "matched", window=16)
    assert model(IDS, labels=IDS, lesson=lesson_of(model.backbone, IDS, share=1)).loss.abs() < 1e-6
    model = recurrent_variant("llama", "matched", window=5)
    assert model(IDS, labels=IDS, lesson=lesson_of(model.backbone, IDS, share=1)).loss > 1e-3


def test_no_gradient_reaches_the_teacher_though_it_is_the_backbone():
    """Its head is shared: only what the student predicts with it may have a gradient."""
    model, _ = student()
    wanted = divergences(model, model.backbone, IDS).mean()
    found = model(IDS, labels=IDS, lesson=lesson_of(model.backbone, IDS, share=1)).loss
    assert_close(gradients(model, found), gradients(model, wanted))


def test_nothing_of_the_size_of_a_segment_times_the_vocabulary_is_made_or_kept():
    model, teacher = student("selected", fields={"tokens_at_once": 10})  # a window of each row
    model.gradient_checkpointing_enable()
    lesson, predicted, kept = lesson_of(teacher, IDS), [], []
    teacher.lm_head.register_forward_hook(lambda module, given, logits: predicted.append(logits.shape[:-1].numel()))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape[-1:]) or t, lambda t: t):
        loss = model(IDS, labels=IDS, lesson=lesson).loss
    assert predicted == [10, 10, 8] and (99,) not in kept
    loss.backward()
    assert sorted(predicted) == sorted(2 * [10, 10, 8])  # once more, for the gradient


def test_bfloat16_autocast():
    model, teacher = student("selected", dtype=torch.float32)
    teacher = teacher.float()
    exactly = model(IDS, labels=IDS, lesson=lesson_of(teacher, IDS)).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(IDS, labels=IDS, lesson=lesson_of(teacher, IDS)).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exactly, rtol=0.05, atol=0)
    assert all(g.isfinite().all() for g in gradients(model, loss))


def test_lessons_that_do_not_fit():
    model, teacher = student()
    lesson = lesson_of(teacher, IDS)
    with pytest.raises(ValueError, match="have the shape .2, 14, 32., the input .2, 9.: they must agree"):
        model(IDS[:, :9], labels=IDS[:, :9], lesson=lesson)
    with pytest.raises(ValueError, match="pass labels with it"):
        model(IDS, lesson=lesson)
    with pytest.raises(FieldError, match="share=1.5: it must be a number from 0 to 1"):
        Lesson(teacher, lesson.hidden, share=1.5)
    with model.recurrence_disabled(), pytest.raises(ValueError, match="a lesson means nothing while recurrence"):
        model(IDS, labels=IDS, lesson=lesson)
