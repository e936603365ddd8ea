"""Means over seeds, their confidence intervals, and verdicts about differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOLDS, FAILS, UNSEEN = "holds", "does not hold", "not visible at this scale"
ABOUT_INTERVALS = "± is half a 95 % interval over seeds (Student)"


@dataclass(frozen=True)
class Interval:
    """A mean, and how far the true mean may be away with 95 % confidence; None for a single value."""

    mean: float
    half: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """By Student's distribution, since seeds are few."""
        if not values:
            raise ValueError("an interval of no values: run at least one seed")
        mean = statistics.fmean(values)
        if len(values) == 1:
            return cls(mean, None, tuple(values))
        error = statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, students_t(len(values) - 1) * error, tuple(values))

    @property
    def low(self) -> float:
        return -math.inf if self.half is None else self.mean - self.half

    @property
    def high(self) -> float:
        return math.inf if self.half is None else self.mean + self.half

    def text(self, digits: int = 3) -> str:
        return f"{self.mean:.{digits}f}" + ("" if self.half is None else f" ± {self.half:.{digits}f}")


def students_t(freedom: int, confidence: float = 0.95) -> float:
    """The half-width of an interval in standard errors; `freedom`: the number of values minus one."""
    low, high = 0.0, math.pi / 2  # the angle whose tangent is t / sqrt(freedom)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _share_within(angle: float, freedom: int) -> float:
    """The probability that Student's t lies between -t and t: a finite sum for whole degrees of freedom (Abramowitz
    and Stegun, 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for number in range(1 + odd, freedom, 2):
        total += term
        term *= number / (number + 1) * math.cos(angle) ** 2
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def verdict(gain: Interval) -> str:
    """On a claim that something is larger: whether the difference's interval excludes 0, and on which side."""
    if gain.low > 0:
        return HOLDS
    return FAILS if gain.high < 0 else UNSEEN


def differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Seed by seed, of the seeds that both have."""
    return {seed: ours[seed] - theirs[seed] for seed in sorted(set(ours) & set(theirs))}


def over(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """The interval of the paired differences; None if there are none."""
    found = differences(ours, theirs)
    return Interval.of(list(found.values())) if found else None


def cell(values: Mapping[int, float] | Interval | None, digits: int) -> str:
    """For a table: the mean over seeds and its interval; empty without values."""
    if not values:
        return ""
    return (values if isinstance(values, Interval) else Interval.of(list(values.values()))).text(digits)
