from .cost import (
    BlockCost,
    Cost,
    block_cost,
    block_flops_per_token,
    cost,
    counted_flops_per_token,
    formula_flops_per_token,
)
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
    word_perplexity,
)
from .report import Row
from .run import evaluate
from .window_rows import at_overlap

__all__ = [
    "BlockCost",
    "Cost",
    "Curve",
    "Difference",
    "DocumentScore",
    "Measures",
    "NothingToSwap",
    "Row",
    "at_overlap",
    "block_cost",
    "block_flops_per_token",
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
    "word_perplexity",
]
