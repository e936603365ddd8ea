"""Sizes of studies: what their fields declare, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from onward.utils.fields import FieldError
from onward_studies import STUDIES
from onward_studies.engine.sizes import CountOrZero, LearningRate, LearningRates, by_scale, check_size, scales_of


@dataclass(frozen=True)
class Declared:
    rates: LearningRates = (0.1,)
    carrier_rate: LearningRate | None = None
    warmup: CountOrZero = 10
    tokens: int = 5
    held: int = 0
    longest: int | None = None


@pytest.mark.parametrize(
    ("name", "value"),
    [("rates", ()), ("rates", (0.1, 0)), ("carrier_rate", 0), ("warmup", -1), ("tokens", 0), ("tokens", 1.5)]
    + [("held", -1), ("held", True), ("longest", -3), ("rates", (float("nan"),)), ("rates", 0.1)],
)
def test_what_is_refused(name: str, value: object) -> None:
    with pytest.raises(FieldError) as refused:
        check_size(Declared(), name, value)
    assert (refused.value.field, refused.value.value) == (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rates", [0.1, 1]), ("carrier_rate", None), ("carrier_rate", 1e-3), ("warmup", 0), ("held", 3), ("longest", 0)],
)
def test_what_may_be(name: str, value: object) -> None:
    check_size(Declared(), name, value)


def test_learning_rates_and_what_may_be_zero_are_declared() -> None:
    """In all studies: a field that is added must not be forgotten."""
    for study in STUDIES.values():
        sizes = study.sizes["laptop"]
        for name in vars(sizes):
            if name.endswith("rates"):
                with pytest.raises(FieldError, match="give at least one"):
                    check_size(sizes, name, ())
            if name.endswith("rate"):
                with pytest.raises(FieldError, match="more than 0"):
                    check_size(sizes, name, 0.0)
            if name in ("warmup", "warmup_steps", "distractors", "shown"):
                check_size(sizes, name, 0)


@dataclass(frozen=True)
class Scaled(Declared):
    tokens: int = by_scale(1, 2)
    sets: dict[str, int] = by_scale({"a": 1}, {}, {"b": 2})


def test_sizes_for_every_scale() -> None:
    found = scales_of(Scaled)
    assert list(found) == ["smoke", "laptop", "paper"] and found["paper"] == Scaled() and found["paper"].held == 0
    assert [sizes.tokens for sizes in found.values()] == [1, 2, 2], "the last value holds for the rest"
    assert [sizes.sets for sizes in found.values()] == [{"a": 1}, {}, {"b": 2}]
