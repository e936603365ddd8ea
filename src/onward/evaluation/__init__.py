"""Perplexity of whole documents, what a memory is worth next to its controls, and what a token costs."""

from .cost import (
    BlockCost,
    Cost,
    block_cost,
    block_flops_per_token,
    cost,
    counted_flops_per_token,
    formula_flops_per_token,
)
from .measures import (
    Curve,
    Difference,
    DocumentScore,
    Measures,
    context_recovered,
    paired_difference,
    word_perplexity,
)
from .perplexity import full_context, kept_tokens, measure, measure_memories, plain
from .rows import Row, at_overlap
from .run import evaluate
from .scoring import NothingToSwap

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
    "kept_tokens",
    "measure",
    "measure_memories",
    "paired_difference",
    "plain",
    "word_perplexity",
]
