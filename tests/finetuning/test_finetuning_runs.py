"""One run, with both kinds of encoders: it learns what can be learnt, and is the same when run again."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_tasks import KINDS, NAMES, PLACES, SHORT, Killed, save_encoder, save_sentiment
from transformers import AutoModelForSequenceClassification, set_seed

from onward.finetuning import TASKS, FinetuningRecipe, RunResult, finetune
from onward.finetuning.preparation import load, prepare
from onward.finetuning.results import RESULT
from onward.finetuning.run import run
from onward.training.checkpoints import last_checkpoint

LEARNS = FinetuningRecipe(epochs=6, batch_size=8, max_length=32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finetuning")
    for kind in KINDS:
        save_encoder(folder / kind, kind, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    save_sentiment(folder / "sst2")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_can_be_learnt_is_learnt(place: Path, tmp_path: Path, kind: str) -> None:
    found = finetune(place / kind, "sst2", tmp_path, learning_rate=3e-3, recipe=LEARNS, data=place / "sst2")
    assert found.score is not None and found.score > 0.9
    assert not found.failed()
    assert found.history[-1]["loss"] < 0.3 < found.history[0]["loss"]
    assert found == RunResult.read(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_silly_learning_rate_fails(place: Path, tmp_path: Path, kind: str) -> None:
    found = finetune(place / kind, "sst2", tmp_path, learning_rate=30.0, recipe=SHORT, data=place / "sst2")
    assert found.score is not None and found.failed()


@pytest.mark.parametrize(("epochs", "said"), [(2, "at step 3 the loss is nan"), (1, "after step 2 the model's logits")])
def test_a_loss_that_is_no_number_ends_the_run_and_counts_as_failed(
    place: Path, tmp_path: Path, epochs: int, said: str
) -> None:
    options: dict[str, Any] = {"recipe": replace(SHORT, epochs=epochs), "data": place / "sst2", "save_model": True}
    found = finetune(place / "bert", "sst2", tmp_path, learning_rate=1e38, **options)
    assert found.score is None and found.failed() and found.failed(margin=-1)
    assert found.ended is not None and said in found.ended
    assert found.steps == 2
    assert not (tmp_path / "model").exists()
    json.loads((tmp_path / RESULT).read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_a_run_is_the_same_when_run_again_and_another_with_another_seed(tmp_path: Path, place: Path) -> None:
    save_encoder(tmp_path / "bert")  # with dropout
    setting = prepare(tmp_path / "bert", "sst2", SHORT, data=place / "sst2")
    results = [run(setting, 1e-3, seed, tmp_path / str(i)) for i, seed in enumerate((1, 1, 2))]
    histories = [[entry["loss"] for entry in result.history] for result in results]
    assert histories[0] == histories[1] != histories[2]
    assert results[0].metrics == results[1].metrics


def kill_after(step: int, *options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(*options, [Killed(step)])


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_run_goes_on_where_it_was_killed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, by_length: bool
) -> None:
    save_encoder(tmp_path / "bert")  # with dropout
    recipe = replace(SHORT, epochs=2.5, group_by_length=by_length)  # two steps each
    setting = prepare(tmp_path / "bert", "sst2", recipe, data=place / "sst2")
    expected = run(setting, 1e-3, 1, tmp_path / "whole")
    monkeypatch.setattr("onward.finetuning.run.MINUTES_BETWEEN_CHECKPOINTS", 0)
    kill_after(step, setting, 1e-3, 1, tmp_path / "killed")
    assert last_checkpoint(tmp_path / "killed") == tmp_path / "killed" / f"checkpoint-{step}"
    again: list[int] = []
    monkeypatch.setattr(Killed, "on_step_begin", lambda self, args, state, *_, **__: again.append(state.global_step))
    found = run(setting, 1e-3, 1, tmp_path / "killed", [Killed(99)])
    assert again == list(range(step, 5))
    assert found.history == expected.history and found.metrics == expected.metrics
    assert (found.tokens, found.steps) == (expected.tokens, 5) and found.seconds > 0
    assert last_checkpoint(tmp_path / "killed") is None


def test_another_run_does_not_go_on_from_it(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.finetuning.run.MINUTES_BETWEEN_CHECKPOINTS", 0)
    recipe = replace(SHORT, epochs=2)
    setting = prepare(place / "bert", "sst2", recipe, data=place / "sst2")
    kill_after(2, setting, 1e-3, 0, tmp_path / "run")
    other = prepare(place / "bert", "sst2", replace(recipe, weight_decay=0.5), data=place / "sst2")
    expected = run(other, 1e-3, 0, tmp_path / "other")
    assert run(other, 1e-3, 0, tmp_path / "run").history == expected.history


def test_checkpoints_of_something_else_are_left_alone(place: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-7").mkdir()
    with pytest.raises(FileExistsError, match="holds checkpoints of something else: choose another folder"):
        finetune(place / "bert", "sst2", tmp_path, recipe=SHORT, data=place / "sst2")
    assert (tmp_path / "checkpoint-7").is_dir()


def test_the_schedule_is_a_tenth_up_and_the_rest_down(place: Path, tmp_path: Path) -> None:
    recipe = FinetuningRecipe(epochs=10, batch_size=8, max_length=32, train_examples=16)  # 20 steps
    found = finetune(place / "bert", "sst2", tmp_path, learning_rate=1e-4, recipe=recipe, data=place / "sst2")
    rates = [entry["learning_rate"] for entry in found.history]
    assert rates[:3] == pytest.approx([0, 5e-5, 1e-4])
    assert rates[3:] == pytest.approx([1e-4 * (20 - step) / 18 for step in range(3, 20)])


def test_what_a_run_leaves(place: Path, tmp_path: Path) -> None:
    data = {"data": place / "sst2", "save_model": True}
    found = finetune(place / "recurrent", "sst2", tmp_path, seed=3, learning_rate=2e-5, recipe=SHORT, **data)
    saved = json.loads((tmp_path / RESULT).read_text())
    assert (saved["task"], saved["seed"], saved["learning_rate"], saved["steps"]) == ("sst2", 3, 2e-5, 2)
    assert (saved["examples"], saved["scored_on"], saved["trivial"]) == (16, {"validation": 48}, 0.5)
    assert saved["tokens"] > 16 * 4 and saved["seconds"] > 0 and saved["recipe"]["train_examples"] == 16
    assert {"command", "versions", "machine", "data", "history", "parameters"} <= set(saved)
    model = AutoModelForSequenceClassification.from_pretrained(found.path / "model")
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert [path.name for path in found.path.iterdir() if path.name.startswith("checkpoint")] == []
    with pytest.raises(FileExistsError, match="holds a finished run already"):
        finetune(place / "bert", "sst2", tmp_path, recipe=SHORT, data=place / "sst2")


def test_batches_of_like_length_score_the_same_rows(place: Path, tmp_path: Path) -> None:
    """Trainer would then also shuffle what is scored."""
    recipe = FinetuningRecipe(epochs=6, batch_size=8, max_length=32, group_by_length=True)
    found = finetune(place / "bert", "sst2", tmp_path, learning_rate=3e-3, recipe=recipe, data=place / "sst2")
    assert found.score is not None and found.score > 0.9


# --- numbers, and spans


def test_a_number_is_learnt(place: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    lines = []
    for _ in range(96):
        same = draw.random() < 0.5
        lines.append(f"g\tf\ty\t0\t{5.0 if same else 0.0}\tthe {'good' if same else 'bad'} sea\tthe sea")
    for split in ("train", "dev"):
        (tmp_path / f"sts-{split}.csv").write_text("\n".join(lines))
    found = finetune(place / "bert", "stsb", tmp_path / "run", learning_rate=3e-3, recipe=LEARNS, data=tmp_path)
    assert found.metrics["pearson"] > 0.9 and found.metrics["spearman"] > 0.8
    assert found.trivial == 0


@pytest.mark.parametrize("kind", KINDS)
def test_questions_are_answered(place: Path, tmp_path: Path, kind: str) -> None:
    """Who is always a name, of which a context has one; contexts are longer than a window."""
    draw = random.Random(0)
    rows = []
    for i in range(90):
        before, after = ([phrase] * draw.randint(0, 4) for phrase in ("the sea was long", "to the old ship"))
        words = [*before, draw.choice(PLACES), *after]
        words.insert(draw.randint(0, len(words)), name := draw.choice(NAMES).title())
        rows.append({"context": " ".join(words) + f" {'abcdefghij'[i % 10]}", "question": "Who?", "answer": name})
    (tmp_path / "squad.json").write_text(json.dumps(rows))
    recipe = FinetuningRecipe(epochs=8, batch_size=8, max_length=24, overlap=4)
    found = finetune(
        place / kind, "squad", tmp_path / "run", learning_rate=5e-3, recipe=recipe, data=tmp_path / "squad.json"
    )
    assert found.metrics["exact_match"] > 0.8 and found.score == found.metrics["f1"]


# --- what is asked for in vain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, r"learning_rate=0.0: it must be a number above 0"),
        ({"learning_rate": float("nan")}, r"learning_rate=nan"),
        ({"task": "sst"}, r"no task 'sst': did you mean 'sst2'"),
        ({"recipe": FinetuningRecipe(max_length=65)}, r"max_length=65: it is more than the 64 positions of bert"),
        ({"split": "train"}, r"split='train': models are scored on"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(
    place: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    options = {"task": "sst2", "recipe": SHORT, "data": place / "sst2", **changes}
    with pytest.raises(ValueError, match=message):
        finetune(place / "bert", out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer(place: Path, tmp_path: Path) -> None:
    AutoModelForSequenceClassification.from_pretrained(place / "bert").save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="has a model but no tokenizer"):
        finetune(tmp_path, "sst2", tmp_path / "out", data=place / "sst2")


def test_an_encoder_that_would_in_part_be_drawn_at_random(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "bert", tmp_path / "bert")
    weights = load_file(tmp_path / "bert" / "model.safetensors")
    del weights["bert.encoder.layer.0.output.dense.weight"]
    save_file(weights, tmp_path / "bert" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"has no bert.encoder.layer.0.output.dense.weight"):
        finetune(tmp_path / "bert", "sst2", tmp_path / "out", recipe=SHORT, data=place / "sst2")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0.5}, "batch_size=0.5"),
        ({"max_length": 2}, "max_length=2"),
        ({"train_examples": 0}, "train_examples=0"),
        ({"warmup": 1.0}, "warmup=1.0: it is a share"),
    ],
)
def test_recipes_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FinetuningRecipe(**fields)


def test_the_head_is_drawn_by_the_seed(place: Path) -> None:
    heads = []
    for seed in (5, 5, 6):
        set_seed(seed)
        model, _ = load(str(place / "recurrent"), AutoModelForSequenceClassification, TASKS["mnli"])
        heads.append(model.classifier.weight.detach().clone())
        assert model.dtype == torch.float32
    assert heads[0].shape[0] == 3
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
