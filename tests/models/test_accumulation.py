"""A batch gives the same gradients whether it is read at once or spread over calls and processes: for every head."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import on_two_processes
from systems import HEADS, examples
from transformers import Trainer, TrainingArguments


class Remembering(Trainer):
    """Keeps the gradients of the update."""

    gradients: dict[str, torch.Tensor]

    def _clip_grad_norm(self, model: Any) -> Any:
        parameters = self.accelerator.unwrap_model(model).named_parameters()
        self.gradients = {name: p.grad.clone() for name, p in parameters if p.grad is not None}
        return super()._clip_grad_norm(model)


def gradients(name: str, folder: Path, rows: int, turns: int, disabled: bool = False) -> dict[str, torch.Tensor]:
    model = HEADS[name][0]().double()
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=turns,
        max_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Remembering(model, arguments, train_dataset=examples(HEADS[name][1]))
    trainer._get_train_sampler = lambda *args, **kwargs: None  # every order gives the same sum, but not the same bits
    if disabled:
        with model.recurrence_disabled():
            trainer.train()
    else:
        trainer.train()
    return trainer.gradients


def assert_equal(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert got.keys() == wanted.keys() and sum(float(g.abs().sum()) for g in wanted.values()) > 0
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", HEADS)
def test_a_batch_in_turns_gives_the_gradients_of_the_whole(name: str, tmp_path: Path) -> None:
    whole = gradients(name, tmp_path, 8, 1)
    assert_equal(gradients(name, tmp_path, 2, 4), whole)
    # Not only the same both times: the same as the mean of all labels without any Trainer.
    model, rows = HEADS[name][0]().double().train(), examples(HEADS[name][1])
    model(**{key: torch.stack([row[key] for row in rows]) for key in rows[0]}).loss.backward()
    assert_equal({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, whole)


@pytest.mark.parametrize("name", ["window tokens", "window classes", "window masked", "window answers"])
def test_so_does_the_backbone_alone(name: str, tmp_path: Path) -> None:
    assert_equal(gradients(name, tmp_path, 2, 4, disabled=True), gradients(name, tmp_path, 8, 1, disabled=True))


def trained_by_two(name: str, folder: Path) -> None:
    torch.save(gradients(name, folder, 2, 2), folder / f"rank{torch.distributed.get_rank()}.pt")


@pytest.mark.parametrize("name", ["window tokens", "window many", "window causal", "block causal", "bert masked"])
def test_two_processes_give_the_gradients_of_one(name: str, tmp_path: Path) -> None:
    assert on_two_processes(partial(trained_by_two, name, tmp_path)) == [0, 0]
    whole = gradients(name, tmp_path, 8, 1)
    for rank in (0, 1):
        assert_equal(torch.load(tmp_path / f"rank{rank}.pt", weights_only=True), whole)
