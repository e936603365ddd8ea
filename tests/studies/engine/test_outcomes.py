"""Lookups of what runs have measured."""

from __future__ import annotations

from onward_studies.engine.outcomes import Outcomes
from onward_studies.engine.study import StudySetting


def test_values_are_found_by_seed_and_path() -> None:
    ended = {
        "a-seed0": {"read": {"test": {"loss": 1.0, "perplexity": None}}},
        "a-seed1": {"read": {"test": {"loss": 2.0}}, "parameters": 7},
        "a-seed2": {"validation_loss": None},
        "a-seed3": {"read": {"test": {"loss": 9.0}}},
    }
    found = Outcomes(StudySetting(seeds=3), ended, "{}-seed{}".format)
    assert found.of("a", "read/test/loss") == {0: 1.0, 1: 2.0}, "not of a seed that is not asked for"
    assert found.of("a", "read/test/perplexity") == found.of("a", "validation_loss") == found.of("b", "read") == {}
    assert found.of("a", "parameters/more") == {}
    assert (found.first("a", "read/test/loss"), found.first("a", "parameters"), found.first("b", "x")) == (1.0, 7, None)
    assert set(found.ended("a")) == {0, 1, 2}
