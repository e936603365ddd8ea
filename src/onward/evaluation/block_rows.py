"""A block-recurrent model next to its controls: states swapped between documents, and states that never change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..models.block_recurrent import BlockRecurrentForCausalLM
from .cost import block_cost
from .job import Job
from .perplexity import Measures, NothingToSwap, paired_difference
from .report import Row

SWAPPED = "every block is read with what another document carried at that place"
ABLATED = (
    "every block is read with the states that documents start from, and remembers at most the block before it. The "
    "model was trained to carry more: one trained without, such as Slide:13L, is the fairer comparison"
)
NOTHING_CARRIED = "carries nothing but the window's keys and values: there is no state to swap or ablate"


def block_rows(job: Job, model: BlockRecurrentForCausalLM) -> list[Row]:
    config, spent = model.config, block_cost(model)
    if not config.recurrent_layers and not config.memory_size:
        job.display.expect(1, job.tokens)
        return [Row.of("plain", job.measure("plain", model), spent, notes=(NOTHING_CARRIED,))]
    job.display.expect(3, job.tokens)
    reason: NothingToSwap | None = None
    try:
        measured = job.measure_memories("recurrent", model)
    except NothingToSwap as missing:
        reason = missing
        job.display.expect_less(job.tokens)
        measured = job.measure_memories("recurrent", model, ["true", "ablated"])
    base = measured["ablated"]

    def row(variant: str, measures: Measures, *notes: str) -> Row:
        return Row.of(variant, measures, spent, notes)

    def gaining(row: Row, measures: Measures) -> Row:
        return replace(row, gain=paired_difference(base, measures))

    rows = [gaining(row("recurrent", measured["true"]), measured["true"])]
    if reason is None:
        rows.append(gaining(row("swapped", measured["swapped"], SWAPPED), measured["swapped"]))
    else:
        rows.append(Row("swapped", config.window, 0, notes=(f"not measured: {reason}",)))
    return [*rows, row("ablated", base, ABLATED)]


def block_settings(model: BlockRecurrentForCausalLM) -> dict[str, Any]:
    config = model.config
    return {name: getattr(config, name) for name in config.own_fields()} | {
        "dtype": str(model.dtype),
        "device": str(model.device),
    }
