"""`mlm` and `stability`: BERT beside its recurrent twin at equal parameters."""

from __future__ import annotations

from ..engine.study import Study
from .runs import CORPORA, SCALES, check, runs
from .tables import report_mlm, report_stability

MLM = Study(
    "mlm",
    CORPORA,
    SCALES,
    runs,
    report_mlm,
    check,
)
STABILITY = Study(
    "stability",
    CORPORA,
    SCALES,
    runs,
    report_stability,
    check,
)
STUDIES = [MLM, STABILITY]
