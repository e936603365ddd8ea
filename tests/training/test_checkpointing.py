"""Runs that are killed, at any moment, end as if nothing had happened."""

import errno
import math
import os
import random
import shutil
import signal
import time

import pytest
import torch
from processes import in_a_process, killed_while
from training_runs import interrupt_after, same
from transformers import AutoModelForCausalLM, TrainerCallback
from window_runs import LONG, make_model, run

from onward.training import CheckpointNotSaved, NonFiniteLossError, RecurrentTrainer
from onward.training import checkpoints as on_disk


def test_a_run_killed_over_and_over_ends_like_one_that_was_not(uninterrupted, tokenizer, tmp_path, monkeypatch):
    for step in (
        1,
        4,
        6,
        7,
        11,
    ):  # before any checkpoint, after one, at the end of an epoch, in the next, near the end

        def start(step=step):
            interrupt_after(step)
            run(tmp_path, tokenizer, None, LONG)

        killed_while(start)
    model = make_model(seed=1)  # its weights are the checkpoint's
    result = run(tmp_path, tokenizer, model, LONG)
    expected_model, expected = uninterrupted
    assert result.history == expected.history
    assert (result.tokens, result.best_step) == (expected.tokens, expected.best_step)
    assert same(model, expected_model)


@pytest.mark.parametrize("moment", ["_save_rng_state", "_save_optimizer_and_scheduler", "put_in_place", "keep_only"])
def test_killed_while_saving(uninterrupted, tokenizer, tmp_path, moment):
    def start():
        holder = on_disk if hasattr(on_disk, moment) else RecurrentTrainer
        original, calls = getattr(holder, moment), []

        def die_at_the_third(*args, **kwargs):
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(holder, moment, die_at_the_third)
        run(tmp_path, tokenizer, None, LONG)

    killed_while(start)
    there = [p.name for p in on_disk.all_checkpoints(tmp_path)]
    assert there and on_disk.all_checkpoints(tmp_path) == on_disk.complete_checkpoints(tmp_path)
    result = run(tmp_path, tokenizer, None, LONG)
    assert result.history == uninterrupted[1].history
    assert not (tmp_path / on_disk.UNFINISHED).exists()


def test_killed_at_any_moment(uninterrupted, tokenizer, tmp_path):
    draw = random.Random(time.time())
    for _ in range(3):
        process = in_a_process(run, tmp_path, tokenizer, None, LONG)
        before = set(on_disk.all_checkpoints(tmp_path))
        while process.is_alive() and set(on_disk.all_checkpoints(tmp_path)) <= before:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.3))
        process.kill()
        process.join()
    result = run(tmp_path, tokenizer, None, LONG)
    assert result.history == uninterrupted[1].history


@pytest.mark.parametrize("carrier, trained", [("spans", "lora"), ("constant", "carrier"), ("none", "all")])
def test_every_kind_of_run_can_be_taken_up_again(tokenizer, tmp_path, carrier, trained):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise KeyboardInterrupt

    changes = {**LONG, "epochs": 1, "batch_size": 6, "train": trained, "evaluate_every_tokens": 290}
    fields = {"vectors": 3} if carrier == "spans" else {}
    expected = run(tmp_path / "a", tokenizer, make_model(carrier, **fields), changes)
    model = make_model(carrier, **fields)
    init = RecurrentTrainer.__init__

    def stopping(self, *args, **kwargs):
        init(self, *args, **{**kwargs, "callbacks": [*kwargs["callbacks"], Stop()]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecurrentTrainer, "__init__", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "b", tokenizer, model, changes)
    assert on_disk.last_checkpoint(tmp_path / "b").name == "checkpoint-2"
    result = run(tmp_path / "b", tokenizer, make_model(carrier, **fields), changes)
    assert result.history == expected.history


@pytest.mark.parametrize("changes", [{"max_tokens": 470}, {"learning_rate": 0.5, "patience": 1}])
def test_killed_between_the_last_step_and_the_result(tokenizer, tmp_path, monkeypatch, changes):
    """Nothing more is trained, whether the tokens had run out or the patience."""
    changes = {**LONG, "save_every_tokens": None, **changes}
    expected = run(tmp_path / "a", tokenizer, None, changes)
    assert expected.steps < 12
    with monkeypatch.context() as patch:
        patch.setattr(RecurrentTrainer, "_load_best_model", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path / "b", tokenizer, None, changes)
    model = make_model()
    result = run(tmp_path / "b", tokenizer, model, changes)
    assert result.history == expected.history and result.seconds > 0
    assert same(model, AutoModelForCausalLM.from_pretrained(tmp_path / "a"))


def test_a_checkpoint_that_is_not_whole_is_not_used(uninterrupted, tokenizer, tmp_path):
    killed_while(lambda: (interrupt_after(7), run(tmp_path, tokenizer, None, LONG)))
    good = on_disk.last_checkpoint(tmp_path)
    assert good.name == "checkpoint-6"
    for number, file in enumerate(("model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json")):
        bad = tmp_path / f"checkpoint-{8 + number}"
        shutil.copytree(good, bad)
        content = (good / file).read_bytes()
        (bad / file).write_bytes(content[: len(content) // 2])
    (tmp_path / "checkpoint-99").mkdir()
    assert on_disk.last_checkpoint(tmp_path) == good
    assert run(tmp_path, tokenizer, None, LONG).history == uninterrupted[1].history


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("PytorchStreamWriter failed writing")],
)
def test_a_full_disk(uninterrupted, tokenizer, tmp_path, monkeypatch, error):
    save, calls = torch.save, []

    def full(value, path, *args, **kwargs):
        calls.append(path)
        if "checkpoint-6" in str(path):
            raise error
        save(value, path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(CheckpointNotSaved, match=r"checkpoint-6 could not .* last complete .*checkpoint-4\."):
            run(tmp_path, tokenizer, None, LONG)
    assert on_disk.last_checkpoint(tmp_path).name == "checkpoint-4"
    assert not (tmp_path / on_disk.UNFINISHED).exists()
    assert run(tmp_path, tokenizer, None, LONG).history == uninterrupted[1].history


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_no_number_stops_the_run(tokenizer, tmp_path, monkeypatch, value, where):
    loss = RecurrentTrainer.compute_loss

    def bad(self, *args, **kwargs):
        result = loss(self, *args, **kwargs)
        if self.state.global_step == 4:
            if where == "loss":
                return result * value
            result.register_hook(lambda gradient: gradient * value)
        return result

    monkeypatch.setattr(RecurrentTrainer, "compute_loss", bad)
    message = rf"at step 5 the {where}.* is (nan|inf).*last complete checkpoint is .*checkpoint-4\."
    with pytest.raises(NonFiniteLossError, match=message):
        run(tmp_path, tokenizer, None, LONG | {"save_every_tokens": 100})
    last = on_disk.last_checkpoint(tmp_path)
    assert last.name == "checkpoint-4" and not (tmp_path / "training.json").exists()
    assert on_disk.all_checkpoints(tmp_path) == on_disk.complete_checkpoints(tmp_path)
    assert all(torch.isfinite(p).all() for p in AutoModelForCausalLM.from_pretrained(last).parameters())
