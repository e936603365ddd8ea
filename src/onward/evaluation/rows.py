"""The rows of an evaluation's table: a recurrent model next to its controls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import PreTrainedModel

from ..data.tokens import TokenizedDocument
from ..models.block_recurrent import BlockRecurrentForCausalLM
from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..models.window_recurrent.probe import UnsupportedBackboneError
from .cost import BlockCost, Cost, block_cost, cost
from .measures import Difference, Measures, context_recovered, paired_difference
from .memory_size import context_bytes, memory_bytes
from .perplexity import full_context, kept_tokens, measure_memories, plain
from .scoring import NothingToSwap

KEPT = "kept tokens"  # the control: the document's first tokens and the last ones, in as many bytes as the memory

OWN_BACKBONE = (
    "the recurrent model's own backbone; if it was trained together with the memory, a backbone trained alone on "
    "the same tokens is the fairer comparison (plain_model=, or `onward train window --with-controls`)"
)
NO_CONSTANT = (
    "not measured: train the control on the same tokens with `onward train window --with-controls`, or as "
    "add_recurrence(backbone, model.config.with_carrier('constant')) passed as constant="
)
UNTRAINED_KEPT = (
    "the last tokens put in front of the recurrent model's own backbone; a backbone that was trained with another "
    "memory deserves the control trained on the same tokens (kept=, or `onward train window --with-controls`)"
)
OTHER_BYTES = "its memory has {kept:,} bytes and the model's {own:,}: they are not compared at equal bytes"
OTHER_OVERLAP = (
    "trained with an overlap of {trained} and evaluated with another: the memory holds only positions before the next "
    "window"
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
    gain_over_kept: Difference | None = None  # over kept tokens of the same overlap
    state_bytes: int | None = None  # of a document's memory; of the full context, all its keys and values
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Everything about the row."""
        values = {**asdict(self), "measures": self.measures.as_dict() if self.measures else None}
        if isinstance(self.cost, Cost):
            values["cost"]["counted_added"] = self.cost.counted_added
        return values


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

    def rows(self, variant: str, model: Any, notes: Mapping[str, tuple[str, ...]]) -> list[Row]:
        """A row for each memory in `notes`; the row of true memories is called `variant`."""
        try:
            measured = self._measure(variant, model, list(notes))
        except NothingToSwap as reason:
            self.expect(-1)
            notes = {**notes, "swapped": (f"not measured: {reason}",)}
            measured = self._measure(variant, model, [memory for memory in notes if memory != "swapped"])
        of_blocks = isinstance(model, BlockRecurrentForCausalLM)
        spent, size = (block_cost(model), None) if of_blocks else (cost(model), memory_bytes(model))
        window, overlap = measured["true"].window, measured["true"].overlap
        found = []
        for memory, its_notes in notes.items():
            name, measures = variant if memory == "true" else memory, measured.get(memory)
            its_cost = spent if measures else None
            found.append(Row(name, window, overlap, measures, its_cost, state_bytes=size, notes=its_notes))
        return found

    def _measure(self, variant: str, model: Any, memories: Sequence[str]) -> dict[str, Measures]:
        overlap = "" if isinstance(model, BlockRecurrentForCausalLM) else f", overlap {model.config.overlap}"
        self.bar.update(self._task, description=variant + overlap)
        return measure_memories(
            model,
            self.documents,
            memories=memories,
            batch_size=self.batch_size,
            progress=lambda scored: self.bar.advance(self._task, scored),
        )


def compared(
    rows: Sequence[Row], base: Measures | None, full: Measures | None = None, kept: Measures | None = None
) -> list[Row]:
    """Adds each row's gain over `base` and over `kept` tokens, and what of a longer context's gain it recovers."""
    found = []
    for row in rows:
        if base is not None and row.measures is not None:
            recovered = context_recovered(base, row.measures, full)
            row = replace(row, gain=paired_difference(base, row.measures), context_recovered=recovered)
        if kept is not None and row.measures is not None and row.variant != KEPT:
            row = replace(row, gain_over_kept=paired_difference(kept, row.measures))
        found.append(row)
    shares = {row.variant: row.context_recovered for row in found}
    own, swapped = shares.get("recurrent"), shares.get("swapped")
    if own is None or swapped is None:
        return found
    return [replace(row, by_content=own - swapped) if row.variant == "recurrent" else row for row in found]


def block_rows(job: Job, model: BlockRecurrentForCausalLM) -> list[Row]:
    """Rows for true, swapped and ablated states."""
    if not model.config.recurrent_layers and not model.config.memory_size:
        job.expect(1)
        return job.rows("plain", model, {"true": (NOTHING_CARRIED,)})
    job.expect(3)
    *rows, ablated = job.rows("recurrent", model, {"true": (), "swapped": (SWAPPED,), "ablated": (ABLATED,)})
    return [*compared(rows, ablated.measures), ablated]


def window_rows(
    job: Job,
    model: WindowRecurrentForCausalLM,
    overlaps: Sequence[int],
    constant: WindowRecurrentForCausalLM | None,
    kept: WindowRecurrentForCausalLM | None,
    plain_model: PreTrainedModel | None,
    full_context_cap: int,
) -> list[Row]:
    """A row for each model and overlap, and one for the longest context that the backbone allows."""
    reference = full_context(plain_model or model, model.config.window, full_context_cap)
    carries = model.config.carrier != "none"
    keeping, about_kept = kept_control(model, kept) if carries else (None, ())
    runs = 3 + (constant is not None) + (keeping is not None) if carries else 1
    job.expect(len(overlaps) * runs + (reference is not None))
    rows, full = [], None
    if reference is not None:
        note = HALF_OVERLAP.format(window=reference.config.window)
        (longest,) = job.rows("full context", reference, {"true": (note,)})
        rows, full = [replace(longest, state_bytes=context_bytes(reference))], longest.measures
    for overlap in overlaps:
        alone = plain(plain_model or model, model.config.window, overlap)
        (base,) = job.rows("plain", alone, {"true": () if plain_model is not None else (OWN_BACKBONE,)})
        rows.append(base)
        if not carries:
            continue
        others = []
        if keeping is None:
            others.append(Row(KEPT, base.window, overlap, notes=about_kept))
        else:
            with at_overlap(keeping, overlap) as notes:
                others += job.rows(KEPT, keeping, {"true": about_kept + (notes if kept is not None else ())})
        if constant is None:
            others.append(Row("constant", base.window, overlap, notes=(NO_CONSTANT,)))
        else:
            with at_overlap(constant, overlap) as notes:
                others += job.rows("constant", constant, {"true": notes})
        with at_overlap(model, overlap) as notes:
            others += job.rows("recurrent", model, {"true": notes, "swapped": notes})
        rows += compared(others, base.measures, full, kept=others[0].measures)
    return rows


def kept_control(
    model: WindowRecurrentForCausalLM, trained: WindowRecurrentForCausalLM | None
) -> tuple[WindowRecurrentForCausalLM | None, tuple[str, ...]]:
    """The control that keeps tokens, by default on the model's own backbone, and notes about it; None if there can be
    none."""
    try:
        control = kept_tokens(model) if trained is None else trained
    except UnsupportedBackboneError as reason:
        return None, (f"not measured: {reason}",)
    notes: tuple[str, ...] = () if trained is not None else (UNTRAINED_KEPT,)
    kept, own = memory_bytes(control), memory_bytes(model)
    if not kept <= own < kept + kept // control.config.vector_count:  # another slot would be more than the model has
        notes += (OTHER_BYTES.format(kept=kept, own=own),)
    return control, notes


@contextlib.contextmanager
def at_overlap(model: WindowRecurrentForCausalLM, overlap: int) -> Iterator[tuple[str, ...]]:
    """Gives the model another overlap for a while. Yields the notes to show if it was trained with another one.

    A memory is made for the beginning of the next window. When that moves, only what comes before it is
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
