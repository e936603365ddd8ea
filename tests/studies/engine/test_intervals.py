"""Intervals over seeds, and verdicts."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import t

import onward
from onward_studies.engine.intervals import FAILS, HOLDS, UNSEEN, Interval, differences, over, students_t, verdict


def test_intervals_are_students() -> None:
    interval = Interval.of([1.0, 2.0, 4.0])
    assert interval.mean == pytest.approx(7 / 3)
    assert interval.half == pytest.approx(4.302653 * 1.527525 / math.sqrt(3), rel=1e-5)
    assert interval.text(2) == "2.33 ± 3.79" and Interval.of([1.5]).text(1) == "1.5"
    gap = over({0: 3.0, 1: 5.0, 3: 9.0}, {1: 3.0, 0: 1.0, 2: 7.0})
    assert gap is not None and gap.half == 0 and gap.values == (2.0, 2.0), "of the seeds that both have"
    assert differences({0: 1.0}, {1: 1.0}) == {} and over({0: 1.0}, {1: 1.0}) is None
    with pytest.raises(ValueError, match="no values"):
        Interval.of([])


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 30, 99, 1000])
def test_student_is_right(freedom: int) -> None:
    for confidence in (0.5, 0.9, 0.95, 0.999):
        assert students_t(freedom, confidence) == pytest.approx(t.ppf((1 + confidence) / 2, freedom), rel=1e-9)


def test_nothing_here_needs_scipy() -> None:
    """It comes with scikit-learn only: a study would end after hours with its name."""
    sources = Path(onward.__file__).parent.rglob("*.py")
    assert not [file for file in sources if re.search(r"^\s*(from|import) scipy", file.read_text(), re.MULTILINE)]


def test_a_verdict_leaves_out_nothing_or_says_so() -> None:
    assert verdict(Interval.of([1.0, 1.1, 0.9])) == HOLDS
    assert verdict(Interval.of([-1.0, -1.1, -0.9])) == FAILS
    assert verdict(Interval.of([-1.0, 1.1, 0.9])) == UNSEEN
    assert verdict(Interval.of([5.0])) == UNSEEN, "one seed shows nothing"
    assert verdict(replace(Interval.of([1.0, 2.0]), half=0.1)) == HOLDS
