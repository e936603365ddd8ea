"""Gradient checkpointing over blocks: the same losses and gradients, for less memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from block_models import PRESETS, build
from tiny_models import tokens
from torch import Tensor

from onward.models.block_recurrent import modeling_block_recurrent as modeling

SOME = ["Slide:12L", "Rec:fixed:skip", "Rec:lstm:dual", "Feedback:lstm:single", "memory and feedback"]
OPTIONS = ["not itself, with states", "two recurrent layers", "feedback from the last of two", "memory and feedback"]


def two_calls(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Rows out of step, padded at either side and entirely, and a state that is not detached."""
    window = model.config.window
    loss = torch.zeros(())
    state = None
    for seed, (width, counts) in enumerate(((window + 3, (window + 3, 0, 3, 5)), (2 * window, (4, 5, 2 * window, 7)))):
        ids = tokens(4, width, seed=seed)
        mask = torch.arange(width) < torch.tensor(counts)[:, None]
        if seed:
            mask = mask.flip(1)
        output = model(ids, attention_mask=mask, labels=ids, state=state, num_items_in_batch=40)
        loss, state = loss + output.loss, output.state
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss, dict(zip((name for name, _ in model.named_parameters()), gradients, strict=True))


def assert_same(ours: tuple[Tensor, dict[str, Tensor]], theirs: tuple[Tensor, dict[str, Tensor]]) -> None:
    for name, a, b in [("loss", ours[0], theirs[0]), *((n, ours[1][n], theirs[1][n]) for n in ours[1])]:
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


class Counted:
    """Calls of `checkpoint`, or of what it would call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, keeps_everything: bool = False):
        self.calls = 0
        original = modeling.checkpoint

        def counted(function: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return function(*args) if keeps_everything else original(function, *args, **kwargs)

        monkeypatch.setattr(modeling, "checkpoint", counted)


@pytest.mark.parametrize("case", [*PRESETS, *OPTIONS])
def test_checkpointing_gives_the_same_loss_and_all_gradients(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model = build(case).train()
    plain = two_calls(model)
    assert not counted.calls
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing and model.model.is_gradient_checkpointing
    for blocks in (1, 2) if case in SOME else (1,):
        model.config.blocks_per_checkpoint = blocks
        before = counted.calls
        assert_same(two_calls(model), plain)
        # A call in one piece keeps everything: it has nothing to run again.
        assert counted.calls - before == (2 + 3 if blocks == 1 or model.config.feedback else 2)


def test_checkpointing_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model = build("Rec:fixed:skip").train()
    model.gradient_checkpointing_enable()
    model.gradient_checkpointing_disable()
    two_calls(model)
    assert not counted.calls and not model.is_gradient_checkpointing and not model.model.is_gradient_checkpointing


@pytest.mark.parametrize("case", SOME)
def test_dropout_is_the_same_when_a_block_is_run_again(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks draw their own noise, so what is compared is the same blocks, kept and run again."""
    model = build(case, dropout=0.1).train()
    model.gradient_checkpointing_enable()
    found = []
    for keeps_everything in (False, True):
        with monkeypatch.context() as patch:
            counted = Counted(patch, keeps_everything=keeps_everything)
            torch.manual_seed(7)
            found.append(two_calls(model))
            assert counted.calls == 2 + 3
    assert_same(found[0], found[1])
    torch.manual_seed(8)
    assert (two_calls(model)[0] - found[0][0]).abs() > 1e-6


def test_blocks_are_run_again_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("Rec:fixed:skip").train()
    runs = []
    forward = modeling.BlockRecurrentLayer.forward

    def watched(self: Any, *args: Any) -> Any:
        runs.append(self)
        return forward(self, *args)

    monkeypatch.setattr(modeling.BlockRecurrentLayer, "forward", watched)
    model.gradient_checkpointing_enable()
    ids = tokens(1, 3 * model.config.window)
    loss = model(ids, labels=ids).loss
    assert len(runs) == 3 * 3
    loss.backward()
    assert len(runs) == 2 * 3 * 3


@torch.no_grad()
def test_reading_and_generating_take_no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    model = build("Rec:fixed:skip").eval()
    ids = tokens(2, 27)
    plain = model(ids).logits
    model.gradient_checkpointing_enable()
    assert torch.equal(model(ids).logits, plain) and not counted.calls
    text = model.generate(ids[:, :5], max_new_tokens=12, do_sample=False, pad_token_id=0)
    model.gradient_checkpointing_disable()
    assert torch.equal(model.generate(ids[:, :5], max_new_tokens=12, do_sample=False, pad_token_id=0), text)


def test_frozen_embeddings_leave_gradients_to_the_rest() -> None:
    model = build("Rec:fixed:skip").train()
    model.get_input_embeddings().requires_grad_(False)
    wanted = [p for p in model.parameters() if p.requires_grad]
    ids = tokens(2, 27)
    plain = torch.autograd.grad(model(ids, labels=ids).loss, wanted)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # as Trainer does
    for ours, theirs in zip(torch.autograd.grad(model(ids, labels=ids).loss, wanted), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
