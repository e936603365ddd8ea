"""The overlap tables: the smallest scale, and what made-up readings come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onward_studies import STUDIES
from onward_studies.engine.intervals import FAILS, HOLDS, UNSEEN
from onward_studies.window_recurrent import overlap
from onward_studies.window_recurrent.runs import run_name
from onward_studies.window_recurrent.variants import baseline, constant, recurrent


def test_overlaps(place: Path) -> None:
    saved = json.loads((place / "smoke" / "overlap-books" / "results.json").read_text())["outcomes"]
    plain, ours = (saved[f"books-{name}-window24-seed0"] for name in ("plain", "recurrent"))
    assert set(plain["read"]["test"]) == {"true", "overlap 4", "overlap 8"}
    assert set(ours["read"]["validation"]) == {"true", "swapped"} and ours["learning_rate"] in (1e-3, 3e-3)
    assert ours["parameters"] > plain["parameters"] and plain["flops"]["8"] == pytest.approx(1.5 * plain["flops"]["0"])
    counted = plain["counted_flops"]
    assert counted["0"] < counted["8"] < 1.5 * counted["0"], "there is no head for what is read again"
    assert counted["0"] < ours["counted_flops"]["0"]
    # The best rate is the one whose trial had the lowest validation loss.
    trials = {o["learning_rate"]: o["validation_loss"] for n, o in saved.items() if "rate-recurrent" in n}
    assert ours["learning_rate"] == min(trials, key=trials.__getitem__)


def test_the_papers_figures_stand_beside_the_same_part_of_a_window() -> None:
    sizes = STUDIES["overlap-books"].setting("paper", changes={"overlaps": (0, 30), "more_overlaps": (70,)}).sizes
    assert [overlap.place_in_paper(sizes, o) for o in (0, 30, 70, 150)] == [0, 3, None, 7]
    laptop = STUDIES["overlap-books"].sizes["laptop"]
    places = [overlap.place_in_paper(laptop, o) for o in (*laptop.overlaps, *laptop.more_overlaps)]
    assert places == list(range(9))
    with pytest.raises(ValueError, match="they begin with 0"):
        study = STUDIES["overlap-books"]
        study.runs(study.setting("smoke", changes={"overlaps": (4,)}))


def readings(losses: dict[str, float], corpus: str = "books", scale: str = "smoke") -> dict[str, Any]:
    """Two seeds, which differ by 0.1 in all."""
    sizes = STUDIES[f"overlap-{corpus}"].setting(scale).sizes
    base = baseline(sizes)
    outcomes: dict[str, Any] = {}
    for seed in (0, 1):
        for variant, reads in (
            (base, ["true", *(f"overlap {o}" for o in base.others)]),
            (recurrent(sizes, sizes.window), ["true", "swapped"]),
            (recurrent(sizes, sizes.window, 4), ["true", "swapped"]),
            (constant(sizes, sizes.window), ["true"]),
        ):
            found = {name: losses.get(f"{variant.label} {name}", 3.0) + 0.1 * seed for name in reads}
            read = {name: {"loss": loss, "word_perplexity": loss} for name, loss in found.items()}
            flops = {
                kind: dict.fromkeys(map(str, (variant.overlap, *variant.others)), count)
                for kind, count in (("flops", 1e6), ("counted_flops", 2e6))
            }
            outcomes[run_name(sizes, corpus, variant, seed)] = {"read": {"test": read, "validation": read}, **flops}
    return outcomes


def test_an_infinite_perplexity_is_in_no_mean() -> None:
    setting = STUDIES["overlap-books"].setting("smoke", seeds=2)
    outcomes = readings({})
    exploded = outcomes[run_name(setting.sizes, "books", recurrent(setting.sizes, 24), 1)]
    exploded["read"]["test"]["true"] = {"loss": 900.0, "word_perplexity": None}
    table = overlap.report("books", setting, outcomes).markdown()
    assert "| recurrent | 0 | 3.00 | 3.00 |" in table


def test_what_readings_come_to() -> None:
    setting = STUDIES["overlap-books"].setting("smoke", seeds=2)
    found = overlap.report("books", setting, readings({"recurrent true": 2.9, "plain overlap 4": 2.8}))
    assert "| recurrent | 0 | 2.95 ± 0.64 | 2.95 ± 0.64 | 1e+06 | 2e+06 | 155.27 | 133.02 |" in found.markdown()
    verdicts = {claim.claim: (claim.verdict, claim.we_saw) for claim in found.claims}
    assert verdicts["Recurrence lowers perplexity at equal windows, without overlap"] == (
        HOLDS,
        "0.1000 ± 0.0000 nats per token better",
    )
    assert verdicts["Recurrence without overlap is better than plain windows with an overlap of 4"][0] == FAILS
    one_seed = STUDIES["overlap-books"].setting("smoke", seeds=1)
    assert {claim.verdict for claim in overlap.report("books", one_seed, readings({})).claims} == {UNSEEN}
    assert "Too little" in overlap.report("books", setting, {}).summary
    alone = readings({})
    for outcome in alone.values():
        outcome["read"]["test"].pop("swapped", None)
    found = overlap.report("books", setting, alone)
    assert "another document's" not in found.markdown() and "Nothing is swapped: that takes two" in found.markdown()
    assert any(claim.claim.startswith("It is more than adaptation") for claim in found.claims)


@pytest.mark.parametrize(
    ("corpus", "claim", "saw"),
    [("books", "an overlap of 6", "134.30 -> 133.02"), ("wikipedia", "an overlap of 6 (ours)", "27.96 -> 29.01")],
)
def test_what_the_paper_saw_is_of_its_tables(corpus: str, claim: str, saw: str) -> None:
    setting = STUDIES[f"overlap-{corpus}"].setting("laptop", seeds=2)
    found = overlap.report(corpus, setting, readings({}, corpus, "laptop"))
    assert f"Recurrence without overlap is better than plain windows with {claim} | {saw} |" in found.markdown()
