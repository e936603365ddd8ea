"""Runs a model over several documents at a time, window by window, and scores every token except each one's first."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.tokens import TokenizedDocument
from .controls import Controls
from .measures import Curve, DocumentScore, Measures

Progress = Callable[[int], None]  # called with the number of tokens that have just been scored


class NothingToSwap(ValueError):
    """No two documents have memories that could be exchanged."""


# --- which tokens of which documents go through the model together ----------------------------------


def batches(lengths: Sequence[int], batch_size: int, window: int, *, swapped: bool) -> list[list[int]]:
    """Groups documents of similar length, the longest first; for swapping at least two with a memory."""
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
    long = [i for i in order if lengths[i] > window] if swapped else []
    if swapped and len(long) < 2:
        raise NothingToSwap(
            f"memories are swapped between documents of more than a window of {window} tokens, and there are "
            f"{len(long)}: give at least two, or use a smaller window"
        )
    groups = _chunks(long, batch_size)
    if swapped and len(groups[-1]) == 1:
        alone = groups.pop()
        groups[-1] += alone
    return groups + _chunks(order[len(long) :], batch_size)


def _chunks(items: list[int], size: int) -> list[list[int]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


@dataclass(frozen=True)
class WindowStep:
    """One window of the documents that have not ended: their tokens [start, stop), or as many as there are."""

    rows: list[int]  # numbers of the documents
    start: int
    stop: int
    number: int  # of the window, from 0
    place: int  # of the token `start` in its window
    going_on: list[int]  # which of the rows, counted from 0, have a next window


def steps(rows: list[int], lengths: Sequence[int], window: int, overlap: int) -> Iterator[WindowStep]:
    start = number = place = 0
    while rows:
        stop = start + window - place
        going_on = [slot for slot, row in enumerate(rows) if lengths[row] > stop]
        yield WindowStep(rows, start, stop, number, place, going_on)
        rows = [rows[slot] for slot in going_on]
        start, number, place = stop, number + 1, overlap


# --- running the model ------------------------------------------------------------------------------


def score_batch(
    controls: Controls,
    documents: Sequence[TokenizedDocument],
    batch: list[int],
    tallies: dict[str, Tally],
    progress: Progress,
) -> None:
    """Runs over some documents from beginning to end, once for each tally; documents that have ended leave the batch.

    Lent memories always come from a run with the document's own memories. If they came from a run with swapped ones,
    a document would get its own memory back once the exchange has gone round the batch.
    """
    lengths = [len(document) - 1 for document in documents]
    donors = dict(zip(batch, batch[1:] + batch[:1], strict=True))
    lent: dict[int, Any] = {}
    lends = "swapped" in tallies
    states: dict[str, Any] = dict.fromkeys(["true", *tallies] if lends else tallies)
    for step in steps(batch, lengths, controls.window, controls.overlap):
        pieces = [documents[row].ids[step.start : step.stop + 1].long().to(controls.model.device) for row in step.rows]
        # Nothing is remembered in the first window, so one run of it serves all memories.
        for memories in [[*states]] if step.number == 0 else [[memory] for memory in states]:
            scored = [tallies[memory] for memory in memories if memory in tallies]
            before = states[memories[0]]
            if before is not None and memories == ["swapped"]:
                before = controls.swapped(before, [lent[donors[row]] for row in step.rows])
            elif before is not None and memories == ["ablated"]:
                before = controls.ablated(before)
            started = time.perf_counter()
            logits, after = _run_window(controls.model, pieces, before, wants_logits=bool(scored))
            for tally in scored:
                progress(tally.add(step, logits, pieces))
                tally.seconds += time.perf_counter() - started
            del logits  # before the next run makes its own
            states |= dict.fromkeys(memories, after)
        if lends:
            lent |= {row: controls.lent(states["true"], slot) for slot, row in enumerate(step.rows)}
        if len(step.going_on) < len(step.rows):
            states = {memory: state.select(step.going_on) for memory, state in states.items()}


def _run_window(model: Any, pieces: list[Tensor], state: Any, *, wants_logits: bool) -> tuple[Tensor, Any]:
    """pieces: each row's tokens and the one after them, which is only predicted."""
    ids = torch.nn.utils.rnn.pad_sequence([piece[:-1] for piece in pieces], batch_first=True)
    lengths = torch.tensor([len(piece) - 1 for piece in pieces], device=ids.device)
    mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
    keep = 0 if wants_logits else 1
    output = model(ids, attention_mask=mask, state=state, use_cache=False, logits_to_keep=keep)
    return output.logits, output.state


class Tally:
    """Sums losses by document, by position and by window."""

    def __init__(self, documents: Sequence[TokenizedDocument], controls: Controls, memory: str):
        self.documents, self.controls, self.memory = documents, controls, memory
        self.nll = torch.zeros(len(documents), dtype=torch.float64)
        self.position_sums = torch.zeros(controls.window, dtype=torch.float64)
        self.position_counts = torch.zeros(controls.window, dtype=torch.int64)
        self.window_sums: dict[int, float] = defaultdict(float)  # in order, as the longest document is scored first
        self.window_counts: dict[int, int] = defaultdict(int)
        self.seconds = 0.0

    def add(self, step: WindowStep, logits: Tensor, pieces: list[Tensor]) -> int:
        """Scores one window of every row, and returns the number of its tokens."""
        for row, scores, piece in zip(step.rows, logits, pieces, strict=True):
            count = len(piece) - 1
            scores = scores[:count] if scores.dtype == torch.float64 else scores[:count].float()
            # Row by row, so that the second copy of the logits is small.
            losses = torch.nn.functional.cross_entropy(scores, piece[1:], reduction="none").double().cpu()
            self.nll[row] += losses.sum()
            self.position_sums[step.place : step.place + count] += losses
            self.position_counts[step.place : step.place + count] += 1
            self.window_sums[step.number] += float(losses.sum())
            self.window_counts[step.number] += count
        return sum(len(piece) - 1 for piece in pieces)

    def measures(self, peak_memory: int) -> Measures:
        return Measures(
            documents=tuple(
                DocumentScore(d.name, float(nll), len(d) - 1, d.words, d.bytes)
                if len(d) > 1
                else DocumentScore(d.name, 0.0, 0, 0, 0)
                for d, nll in zip(self.documents, self.nll, strict=True)
            ),
            by_position=Curve(tuple(self.position_sums.tolist()), tuple(self.position_counts.tolist())),
            by_window=Curve(tuple(self.window_sums.values()), tuple(self.window_counts.values())),
            seconds=self.seconds,
            peak_memory=peak_memory,
            window=self.controls.window,
            overlap=self.controls.overlap,
            memory=self.memory,
        )
