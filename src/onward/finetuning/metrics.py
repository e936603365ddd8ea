"""GLUE's metrics, from 0 to 1 (correlations from -1). Answers that are all the same earn 0, never NaN."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

INSTALL = "GLUE's metrics are those of scikit-learn and scipy: pip install scikit-learn scipy"


def _sklearn() -> Any:
    return _required("sklearn.metrics")


def _scipy() -> Any:
    return _required("scipy.stats")


def _required(module: str) -> Any:
    """Only when it is asked for: no other part of the library needs them."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(INSTALL) from None


def _correlation(correlate: Callable[..., Any], predictions: np.ndarray, labels: np.ndarray) -> float:
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    value = float(correlate(predictions, labels).statistic)
    return value if np.isfinite(value) else 0.0  # of predictions that differ by less than they are exact


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda predictions, labels: float(_sklearn().accuracy_score(labels, predictions)),
    "f1": lambda predictions, labels: float(_sklearn().f1_score(labels, predictions, zero_division=0)),
    "matthews": lambda predictions, labels: float(_sklearn().matthews_corrcoef(labels, predictions)),
    "pearson": lambda predictions, labels: _correlation(_scipy().pearsonr, predictions, labels),
    "spearman": lambda predictions, labels: _correlation(_scipy().spearmanr, predictions, labels),
}


def measure(names: Iterable[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """predictions, labels: [N]"""
    return {name: METRICS[name](predictions, labels) for name in names}
