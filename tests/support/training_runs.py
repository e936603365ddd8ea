"""Trainings of all kinds: what they came to, and one that is killed."""

import os
import signal

import torch
from transformers import TrainerCallback

from onward.training import RecurrentTrainer


def losses(result):
    return [entry["loss"] for entry in result.history if "loss" in entry]


def validations(result):
    return [entry["validation_loss"] for entry in result.history if "validation_loss" in entry]


def same(model, other):
    pairs = zip(model.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == other_name and torch.equal(a, b) for (name, a), (other_name, b) in pairs)


class Interrupted(TrainerCallback):
    """Kills its process like a power cut, at the end of a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def interrupt_after(step):
    """In this process, every training from now on."""
    init = RecurrentTrainer.__init__

    def with_interruption(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.add_callback(Interrupted(step))

    RecurrentTrainer.__init__ = with_interruption
