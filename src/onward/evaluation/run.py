"""A recurrent model next to its controls: the whole evaluation in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import windows
from ..corpora import Document
from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..streams import TokenizedDocument, tokenize
from . import report
from .cost import Cost, cost
from .perplexity import (
    MEMORIES,
    Measures,
    NothingToSwap,
    context_recovered,
    first_tokens,
    full_context,
    measure_memories,
    paired_difference,
    plain,
)
from .report import Row

OWN_BACKBONE = (
    "the recurrent model's own backbone; if it was trained together with the memory, a backbone trained alone on "
    "the same tokens is the fairer comparison (plain_model=, or `onward train --with-controls`)"
)
NO_CONSTANT = (
    "not measured: train the control on the same tokens with `onward train --with-controls`, or as "
    "add_recurrence(backbone, model.config.with_carrier('constant')) passed as constant="
)
OTHER_OVERLAP = (
    "trained with an overlap of {trained}; read with another, pooling only positions before the next window"
)
HALF_OVERLAP = "the backbone with windows of {window} tokens: each sees at least half of that before it"


def evaluate(
    model: WindowRecurrentForCausalLM,
    documents: Sequence[Document | TokenizedDocument],
    *,
    tokenizer: PreTrainedTokenizerBase,
    overlaps: Sequence[int] | None = None,
    constant: WindowRecurrentForCausalLM | None = None,
    plain_model: PreTrainedModel | None = None,
    batch_size: int = 8,
    max_tokens: int | None = None,
    full_context_cap: int = 512,
    out: str | Path | None = None,
    progress: bool = True,
) -> list[Row]:
    """Reads documents with plain windows, a constant in the memory's place, the memory, and swapped memories.

    `overlaps`: all of that for each of them; by default for the model's own. `constant`: the control, see
    `WindowRecurrenceConfig.with_carrier`. `plain_model`: what reads plain windows, by default the model's
    backbone. `max_tokens`: read only so many first tokens of each document. `out`: a folder for table.md,
    results.json and plots. The longest context that recurrence is compared with is `full_context_cap` tokens.
    `progress`: show a bar, and the table at the end.
    """
    _check_models(model, constant)
    window = model.config.window
    overlaps = list(dict.fromkeys(overlaps)) if overlaps else [model.config.overlap]
    for overlap in overlaps:
        windows.check(window, overlap)
    tokenized = _tokenized(documents, tokenizer, max_tokens)
    with _Display(progress) as display:
        job = _Job(tokenized, batch_size, display)
        reference = full_context(plain_model or model, window, full_context_cap)
        display.expect(len(overlaps) * _readings(model, constant) + (reference is not None), job.tokens)
        rows, full = [], None
        if reference is not None:
            full = job.measure("full context", reference)
            note = HALF_OVERLAP.format(window=reference.config.window)
            rows.append(Row.of("full context", full, cost(reference), notes=(note,)))
        for overlap in overlaps:
            rows += _rows_of_overlap(job, overlap, full, model, constant, plain_model)
    if progress:
        title = f"windows of {window} tokens, {len(tokenized)} documents, {job.tokens:,} tokens"
        Console().print(report.table(rows, title))
    if out is not None:
        report.write(rows, out, model=_facts(model), documents=len(tokenized), max_tokens=max_tokens)
    return rows


def _check_models(model: Any, constant: Any) -> None:
    if not isinstance(model, WindowRecurrentForCausalLM):
        raise TypeError(
            f"evaluate takes a window-recurrent causal language model, got a {type(model).__name__}: use "
            "add_recurrence(model, ...), with carrier='none' for plain windows"
        )
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


def _tokenized(
    documents: Sequence[Document | TokenizedDocument],
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int | None,
) -> list[TokenizedDocument]:
    return [
        first_tokens(document, max_tokens, tokenizer)
        if isinstance(document, TokenizedDocument)
        else tokenize([document], tokenizer, max_tokens)[0]
        for document in documents
    ]


def _facts(model: WindowRecurrentForCausalLM) -> dict[str, Any]:
    names = ("backbone_name", "carrier", "window", "overlap", "pooled_positions", "vector_count")
    return {name: getattr(model.config, name) for name in names} | {
        "insertion_layers": list(model.config.insertion_layers),
        "dtype": str(model.dtype),
        "device": str(model.device),
    }


# --- rows ------------------------------------------------------------------------------------------


@dataclass
class _Job:
    """What stays the same over all rows."""

    documents: list[TokenizedDocument]
    batch_size: int
    display: _Display

    @property
    def tokens(self) -> int:
        """How many tokens one reading scores."""
        return sum(max(0, len(document) - 1) for document in self.documents)

    def measure(self, name: str, model: WindowRecurrentForCausalLM) -> Measures:
        return self.measure_memories(name, model, MEMORIES[:1])["true"]

    def measure_memories(
        self, name: str, model: WindowRecurrentForCausalLM, memories: Sequence[str] = MEMORIES
    ) -> dict[str, Measures]:
        self.display.show(f"{name}, overlap {model.config.overlap}")
        return measure_memories(
            model,
            self.documents,
            memories=memories,
            batch_size=self.batch_size,
            progress=self.display.advance,
        )


def _readings(model: WindowRecurrentForCausalLM, constant: WindowRecurrentForCausalLM | None) -> int:
    """How often the documents are read for one overlap."""
    return 1 if model.config.carrier == "none" else 3 + (constant is not None)


def _rows_of_overlap(
    job: _Job,
    overlap: int,
    full: Measures | None,
    model: WindowRecurrentForCausalLM,
    constant: WindowRecurrentForCausalLM | None,
    plain_model: PreTrainedModel | None,
) -> list[Row]:
    window = model.config.window
    alone = plain(plain_model or model, window, overlap)
    base = job.measure("plain", alone)
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
            rows.append(row("constant", job.measure("constant", constant), cost(constant), notes))
    with at_overlap(model, overlap) as notes:
        spent = cost(model)
        try:
            measured = job.measure_memories("recurrent", model)
        except NothingToSwap as reason:
            job.display.expect_less(job.tokens)
            rows.append(row("recurrent", job.measure("recurrent", model), spent, notes))
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


# --- progress --------------------------------------------------------------------------------------


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if not task.speed else f"{task.speed:,.0f} tokens/s")


class _Display:
    """One bar for the whole evaluation."""

    def __init__(self, shown: bool):
        columns = (TextColumn("{task.description}"), BarColumn(), _Speed(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True)
        self._task = self._bar.add_task("preparing", total=None)

    def __enter__(self) -> _Display:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def expect(self, readings: int, tokens: int) -> None:
        self._bar.update(self._task, total=readings * tokens)

    def expect_less(self, tokens: int) -> None:
        self._bar.update(self._task, total=(self._bar.tasks[0].total or 0) - tokens)

    def show(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def advance(self, tokens: int) -> None:
        self._bar.advance(self._task, tokens)
