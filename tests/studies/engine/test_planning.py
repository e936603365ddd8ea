"""The papers' scale: every model at its full size, without values; what it takes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from study_command import run
from torch import nn

from onward import BlockRecurrentConfig
from onward.evaluation import block_flops_per_token
from onward_studies import STUDIES
from onward_studies.block_recurrent.rows import BlockRow
from onward_studies.engine.planning import GPUS, UTILISATION, gpus, plan_of

WIDTH = 1024


@cache
def plans(name: str) -> dict[str, Any]:
    study = STUDIES[name]
    changes = {"texts": ("books",)} if name == "gates" else {}  # the models are the same for all
    runs = study.runs(study.setting("paper", seeds=1, changes=changes))
    return {run.name: run.plan() for run in runs if run.plan is not None}


def test_what_is_counted() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.up, self.down = nn.Embedding(10, 4), nn.Linear(4, 8), nn.Linear(8, 4)

        def num_parameters(self) -> int:
            return sum(p.numel() for p in self.parameters())

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(self.embed(ids)).sigmoid())

    plan = plan_of(Model, 5, rows=3, tokens=1000)
    assert plan.parameters == 40 + 40 + 36 and plan.flops_per_token == 2 * (4 * 8 + 8 * 4)
    # The ids (8 bytes each), the embeddings, and the sigmoid: its output is kept once for both that need it.
    assert plan.kept == 5 * 8 + 5 * 4 * 4 + 5 * 8 * 4
    assert plan.training_flops == 3 * 128 * 1000
    assert plan_of(Model, 5, rows=3, tokens=None).training_flops is None


def test_window_models_have_the_papers_flops() -> None:
    column = {0: 1.75e8, 5: 1.78e8, 10: 1.81e8, 30: 1.94e8, 50: 2.10e8}
    found = plans("overlap-books")
    for overlap, flops in column.items():
        name = f"books-recurrent-window300{f'-overlap{overlap}' if overlap else ''}-seed0"
        assert found[name].formula == pytest.approx(flops, rel=6e-3)
    plain = found["books-plain-window300-seed0"]
    # GPT-2 small's parameters; with the head that the formula leaves out, its FLOPs.
    assert plain.parameters == 124_439_808
    assert plain.flops_per_token == pytest.approx(plain.formula + 2 * 50257 * 768 + 2 * 12 * 300 * 768, rel=1e-3)
    layers = plain.flops_per_token - 2 * 50257 * 768
    overlapping = found["books-recurrent-window300-overlap50-seed0"].flops_per_token
    assert overlapping == pytest.approx(1.2 * layers + 2 * 50257 * 768, rel=1e-3), "read, not scored again"


def test_block_models_have_the_papers_parameters() -> None:
    found = plans("gates")
    embeddings = 32_000 * WIDTH
    for name, millions in (("xl-512", 151), ("slide-12l", 151), ("slide-13l", 164)):
        assert round((found[f"blocks12-books-{name}-seed0"].parameters - embeddings) / 1e6) == millions
    assert {plan.tokens for plan in found.values()} == {500_000 * 131_072}
    study = STUDIES["gates"]
    runs = {run.name: run for run in study.runs(study.setting("paper", seeds=1))}
    code = runs["blocks12-code-slide-13l-seed0"]
    assert code.settings["tokens"] == 250_000 * 8 * 131_072 and code.settings["rate"] == "the best of (0.25,)"
    assert found["blocks12-books-xl-512-seed0"].rows == 256
    for name in ("XL:2048", "Memorizing:32k", "Feedback:fixed:skip"):  # with windows and memories that are full
        planned = found[f"blocks12-books-{BlockRow(name).slug}-seed0"].flops_per_token
        assert planned == block_flops_per_token(BlockRecurrentConfig.preset(name, vocab_size=32_000))
    large = plans("scale")["blocks12-books-rec-fixed-skip-large-seed0"]
    assert round((large.parameters - embeddings) / 1e6) == 320 and large.rows == 128


def test_masked_models_have_berts_parameters() -> None:
    found = list(plans("mlm").values())
    assert all(plan.parameters == pytest.approx(found[0].parameters, rel=1e-3) for plan in found)
    assert found[0].tokens == 1_000_000 * 256 * 512


@pytest.mark.parametrize("name", ["window-size", "pareto", "carriers", "pretrained", "memory", "ablations"])
def test_others_can_be_planned(name: str) -> None:
    assert plans(name)


def test_the_command_says_what_it_takes() -> None:
    said = run("study scale --scale paper --seeds 1 --plan --gpus 2xH100")
    assert f"On 2 × H100, at {UTILISATION:.0%} of its speed" in said
    plan = plans("scale")["blocks12-books-slide-13l-large-seed0"]
    hours = plan.training_flops / (2 * UTILISATION * GPUS["H100"][0]) / 3600
    row = next(line for line in said.splitlines() if "slide-13l-large" in line)
    assert f"| {hours:,.1f} hours |" in row and "of 64 |" in row
    assert "Not counted: bpe-32000-books." in said and "keep them less busy" in said
    assert " minutes |" in run("study hotpotqa --scale paper --seeds 1 --plan --gpus 2xH100"), "not 0.0 hours"
    for text in ("8", "8xB200", "0xA100", "A100x8"):
        with pytest.raises(ValueError, match="write how many and which, as 8xA100"):
            gpus(text)
