"""Several processes of one run: one is lost, or the first is refused."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from block_runs import LONG, exact_model, run
from processes import on_two_processes
from small_models import byte_tokenizer
from training_runs import losses
from transformers import TrainerCallback

from onward.training import RecurrentTrainer
from onward.training import checkpoints as on_disk
from onward.training.folders import alone_in
from onward.utils import processes


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


class LostAt(TrainerCallback):
    """Kills the second process at the beginning of a step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if args.process_index == 1 and state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def lose_one(folder, tokenizer, told):
    init = RecurrentTrainer.__init__
    RecurrentTrainer.__init__ = lambda self, *a, **k: (init(self, *a, **k), self.add_callback(LostAt(6)))[0]
    try:
        run(folder, tokenizer, exact_model(), **LONG)
    except processes.ProcessLost as error:
        told.write_text(str(error))
        os._exit(3)


def test_a_lost_process_is_named_and_the_same_command_goes_on(tokenizer, tmp_path):
    expected = run(tmp_path / "one", tokenizer, exact_model(), **LONG)
    told = tmp_path / "told"
    assert on_two_processes(partial(lose_one, tmp_path / "two", tokenizer, told)) == [3, -signal.SIGKILL]
    last = on_disk.last_checkpoint(tmp_path / "two")
    assert "process 1 of this run does not answer process 0" in told.read_text()
    assert f"Run the same command again: the last complete checkpoint is {last}" in told.read_text()
    result = run(tmp_path / "two", tokenizer, exact_model(), **LONG)
    assert losses(result) == pytest.approx(losses(expected), abs=1e-6)


def be_refused(folder: Path, tokenizer):
    try:
        run(folder, tokenizer, exact_model(), **LONG)
    except FileExistsError:
        os._exit(4)
    except processes.FirstProcessFailed:
        os._exit(5)


def test_where_the_first_is_refused_all_are(tokenizer, tmp_path):
    with alone_in(tmp_path):
        assert on_two_processes(partial(be_refused, tmp_path, tokenizer)) == [4, 5]
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_what_one_process_finds(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert processes.is_first() and processes.told_by_the_first(lambda: 7) == 7
    with pytest.raises(RuntimeError, match="^Connection closed by peer$"), processes.losses_explained(lambda: "no"):
        raise RuntimeError("Connection closed by peer")  # nothing of ours, where there is but one process


@pytest.mark.parametrize("told, expected", [("true", True), ("false", False)])
def test_accelerate_is_told_to_use_the_cpu(monkeypatch, told, expected):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", told)
    assert processes.on_cpu() is expected
