"""Sizes of memory drawn at random: the same wherever a step is computed, and gone when training ends."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

import pytest
import torch
from processes import killed_while, on_two_processes
from training_runs import interrupt_after, losses, same, validations
from transformers import AutoModelForCausalLM
from window_runs import documents, make_model, recipe, run

from onward.models.window_recurrent import WindowRecurrentModel
from onward.training import TrainingRecipe, train
from onward.training.sizes import drawn_size
from onward.utils.fields import FieldError

RANDOM = {"random_slots": (3, 12), "train": "carrier"}


@pytest.fixture
def sizes(monkeypatch):
    """All sizes that models are given, in their order."""
    given, set_slots = [], WindowRecurrentModel.set_slots
    monkeypatch.setattr(WindowRecurrentModel, "set_slots", lambda m, n: (given.append(n), set_slots(m, n))[1])
    return given


def slotted(carrier="selected", slots=6, **fields):
    return make_model(carrier, slots=slots, **{"dropout": 0, **fields})


def drawn(steps, slots=(3, 12), seed=0, model=None):
    chosen = TrainingRecipe(random_slots=slots, seed=seed)
    return [drawn_size(chosen, model or slotted(), step) for step in steps]


def test_each_doubling_is_drawn_equally_often():
    counts = Counter(int(math.log2(n)) for n in drawn(range(4000), (16, 255), model=slotted()))
    assert counts.keys() == {4, 5, 6, 7} and all(900 < count < 1100 for count in counts.values())
    found = set(drawn(range(200), (3, 5)))
    assert found == {3, 4, 5} and set(drawn(range(9), (7, 7))) == {7}
    assert drawn(range(20)) != drawn(range(20), seed=1)


def test_every_step_has_its_size_and_then_the_model_its_own(tokenizer, tmp_path, sizes):
    model = slotted()
    result = run(tmp_path, tokenizer, model, RANDOM)
    steps = drawn(range(15))
    assert sizes == [n for step in steps for n in (step, 6)] and len(set(steps)) > 3
    assert model.config.slots == model.carrier.count == 6
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.slots == 6 and same(loaded, model)
    # Validation is at the configured size.
    best = slotted()
    best.load_state_dict(model.state_dict())
    ids = torch.tensor([tokenizer(d.text).input_ids for d in documents(count=3, tokens=50, seed=1)])
    assert best(ids, labels=ids).loss.item() == pytest.approx(result.best_validation_loss, rel=1e-5)


def test_the_default_number_comes_back(tokenizer, tmp_path):
    model = slotted(slots=None)
    run(tmp_path, tokenizer, model, {**RANDOM, "max_tokens": 100})
    assert model.config.slots is None and model.carrier.count == 127


def test_sizes_change_what_is_learned_and_parts_of_a_step_share_them(tokenizer, tmp_path):
    """Also with the gradient's second reading of each window, for which the size must still be that of the step."""
    made = {}
    for name, changes in {
        "whole": {},
        "parts": {"segments_at_once": 1},
        "kept": {"gradient_checkpointing": False},
        "one size": {"random_slots": None},
    }.items():
        model = made[name] = slotted()
        chosen = recipe(**{**RANDOM, "batch_size": 4, "max_tokens": 300, **changes})
        train(model, documents(5, 61), documents(1), tokenizer, tmp_path / name, chosen, progress=False)
    for name in ("parts", "kept"):
        for a, b in zip(made["whole"].parameters(), made[name].parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    assert not same(made["whole"].carrier, made["one size"].carrier)


def train_interrupted(folder, tokenizer, step):
    interrupt_after(step)
    run(folder, tokenizer, slotted(), {**RANDOM, "evaluate_every_tokens": 96})


def test_a_resumed_run_draws_the_sizes_it_would_have_had(tokenizer, tmp_path, sizes):
    whole = run(tmp_path / "whole", tokenizer, model := slotted(), {**RANDOM, "evaluate_every_tokens": 96})
    killed_while(train_interrupted, tmp_path / "cut", tokenizer, 7)
    sizes.clear()
    resumed = run(tmp_path / "cut", tokenizer, again := slotted(), {**RANDOM, "evaluate_every_tokens": 96})
    assert sizes[::2] == drawn(range(6, 15))
    assert losses(resumed) == losses(whole) and validations(resumed) == validations(whole) and same(model, again)


def train_on_sizes(folder, tokenizer):
    return run(folder, tokenizer, slotted(), {**RANDOM, "max_tokens": 300})


def test_two_processes_train_like_one(tokenizer, tmp_path):
    one = train_on_sizes(tmp_path / "one", tokenizer)
    assert on_two_processes(partial(train_on_sizes, tmp_path / "two", tokenizer)) == [0, 0]
    two = run(tmp_path / "two", tokenizer, slotted(), {**RANDOM, "max_tokens": 300})
    assert losses(one) == pytest.approx(losses(two), abs=1e-5)


def test_controls_have_the_sizes_that_they_can_have(tokenizer, tmp_path, sizes):
    """A constant no more slots than it learns; plain windows none."""
    run(tmp_path / "constant", tokenizer, slotted("constant", stands_for="selected"), RANDOM)
    assert sizes[::2] == [min(6, n) for n in drawn(range(15))]
    sizes.clear()
    run(tmp_path / "none", tokenizer, make_model("none"), {**RANDOM, "train": "all", "max_tokens": 48})
    assert sizes == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (16, "the least and the most, as in"),
        ((16,), "the least and the most, as in"),
        ((32, 16), "the smaller one first"),
        ((0, 16), "of at least 1"),
        ((1.5, 16), "two whole numbers"),
    ],
)
def test_sizes_that_make_no_sense(value, problem):
    with pytest.raises(FieldError, match=f"random_slots=.*{problem}"):
        TrainingRecipe(random_slots=value)


def test_sizes_that_a_memory_cannot_have(tokenizer, tmp_path):
    for model, problem in (
        (slotted(), "random_slots=.1, 12.: sinks=1 takes one of them; choose at least 2"),
        (make_model("pooled"), "random_slots=.1, 12.: carrier='pooled' has as many vectors as it was made with"),
    ):
        with pytest.raises(FieldError, match=problem):
            run(tmp_path, tokenizer, model, {"random_slots": (1, 12)})
    with pytest.raises(FieldError, match="random_slots=.* no meaning for a block-recurrent model"):
        recipe(random_slots=(3, 12)).refuse(("random_slots",), "block-recurrent")


def test_other_sizes_are_another_run(tokenizer, tmp_path):
    changes = {**RANDOM, "max_tokens": 48}
    run(tmp_path, tokenizer, slotted(), changes)
    assert run(tmp_path, tokenizer, slotted(), changes).steps == 1
    with pytest.raises(FileExistsError, match=r"recipe.random_slots: \[3, 12\] there, \[3, 9\] here"):
        run(tmp_path, tokenizer, slotted(), {**changes, "random_slots": (3, 9)})
