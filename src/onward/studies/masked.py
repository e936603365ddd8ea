"""`mlm` and `stability`: BERT beside its recurrent twin at equal parameters."""

from __future__ import annotations

from .masked_runs import CORPORA, SCALES, check, runs
from .masked_tables import report_mlm, report_stability
from .study import Study

MLM = Study(
    "mlm",
    "Simple recurrence: MLM loss and fine-tuned average at equal parameters",
    CORPORA,
    SCALES,
    runs,
    report_mlm,
    check,
)
STABILITY = Study(
    "stability",
    "Simple recurrence: scores over learning rates and seeds, share of failed runs (the runs of mlm)",
    CORPORA,
    SCALES,
    runs,
    report_stability,
    check,
)
