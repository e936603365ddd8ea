"""Training with a teacher: the model itself before training, with its full context."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
import torch
from processes import killed_while, on_two_processes
from torch.nn import functional as F
from training_runs import interrupt_after, losses, same, validations
from transformers import AutoModelForCausalLM
from window_runs import documents, make_model, recipe, run

from onward.data.tokens import tokenize
from onward.models.window_recurrent import Lesson
from onward.training import RecurrentTrainer, TrainingRecipe, train
from onward.training.adapters import add_lora
from onward.training.teacher import Teacher
from onward.utils.fields import FieldError

# Segments of two windows, 16 tokens: as many as the backbone has positions.
TAUGHT = {"teacher": "full-context", "windows_per_segment": 2, "train": "carrier"}
IDS = torch.randint(0, 99, (3, 16), generator=torch.Generator().manual_seed(5))
WHOLE = torch.ones_like(IDS)


def slotted(carrier="matched", slots=6, **fields):
    return make_model(carrier, slots=slots, **{"dropout": 0, **fields})


def moved_adapters(model):
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)


# -- who teaches


@pytest.mark.parametrize("trained", ["all", "carrier", "lora"])
def test_the_teacher_is_the_backbone_as_it_was(trained):
    """With dropout, which only a student has."""
    model = slotted(dropout=0.5).train()
    with torch.no_grad():
        before = model.backbone.eval()(IDS).logits
    model.train()
    if trained == "lora":
        add_lora(model, 2)
    teacher = Teacher(model.backbone, trained)
    if trained == "lora":
        moved_adapters(model)
    elif trained == "all":
        for parameter in model.backbone.parameters():
            parameter.data += 0.1
    lesson = teacher.lesson(IDS, WHOLE, 1.0)
    assert torch.equal(lesson.teacher.lm_head(lesson.hidden), before)
    assert not lesson.hidden.requires_grad
    with torch.no_grad():
        changed = model.backbone.eval()(IDS).logits
    assert torch.allclose(changed, before) == (trained == "carrier")


def test_adapters_stay_on_while_the_teacher_reads():
    """Another thread may use the model meanwhile: nothing of it is switched."""
    peft = pytest.importorskip("peft.tuners.tuners_utils")
    model = slotted(dropout=0.5).train()
    add_lora(model, 2)
    moved_adapters(model)
    adapted = [module for module in model.backbone.modules() if isinstance(module, peft.BaseTunerLayer)]
    teacher, seen, called = Teacher(model.backbone, "lora"), [], []

    def look(*_):
        seen.append(not any(module.disable_adapters for module in adapted))
        seen.append(all(module.training for module in model.backbone.modules()))
        seen.append(all(p.requires_grad for name, p in model.backbone.named_parameters() if "lora_" in name))

    teacher.model.transformer.h[0].register_forward_hook(look)
    model.backbone.transformer.h[0].register_forward_hook(lambda *_: called.append(True))
    teacher.lesson(IDS, WHOLE, 0.5)
    assert adapted and seen == [True] * 3 and not called
    # It has no weights of its own.
    assert {id(p) for p in teacher.model.parameters()} < {id(p) for p in model.backbone.parameters()}


def test_padding_changes_no_lesson():
    teacher = Teacher(slotted().backbone, "carrier")
    mask = WHOLE.clone()
    mask[1, 9:] = 0
    lesson = teacher.lesson(IDS, mask, 0.5)
    alone = teacher.lesson(IDS[1:2, :9], WHOLE[1:2, :9], 0.5)
    torch.testing.assert_close(lesson.hidden[1:2, :9], alone.hidden)


# -- what is trained


def taught(folder, tokenizer, model, **changes):
    return run(folder, tokenizer, model, {**TAUGHT, **changes})


def test_one_step_changes_the_corrections_and_nothing_else(tokenizer, tmp_path):
    model, before = slotted(), slotted()
    before.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert not model.carrier.adapts
    assert taught(tmp_path, tokenizer, model, max_tokens=20, warmup_steps=0).steps == 1
    assert same(model.backbone, before.backbone)
    started = dict(before.carrier.named_parameters())
    learned = [name for name, p in model.carrier.named_parameters() if not torch.equal(p, started[name])]
    assert model.carrier.adapts
    assert {name.rpartition(".")[2] for name in learned} >= {"key_up", "value_up", "by_age"}
    assert {name.split(".")[1] for name in learned} == {"0", "1"}  # of both layers
    assert all(p.requires_grad for p in model.parameters())


def kl(model, teacher, ids):
    """Per token."""
    with torch.no_grad():
        hidden = teacher.base_model(ids).last_hidden_state
        return model(ids, labels=ids, lesson=Lesson(teacher, hidden, share=1.0)).loss.item()


def sharp(carrier="matched", **fields):
    """A backbone whose attention depends on its context, so that a window without it predicts something else."""
    model = slotted(carrier, **fields)
    torch.manual_seed(7)
    for parameter in model.backbone.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("carrier", ["recent", "matched"])
def test_corrections_bring_the_model_closer_to_its_teacher(tokenizer, tmp_path, carrier):
    """On documents that it was not trained on; training without a teacher does not."""
    texts = [tokenize([document], tokenizer)[0] for document in documents(50, 48, 2)]
    training, held_out = texts[:40], torch.cat([text.ids.long() for text in texts[40:]]).view(-1, 16)
    found = {}
    for share in (1.0, 0.0):
        model = sharp(carrier, slots=4)
        before = kl(model.eval(), model.backbone, held_out)
        changes = {"teacher_share": share, "epochs": 6, "batch_size": 8, "evaluate_every_tokens": 10_000}
        chosen = recipe(**TAUGHT, **changes)
        train(model, training, texts[:1], tokenizer, tmp_path / str(share), chosen, progress=False)
        found[share] = kl(model, model.backbone, held_out)
    assert found[1.0] < 0.7 * before < before < found[0.0]


def test_a_share_of_nothing_is_training_without_a_teacher(tokenizer, tmp_path):
    plain, none, half = slotted(), slotted(), slotted()
    first = run(tmp_path / "plain", tokenizer, plain, {**TAUGHT, "teacher": None, "max_tokens": 200})
    second = taught(tmp_path / "none", tokenizer, none, teacher_share=0, max_tokens=200)
    assert losses(first) == losses(second) and same(plain, none)
    assert losses(taught(tmp_path / "half", tokenizer, half, max_tokens=200)) != losses(first)
    assert not same(plain.carrier, half.carrier)


@pytest.mark.parametrize(
    ("carrier", "trained"),
    [
        ("none", "all"),
        ("none", "lora"),
        ("constant", "carrier"),
        ("pooled", "all"),
        ("spans", "lora"),
        ("recent", "lora"),
    ],
)
def test_every_carrier_has_a_teacher(tokenizer, tmp_path, carrier, trained):
    fields = {"stands_for": "selected"} if carrier == "constant" else {}
    many = carrier in ("constant", "recent")
    fields |= {"slots": 6} if many else {"vectors": 3} if carrier == "spans" else {}
    model = make_model(carrier, **fields)
    result = taught(tmp_path, tokenizer, model, train=trained, max_tokens=100)
    assert all(map(math.isfinite, losses(result)))
    assert same(AutoModelForCausalLM.from_pretrained(tmp_path), model)


def test_parts_of_a_step_and_bfloat16(tokenizer, tmp_path):
    made = {}
    for name, changes in {
        "whole": {},
        "parts": {"segments_at_once": 1},
        "kept": {"gradient_checkpointing": False},
    }.items():
        model = made[name] = slotted()
        chosen = recipe(**TAUGHT | {"batch_size": 4, "max_tokens": 200, **changes})
        train(model, documents(5, 61), documents(1), tokenizer, tmp_path / name, chosen, progress=False)
    for name in ("parts", "kept"):
        for a, b in zip(made["whole"].parameters(), made[name].parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    exact = run(tmp_path / "exact", tokenizer, slotted(), {**TAUGHT, "max_tokens": 100})
    halved = run(tmp_path / "half", tokenizer, slotted(), {**TAUGHT, "max_tokens": 100, "bf16": True})
    assert losses(halved) == pytest.approx(losses(exact), rel=0.02)


def test_the_loss_of_a_step_is_the_mixture(tokenizer, tmp_path, monkeypatch):
    """Before the first update, against all logits at once."""
    batches, step = [], RecurrentTrainer.compute_loss
    monkeypatch.setattr(
        RecurrentTrainer, "compute_loss", lambda self, m, i, *a, **k: (batches.append(i), step(self, m, i, *a, **k))[1]
    )
    model = sharp()
    result = taught(tmp_path, tokenizer, model, teacher_share=0.25, max_tokens=32, learning_rate=1e-9, warmup_steps=0)
    ids, labels = batches[0]["input_ids"], batches[0]["shift_labels"]
    fresh = sharp()
    with torch.no_grad():
        ours, theirs = (f(ids).logits.log_softmax(-1) for f in (fresh.eval(), fresh.backbone))
    counted = labels != -100
    divergence = F.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1)[counted].mean()
    plain = F.nll_loss(ours[counted], labels[counted])
    assert divergence > 0.01
    assert losses(result)[0] == pytest.approx((0.75 * plain + 0.25 * divergence).item(), rel=1e-5)


# -- resuming, several processes


def train_interrupted(folder, tokenizer, trained):
    interrupt_after(7)
    taught(folder, tokenizer, slotted(dropout=0.1), train=trained, evaluate_every_tokens=64, max_tokens=400)


@pytest.mark.parametrize("trained", ["all", "lora"])
def test_a_resumed_run_has_the_teacher_of_its_beginning(tokenizer, tmp_path, trained):
    changes = {"train": trained, "evaluate_every_tokens": 64, "max_tokens": 400}
    whole = taught(tmp_path / "whole", tokenizer, model := slotted(dropout=0.1), **changes)
    killed_while(train_interrupted, tmp_path / "cut", tokenizer, trained)
    resumed = taught(tmp_path / "cut", tokenizer, again := slotted(dropout=0.1), **changes)
    assert losses(resumed) == losses(whole) and validations(resumed) == validations(whole) and same(model, again)


def train_taught(folder, tokenizer):
    return taught(folder, tokenizer, slotted(), max_tokens=200)


def test_two_processes_train_like_one(tokenizer, tmp_path):
    one = train_taught(tmp_path / "one", tokenizer)
    assert on_two_processes(partial(train_taught, tmp_path / "two", tokenizer)) == [0, 0]
    assert losses(one) == pytest.approx(losses(train_taught(tmp_path / "two", tokenizer)), abs=1e-5)


def test_another_teacher_is_another_run(tokenizer, tmp_path):
    taught(tmp_path, tokenizer, slotted(), max_tokens=32, train="all")
    with pytest.raises(FileExistsError, match="recipe.teacher_share: 0.5 there, 0.4 here"):
        taught(tmp_path, tokenizer, slotted(), max_tokens=32, train="all", teacher_share=0.4)
    with pytest.raises(FileExistsError, match="recipe.teacher: 'full-context' there, None here"):
        taught(tmp_path, tokenizer, slotted(), max_tokens=32, train="all", teacher=None)
    with pytest.raises(FileExistsError, match=r"settings \(teacher: '\w{16}' there, '\w{16}' here\)"):
        taught(tmp_path, tokenizer, slotted(seed=1), max_tokens=32, train="all")


def test_a_run_of_before_there_were_teachers_resumes(tokenizer, tmp_path):
    changes = {"max_tokens": 100}
    result = run(tmp_path, tokenizer, slotted(), changes)
    described = json.loads((tmp_path / "run.json").read_text())
    for name in ("teacher", "teacher_share", "random_slots"):
        del described[f"recipe.{name}"]
    (tmp_path / "run.json").write_text(json.dumps(described))
    assert run(tmp_path, tokenizer, slotted(), changes) == result
    with pytest.raises(FileExistsError, match="recipe.teacher: None there, 'full-context' here"):
        run(tmp_path, tokenizer, slotted(), {**changes, "teacher": "full-context", "windows_per_segment": 2})


# -- what is refused


def test_segments_longer_than_the_teachers_positions(tokenizer, tmp_path):
    problem = "windows_per_segment=3: a segment then has 24 tokens, and the teacher, the backbone, 16 positions; "
    with pytest.raises(FieldError, match=problem + "choose at most 2"):
        taught(tmp_path, tokenizer, slotted(), windows_per_segment=3)
    with pytest.raises(FieldError, match="24 tokens.* 16 positions; choose a smaller window than 12"):
        taught(tmp_path, tokenizer, slotted(window=12), windows_per_segment=2)
    with pytest.raises(FieldError, match="choose at most 5"):  # 8 + 4 x 2
        taught(tmp_path, tokenizer, slotted(overlap=6), windows_per_segment=6)
    assert taught(tmp_path, tokenizer, slotted(overlap=6), windows_per_segment=5, max_tokens=32).steps


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"teacher": "gpt5"}, "teacher='gpt5': choose one of full-context"),
        ({"teacher": "full-context", "teacher_share": 1.1}, "teacher_share=1.1: it must be a number of at least 0"),
        ({"teacher": "full-context", "teacher_share": None}, "teacher_share=None: it must be a number"),
        ({"teacher_share": 0.3}, "teacher_share=0.3: it means nothing without a teacher"),
    ],
)
def test_recipes_that_make_no_sense(fields, problem):
    with pytest.raises(FieldError, match=problem):
        TrainingRecipe(**fields)


def test_other_models_have_no_teacher():
    with pytest.raises(FieldError, match="teacher='full-context': it has no meaning for a masked model"):
        TrainingRecipe(teacher="full-context").refuse(("teacher",), "masked")
