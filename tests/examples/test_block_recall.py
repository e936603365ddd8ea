"""The states carry what no window reaches: examples/recall.py, learned by Rec and not by Slide."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import recall  # noqa: E402


def test_answers_stand_further_back_than_layers_reach():
    ids, labels = recall.documents(50, torch.Generator().manual_seed(0))
    late = slice(4 * recall.PAIRS + recall.BETWEEN, None)
    asked = labels[:, late] != -100
    assert asked.sum() == 50 * recall.PAIRS
    for row, wanted in zip(ids, labels, strict=True):
        pairs = dict(zip(row[0 : 2 * recall.PAIRS : 2].tolist(), row[1 : 2 * recall.PAIRS : 2].tolist(), strict=True))
        for place in (wanted != -100).nonzero()[:, 0].tolist():
            assert pairs[int(row[place])] == int(wanted[place])
    gap = recall.BETWEEN
    assert gap > recall.WINDOW * (recall.LAYERS + 1)  # one more layer, as the sliding baseline has
    assert (ids[:, 4 * recall.PAIRS : 4 * recall.PAIRS + gap] >= recall.KEYS + recall.VALUES).all()


@pytest.mark.slow
def test_rec_learns_it():
    assert recall.train("Rec:fixed:skip", steps=4000) > 0.95


@pytest.mark.slow
def test_slide_stays_at_chance():
    assert recall.train("Slide:13L", steps=1500) < 0.2
