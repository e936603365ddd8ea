"""The rows of an evaluation's table: a recurrent model next to its controls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import PreTrainedModel

from ..data.tokens import TokenizedDocument
from ..models.block_recurrent import BlockRecurrentForCausalLM
from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..utils.safe_json import without_infinities
from .cost import BlockCost, Cost, block_cost, cost
from .measures import Difference, Measures, context_recovered, paired_difference
from .perplexity import full_context, measure_memories, plain
from .scoring import NothingToSwap

OWN_BACKBONE = (
    "the recurrent model's own backbone; if it was trained together with the memory, a backbone trained alone on "
    "the same tokens is the fairer comparison (plain_model=, or `onward train --with-controls`)"
)
NO_CONSTANT = (
    "not measured: train the control on the same tokens with `onward train --with-controls`, or as "
    "add_recurrence(backbone, model.config.with_carrier('constant')) passed as constant="
)
OTHER_OVERLAP = (
    "trained with an overlap of {trained}; evaluated with another, pooling only positions before the next window"
)
HALF_OVERLAP = "the backbone with windows of {window} tokens: each sees at least half of that before it"
SWAPPED = "every block is scored with what another document carried at that place"
ABLATED = (
    "every block is scored with the states that documents start from, and remembers at most the block before it. The "
    "model was trained to carry more: one trained without, such as Slide:13L, is the fairer comparison"
)
NOTHING_CARRIED = "carries nothing but the window's keys and values: there is no state to swap or ablate"


@dataclass(frozen=True)
class Row:
    """One model with one memory. Without `measures`, `notes` say why, and what to do."""

    variant: str
    window: int
    overlap: int
    measures: Measures | None = None
    cost: Cost | BlockCost | None = None
    context_recovered: float | None = None
    by_content: float | None = None  # how much of it is lost with another document's memory
    gain: Difference | None = None  # over plain windows of the same overlap, or over ablated states
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        variant: str,
        measures: Measures,
        cost: Cost | BlockCost,
        notes: tuple[str, ...] = (),
        base: Measures | None = None,
        full: Measures | None = None,
    ) -> Row:
        """`base`: what a gain is over. `full`: a longer context."""
        row = cls(variant, measures.window, measures.overlap, measures, cost, notes=notes)
        if base is None:
            return row
        recovered = context_recovered(base, measures, full)
        return replace(row, gain=paired_difference(base, measures), context_recovered=recovered)

    def as_dict(self) -> dict[str, Any]:
        """Everything about the row, for JSON."""
        values = {**asdict(self), "measures": self.measures.as_dict() if self.measures else None}
        if isinstance(self.cost, Cost):
            values["cost"]["counted_added"] = self.cost.counted_added
        return without_infinities(values)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if not task.speed else f"{task.speed:,.0f} tokens/s")


class Job:
    """Shared by all rows: the documents, and one progress bar for the whole evaluation."""

    def __init__(self, documents: list[TokenizedDocument], batch_size: int, show_progress: bool):
        self.documents, self.batch_size = documents, batch_size
        self.tokens = sum(max(0, len(document) - 1) for document in documents)  # scored in one run over them all
        columns = (TextColumn("{task.description}"), BarColumn(), _Speed(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), disable=not show_progress, transient=True)
        self._task = self.bar.add_task("preparing", total=None)

    def expect(self, runs: int) -> None:
        """Adds runs over the documents to what the bar counts up to."""
        self.bar.update(self._task, total=(self.bar.tasks[0].total or 0) + runs * self.tokens)

    def measure(self, name: str, model: PreTrainedModel) -> Measures:
        return self._measure(name, model, ["true"])["true"]

    def measure_with_controls(
        self, name: str, model: PreTrainedModel, memories: Sequence[str]
    ) -> tuple[dict[str, Measures], str]:
        """If nothing can be swapped, the measures lack "swapped", and the text says why."""
        try:
            return self._measure(name, model, memories), ""
        except NothingToSwap as reason:
            self.expect(-1)
            possible = [memory for memory in memories if memory != "swapped"]
            return self._measure(name, model, possible), f"not measured: {reason}"

    def _measure(self, name: str, model: PreTrainedModel, memories: Sequence[str]) -> dict[str, Measures]:
        self.bar.update(self._task, description=name)
        return measure_memories(
            model,
            self.documents,
            memories=memories,
            batch_size=self.batch_size,
            progress=lambda scored: self.bar.advance(self._task, scored),
        )


# --- blocks -----------------------------------------------------------------------------------------


def block_rows(job: Job, model: BlockRecurrentForCausalLM) -> list[Row]:
    spent = block_cost(model)
    if not model.config.recurrent_layers and not model.config.memory_size:
        job.expect(1)
        return [Row.of("plain", job.measure("plain", model), spent, (NOTHING_CARRIED,))]
    job.expect(3)
    measured, missing = job.measure_with_controls("recurrent", model, ["true", "swapped", "ablated"])
    base = measured["ablated"]
    rows = _recurrent_rows(measured, missing, spent, base, swapped_notes=(SWAPPED,))
    return [*rows, Row.of("ablated", base, spent, (ABLATED,))]


def _recurrent_rows(
    measured: dict[str, Measures],
    missing: str,
    spent: Cost | BlockCost,
    base: Measures,
    full: Measures | None = None,
    notes: tuple[str, ...] = (),
    swapped_notes: tuple[str, ...] = (),
) -> list[Row]:
    """The model with its own memories, and with swapped ones. `missing`: why nothing could be swapped, or ""."""
    true = Row.of("recurrent", measured["true"], spent, notes, base, full)
    if missing:
        return [true, Row("swapped", base.window, base.overlap, notes=(missing,))]
    swapped = Row.of("swapped", measured["swapped"], spent, notes + swapped_notes, base, full)
    if true.context_recovered is not None and swapped.context_recovered is not None:
        true = replace(true, by_content=true.context_recovered - swapped.context_recovered)
    return [true, swapped]


# --- windows ----------------------------------------------------------------------------------------


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
    runs = 1 if model.config.carrier == "none" else 3 + (constant is not None)
    job.expect(len(overlaps) * runs + (reference is not None))
    rows, full = [], None
    if reference is not None:
        full = job.measure(f"full context, overlap {reference.config.overlap}", reference)
        note = HALF_OVERLAP.format(window=reference.config.window)
        rows.append(Row.of("full context", full, cost(reference), (note,)))
    for overlap in overlaps:
        alone = plain(plain_model or model, model.config.window, overlap)
        base = job.measure(f"plain, overlap {overlap}", alone)
        rows.append(Row.of("plain", base, cost(alone), () if plain_model is not None else (OWN_BACKBONE,)))
        if model.config.carrier == "none":
            continue
        if constant is None:
            rows.append(Row("constant", base.window, overlap, notes=(NO_CONSTANT,)))
        else:
            with at_overlap(constant, overlap) as notes:
                measures = job.measure(f"constant, overlap {overlap}", constant)
                rows.append(Row.of("constant", measures, cost(constant), notes, base, full))
        with at_overlap(model, overlap) as notes:
            measured, missing = job.measure_with_controls(f"recurrent, overlap {overlap}", model, ["true", "swapped"])
            rows += _recurrent_rows(measured, missing, cost(model), base, full, notes)
    return rows


@contextlib.contextmanager
def at_overlap(model: WindowRecurrentForCausalLM, overlap: int) -> Iterator[tuple[str, ...]]:
    """Gives the model another overlap for a while. Yields the notes to show if it was trained with another one.

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
