from .cost import Cost, cost, counted_flops_per_token, formula_flops_per_token
from .perplexity import (
    Curve,
    Difference,
    DocumentScore,
    Measures,
    NothingToSwap,
    context_recovered,
    full_context,
    measure,
    measure_memories,
    paired_difference,
    plain,
)
from .report import Row
from .run import at_overlap, evaluate

__all__ = [
    "Cost",
    "Curve",
    "Difference",
    "DocumentScore",
    "Measures",
    "NothingToSwap",
    "Row",
    "at_overlap",
    "context_recovered",
    "cost",
    "counted_flops_per_token",
    "evaluate",
    "formula_flops_per_token",
    "full_context",
    "measure",
    "measure_memories",
    "paired_difference",
    "plain",
]
