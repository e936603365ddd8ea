"""A window-recurrent model next to its controls: plain windows, a constant for a memory, memories swapped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..ops import windows
from .cost import Cost, cost
from .job import Job
from .perplexity import Measures, NothingToSwap, context_recovered, full_context, paired_difference, plain
from .report import Row

OWN_BACKBONE = (
    "the recurrent model's own backbone; if it was trained together with the memory, a backbone trained alone on "
    "the same tokens is the fairer comparison (plain_model=, or `onward train --with-controls`)"
)
NO_CONSTANT = (
    "not measured: train the control on the same tokens with `onward train --with-controls`, or as "
    "add_recurrence(backbone, model.config.with_carrier('constant')) passed as constant="
)
OTHER_OVERLAP = "trained with an overlap of {trained}; read with another, pooling only positions before the next window"
HALF_OVERLAP = "the backbone with windows of {window} tokens: each sees at least half of that before it"


def check_windows(model: Any, overlaps: Sequence[int], constant: Any) -> None:
    for overlap in overlaps:
        windows.check(model.config.window, overlap)
    if constant is None:
        return
    if constant.config.carrier != "constant":
        raise ValueError(
            f"the constant control carries {constant.config.carrier!r}: make it with "
            "add_recurrence(backbone, model.config.with_carrier('constant'))"
        )
    if constant.config.window != model.config.window:
        raise ValueError(
            f"the constant control has windows of {constant.config.window} tokens and the model of "
            f"{model.config.window}: they must agree"
        )


def window_rows(
    job: Job,
    model: WindowRecurrentForCausalLM,
    overlaps: Sequence[int],
    constant: WindowRecurrentForCausalLM | None,
    plain_model: PreTrainedModel | None,
    full_context_cap: int,
) -> list[Row]:
    """A row for each model and overlap, and one for the longest context that the backbone allows."""
    reference = full_context(plain_model or model, model.config.window, full_context_cap)
    job.display.expect(len(overlaps) * _readings(model, constant) + (reference is not None), job.tokens)
    rows, full = [], None
    if reference is not None:
        full = _measure(job, "full context", reference)
        note = HALF_OVERLAP.format(window=reference.config.window)
        rows.append(Row.of("full context", full, cost(reference), notes=(note,)))
    for overlap in overlaps:
        rows += _rows_of_overlap(job, overlap, full, model, constant, plain_model)
    return rows


def window_facts(model: WindowRecurrentForCausalLM) -> dict[str, Any]:
    names = ("backbone_name", "carrier", "window", "overlap", "pooled_positions", "vector_count")
    return {name: getattr(model.config, name) for name in names} | {
        "insertion_layers": list(model.config.insertion_layers),
        "dtype": str(model.dtype),
        "device": str(model.device),
    }


def _readings(model: WindowRecurrentForCausalLM, constant: WindowRecurrentForCausalLM | None) -> int:
    """How often the documents are read for one overlap."""
    return 1 if model.config.carrier == "none" else 3 + (constant is not None)


def _named(name: str, model: WindowRecurrentForCausalLM) -> str:
    return f"{name}, overlap {model.config.overlap}"


def _measure(job: Job, name: str, model: WindowRecurrentForCausalLM) -> Measures:
    return job.measure(_named(name, model), model)


def _rows_of_overlap(
    job: Job,
    overlap: int,
    full: Measures | None,
    model: WindowRecurrentForCausalLM,
    constant: WindowRecurrentForCausalLM | None,
    plain_model: PreTrainedModel | None,
) -> list[Row]:
    window = model.config.window
    alone = plain(plain_model or model, window, overlap)
    base = _measure(job, "plain", alone)
    rows = [Row.of("plain", base, cost(alone), notes=() if plain_model is not None else (OWN_BACKBONE,))]
    if model.config.carrier == "none":
        return rows

    def row(variant: str, measures: Measures, cost: Cost, notes: tuple[str, ...]) -> Row:
        gain, recovered = paired_difference(base, measures), context_recovered(base, measures, full)
        return Row.of(variant, measures, cost, notes, gain=gain, context_recovered=recovered)

    if constant is None:
        rows.append(Row("constant", window, overlap, notes=(NO_CONSTANT,)))
    else:
        with at_overlap(constant, overlap) as notes:
            rows.append(row("constant", _measure(job, "constant", constant), cost(constant), notes))
    with at_overlap(model, overlap) as notes:
        spent = cost(model)
        try:
            measured = job.measure_memories(_named("recurrent", model), model)
        except NothingToSwap as reason:
            job.display.expect_less(job.tokens)
            rows.append(row("recurrent", _measure(job, "recurrent", model), spent, notes))
            rows.append(Row("swapped", window, overlap, notes=(f"not measured: {reason}",)))
        else:
            true = row("recurrent", measured["true"], spent, notes)
            swapped = row("swapped", measured["swapped"], spent, notes)
            if true.context_recovered is not None and swapped.context_recovered is not None:
                true = replace(true, by_content=true.context_recovered - swapped.context_recovered)
            rows += [true, swapped]
    return rows


@contextlib.contextmanager
def at_overlap(model: WindowRecurrentForCausalLM, overlap: int) -> Iterator[tuple[str, ...]]:
    """While this is entered, the model reads with this overlap; gives notes that say so if it is not its own.

    A memory is made for the beginning of the next window. When that moves, only what stands before it is
    pooled (the paper's footnote 3).
    """
    config = model.config
    trained, pooled = config.overlap, config.pooled_positions
    if overlap == trained:
        yield ()
        return
    config.overlap, config.pooled_positions = overlap, "before_next_window"
    try:
        yield (OTHER_OVERLAP.format(trained=trained),)
    finally:
        config.overlap, config.pooled_positions = trained, pooled
