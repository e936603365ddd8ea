"""Window sizes and the Pareto frontier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from study_command import run

from onward_studies import STUDIES
from onward_studies.engine.intervals import FAILS, HOLDS, UNSEEN, Interval
from onward_studies.window_recurrent import runs as windows
from onward_studies.window_recurrent import window_size
from onward_studies.window_recurrent.runs import run_name
from onward_studies.window_recurrent.variants import recurrent


def test_window_sizes_have_runs_of_the_overlaps(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    real = windows.train_once

    def train_once(work: Any, *given: Any) -> Any:
        trained.append(work.folder.name)
        return real(work, *given)

    monkeypatch.setattr(windows, "train_once", train_once)
    said = run(f"study pareto --scale smoke --seeds 1 --out {place}")
    assert "| recurrent, overlap 4 | 24 |" in said and "| plain, overlap 4 | 16 |" in said and "| yes |" in said
    assert trained == ["books-plain-window16-seed0", "books-recurrent-window16-seed0"]
    said = run(f"study window-size --scale smoke --seeds 1 --out {place}")
    assert "| 16 | " in said and "| 24 | " in said and len(trained) == 2


def test_pairs_stay_pairs_where_a_seed_is_missing() -> None:
    study = STUDIES["window-size"]
    setting = study.setting("smoke", seeds=3)
    gaps = {16: (0.1, 0.5, 0.3), 24: (0.05, 0.45, 0.25)}  # by window and seed: always 0.05 apart
    outcomes: dict[str, Any] = {}
    for variant in window_size.variants(setting.sizes):
        for seed in range(3):
            loss = 3.0 - (gaps[variant.window][seed] if variant.label == "recurrent" else 0)
            read = {"true": {"loss": loss, "word_perplexity": loss}}
            outcomes[run_name(setting.sizes, "books", variant, seed)] = {"read": {"test": read}, "flops": {"0": 1.0}}
    del outcomes[run_name(setting.sizes, "books", recurrent(setting.sizes, 16), 0)]
    (claim,) = window_size.report_sizes(setting, outcomes).claims
    assert claim.we_saw.startswith("0.0500 ± 0.0000") and claim.verdict == HOLDS


def test_the_frontier_is_judged_by_paired_differences() -> None:
    def point(label: str, flops: float, *losses: float) -> window_size.Point:
        return window_size.Point(label, 1, 0, flops, Interval.of(losses), dict(enumerate(losses)))

    plain = point("plain, overlap 0", 1.0, 3.0, 3.2)
    assert window_size.judge([plain, point("recurrent, overlap 0", 1.0, 2.9, 3.1)]) == HOLDS
    assert window_size.judge([plain, point("recurrent, overlap 0", 1.0, 3.1, 3.3)]) == FAILS
    assert window_size.judge([plain, point("recurrent, overlap 0", 1.0, 2.9, 3.4)]) == UNSEEN
    one_seed = [point("plain, overlap 0", 1.0, 3.0), point("recurrent, overlap 0", 1.0, 2.0)]
    assert window_size.judge(one_seed) == UNSEEN and window_size.judge([plain]) == UNSEEN
    # All must be on it, and recurrent ones beat each other, too; with nothing as cheap there is nothing to compare.
    better, worse = point("recurrent, overlap 0", 1.1, 2.8, 3.0), point("recurrent, overlap 4", 1.2, 2.9, 3.1)
    assert window_size.judge([plain, better, worse]) == FAILS
    assert window_size.judge([plain, better, point("recurrent, overlap 4", 1.2, 2.7, 3.1)]) == UNSEEN
    cheapest = point("recurrent, overlap 0", 0.9, 9.0, 9.0)
    assert window_size.judge([plain, cheapest]) == window_size.judge([cheapest]) == UNSEEN
    assert window_size.judge([plain, cheapest, better]) == HOLDS


def test_the_frontier_has_what_nothing_beats() -> None:
    scores = {"a": (1.0, 9.0), "b": (2.0, 8.0), "c": (2.0, 8.5), "d": (3.0, 8.0), "e": (4.0, 7.0)}
    found = [
        window_size.Point(name, 1, 0, flops, Interval.of([perplexity])) for name, (flops, perplexity) in scores.items()
    ]
    assert [point.label for point in window_size.frontier(found) if point.on_frontier] == ["a", "b", "e"]
