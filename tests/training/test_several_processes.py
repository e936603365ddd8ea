"""Block-recurrent models trained by several processes, which share the lanes, and with FSDP the parameters."""

import json
import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.data_loader import BatchSamplerShard
from accelerate.state import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from block_runs import LONG, exact_model, make_model, recipe, run
from processes import on_two_processes
from small_models import byte_tokenizer
from torch.utils.data import BatchSampler, SequentialSampler
from training_runs import interrupt_after, losses, validations
from transformers import AutoModelForCausalLM

from onward.training import checkpoints as on_disk
from onward.training.fsdp import check_fsdp
from onward.training.lanes import CarriedStates, LaneFeed


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


# -- several processes


@pytest.mark.parametrize("processes, at_once, turns", [(1, 4, 1), (2, 2, 1), (2, 1, 3), (3, 2, 2)])
def test_lanes_stay_with_their_process(processes, at_once, turns):
    """What accelerate does with batches that are read in order."""
    steps, lanes = 5, processes * at_once * turns
    order = BatchSampler(SequentialSampler(range(steps * lanes)), at_once, drop_last=False)
    read = []
    for process in range(processes):
        arguments = SimpleNamespace(
            per_device_train_batch_size=at_once,
            world_size=processes,
            process_index=process,
            gradient_accumulation_steps=turns,
            device="cpu",
        )
        groups = CarriedStates(lanes, arguments).groups
        batches = list(BatchSamplerShard(order, processes, process))
        assert len(batches) == steps * turns
        for number, batch in enumerate(batches):
            step, turn = divmod(number, turns)
            assert batch == [step * lanes + lane for lane in groups[turn]]
        read += [index for batch in batches for index in batch]
    assert sorted(read) == list(range(steps * lanes))


def test_two_processes_train_like_one(tokenizer, tmp_path):
    one = run(tmp_path / "one", tokenizer, exact_model(), **LONG)
    folder, changes = tmp_path / "two", {**LONG, "segments_at_once": 1}
    assert on_two_processes(partial(run, folder, tokenizer, exact_model(), **changes)) == [0, 0]
    two = json.loads((folder / "training.json").read_text())
    assert two["machine"]["processes"] == 2 and two["tokens"] == one.tokens
    assert [e["loss"] for e in two["history"] if "loss" in e] == pytest.approx(losses(one), abs=1e-6)
    held_out = [e["validation_loss"] for e in two["history"] if "validation_loss" in e]
    assert held_out == pytest.approx(validations(one), abs=1e-6)


def test_a_run_on_two_processes_goes_on_on_one_and_on_two(tokenizer, tmp_path):
    expected = run(tmp_path / "one", tokenizer, exact_model(), **LONG)

    def killed_at_six():
        interrupt_after(6)
        run(tmp_path / "two", tokenizer, exact_model(), **LONG)

    assert on_two_processes(killed_at_six) == [-signal.SIGKILL] * 2
    shutil.copytree(tmp_path / "two", tmp_path / "copy")
    assert len(on_disk.saved_lanes(on_disk.last_checkpoint(tmp_path / "two"))) == 2
    result = run(tmp_path / "two", tokenizer, exact_model(), **LONG)
    assert losses(result) == pytest.approx(losses(expected), abs=1e-6)
    assert on_two_processes(partial(run, tmp_path / "copy", tokenizer, exact_model(), **LONG)) == [0, 0]
    again = json.loads((tmp_path / "copy" / "training.json").read_text())["history"]
    assert [e["loss"] for e in again if "loss" in e] == pytest.approx(losses(expected), abs=1e-6)


# -- processes that share the parameters


def fsdp_settings(folder):
    """What `accelerate launch` makes of the file in the documentation."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    file = folder / "fsdp.yaml"
    file.write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    arguments = launch_command_parser().parse_args(["--config_file", str(file), "script.py"])
    environment = prepare_multi_gpu_env(_validate_launch_command(arguments)[0])
    return {name: value for name, value in environment.items() if name.startswith(("FSDP_", "ACCELERATE_USE_FSDP"))}


def test_the_documented_fsdp_settings_find_the_layers(tmp_path, monkeypatch):
    for name, value in fsdp_settings(tmp_path).items():
        monkeypatch.setenv(name, value)
    plugin, model = FullyShardedDataParallelPlugin(), make_model()
    plugin.set_auto_wrap_policy(model)
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True
    wrapped = [
        module
        for module in model.modules()
        if plugin.auto_wrap_policy(module=module, recurse=False, nonwrapped_numel=0)
    ]
    assert wrapped == list(model.model.layers)
    check_fsdp(LaneFeed(model, recipe(optimizer="adamw")), plugin)


def pretend_to_have_gpus():
    """accelerate passes over FSDP on CPUs, where torch itself does it."""
    init = PartialState.__init__

    def pretending(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self._shared_state["distributed_type"] = self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = pretending


def test_fsdp_trains_like_one_process_and_goes_on_after_it_was_killed(tokenizer, tmp_path):
    changes = {**LONG, "optimizer": "adamw", "learning_rate": 0.01}
    expected = run(tmp_path / "one", tokenizer, exact_model(), **changes)
    settings = fsdp_settings(tmp_path)

    def work(killed):
        os.environ |= settings
        pretend_to_have_gpus()
        if killed:
            interrupt_after(6)
        run(tmp_path / "two", tokenizer, exact_model(), **changes)

    assert on_two_processes(partial(work, True)) == [-signal.SIGKILL] * 2
    assert on_two_processes(partial(work, False)) == [0, 0]
    two = json.loads((tmp_path / "two" / "training.json").read_text())["history"]
    assert [e["loss"] for e in two if "loss" in e] == pytest.approx(losses(expected), abs=1e-6)
    assert [e["validation_loss"] for e in two if "validation_loss" in e] == pytest.approx(validations(expected))
    a, b = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("one", "two"))
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y)


def test_what_fsdp_cannot_do():
    plugin = SimpleNamespace(fsdp_version=2, state_dict_type="FULL_STATE_DICT")
    plain, feedback = make_model(), make_model(feedback=True)
    for model, changes, settings, message in (
        (plain, {}, {}, "optimizer='adafactor': it needs whole parameters"),
        (plain, {"optimizer": "adamw", "gradient_checkpointing": True}, {}, "go through the layers once for each"),
        (feedback, {"optimizer": "adamw"}, {}, "go through the layers once for each"),
        (plain, {"optimizer": "adamw"}, {"fsdp_version": 1}, "fsdp_version=1 is not supported"),
        (plain, {"optimizer": "adamw"}, {"state_dict_type": "SHARDED_STATE_DICT"}, "leaves no whole model"),
    ):
        with pytest.raises(ValueError, match=message):
            check_fsdp(LaneFeed(model, recipe(**changes)), SimpleNamespace(**vars(plugin) | settings))
