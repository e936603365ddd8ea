"""The studies of window recurrence: the smallest scale from beginning to end, and what made-up readings come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_masked_study import run

from onward.studies import STUDIES, overlap
from onward.studies.intervals import FAILS, HOLDS, UNSEEN
from onward.studies.windows import constant, recurrent, run_name


def test_smoke_of_the_backbone_and_overlaps(tmp_path: Path) -> None:
    assert "| GPT-2's shape |" in run(f"study backbone --scale smoke --out {tmp_path}")
    said = run(f"study overlap-books --scale smoke --seeds 1 --out {tmp_path}")
    for row in ("| plain | 0 |", "| plain | 8 |", "| constant | 0 |", "| recurrent | 4 |", "| swapped | 4 |"):
        assert row in said
    saved = json.loads((tmp_path / "overlap-books" / "results.json").read_text())["outcomes"]
    plain, ours = (saved[f"books-{name}-window24-seed0"] for name in ("plain", "recurrent"))
    assert set(plain["read"]["test"]) == {"true", "overlap 4", "overlap 8", "full context"}
    assert set(ours["read"]["validation"]) == {"true", "swapped"} and ours["learning_rate"] in (1e-3, 3e-3)
    assert ours["parameters"] > plain["parameters"] and plain["flops"]["8"] == pytest.approx(1.5 * plain["flops"]["0"])
    # The best rate is the one whose trial had the lowest validation loss.
    trials = {o["learning_rate"]: o["validation_loss"] for n, o in saved.items() if "rate-recurrent" in n}
    assert ours["learning_rate"] == min(trials, key=trials.__getitem__)


def readings(losses: dict[str, float]) -> dict[str, Any]:
    """Two seeds, which differ by 0.1 in all."""
    sizes = STUDIES["overlap-books"].setting("smoke").sizes
    base = overlap.baseline(sizes)
    outcomes: dict[str, Any] = {}
    for seed in (0, 1):
        for variant, reads in (
            (base, ["true", *(f"overlap {o}" for o in base.others)]),
            (recurrent(sizes, 24), ["true", "swapped"]),
            (recurrent(sizes, 24, 4), ["true", "swapped"]),
            (constant(sizes, 24), ["true"]),
        ):
            found = {name: losses.get(f"{variant.label} {name}", 3.0) + 0.1 * seed for name in reads}
            read = {name: {"loss": loss, "word_perplexity": loss} for name, loss in found.items()}
            flops = {str(o): 1e6 for o in (variant.overlap, *variant.others)}
            outcomes[run_name("books", variant, seed)] = {"read": {"test": read, "validation": read}, "flops": flops}
    return outcomes


def test_what_readings_come_to() -> None:
    setting = STUDIES["overlap-books"].setting("smoke", seeds=2)
    found = overlap.report("books", setting, readings({"recurrent true": 2.9, "plain overlap 4": 2.8}))
    assert "| recurrent | 0 | 2.95 ± 0.64 | 2.95 ± 0.64 | 1e+06 | 155.27 | 133.02 |" in found.markdown()
    verdicts = {claim.claim: (claim.verdict, claim.we_saw) for claim in found.claims}
    assert verdicts["Recurrence lowers perplexity at equal windows, without overlap"] == (
        HOLDS,
        "0.1000 ± 0.0000 nats per token better",
    )
    assert verdicts["Recurrence without overlap is as good as plain windows with an overlap of 4"][0] == FAILS
    one_seed = STUDIES["overlap-books"].setting("smoke", seeds=1)
    assert {claim.verdict for claim in overlap.report("books", one_seed, readings({})).claims} == {UNSEEN}
    assert "Too little" in overlap.report("books", setting, {}).summary
