"""GLUE's metrics, from 0 to 1 (correlations from -1). Constant predictions earn 0, never NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Of label 1."""
    right = np.sum((predictions == 1) & (labels == 1))
    said, true = np.sum(predictions == 1), np.sum(labels == 1)
    return float(2 * right / (said + true)) if said + true else 0.0


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """For labels 0 and 1 this is Matthews' correlation."""
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    ours, theirs = (values.astype(np.float64) - values.mean(dtype=np.float64) for values in (predictions, labels))
    size = math.sqrt(float(ours @ ours)) * math.sqrt(float(theirs @ theirs))
    # Predictions may differ by less than their precision.
    return min(1.0, max(-1.0, float(ours @ theirs) / size)) if size and math.isfinite(size) else 0.0


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    return pearson(ranks(predictions), ranks(labels))


def ranks(values: np.ndarray) -> np.ndarray:
    """[N]: equal values share the mean of their places."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": pearson,
    "pearson": pearson,
    "spearman": spearman,
}


def measure(names: Iterable[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """predictions, labels: [N]"""
    return {name: METRICS[name](predictions, labels) for name in names}
