"""Documents are read piece by piece, several at a time, and every token but each one's first is scored once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.tokens import TokenizedDocument
from .readers import Reader

Progress = Callable[[int], None]  # is told how many more tokens have been scored


class NothingToSwap(ValueError):
    """There are no two documents whose memories could be exchanged."""


# --- which documents, and which of their tokens, are read together ---------------------------------


def batches(lengths: Sequence[int], batch_size: int, window: int, *, swapped: bool) -> list[list[int]]:
    """Documents of similar length together, the longest first; of swapped ones always at least two."""
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
    if not swapped:
        return _chunks(order, batch_size)
    long = [i for i in order if lengths[i] > window]
    if len(long) < 2:
        raise NothingToSwap(
            f"memories are swapped between documents of more than a window of {window} tokens, and there are "
            f"{len(long)}: give at least two, or use a smaller window"
        )
    chunks = _chunks(long, batch_size)
    if len(chunks[-1]) == 1:
        alone = chunks.pop()
        chunks[-1] += alone
    return chunks + _chunks(order[len(long) :], batch_size)


def _chunks(items: list[int], size: int) -> list[list[int]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


@dataclass(frozen=True)
class Step:
    """One window of the documents that still go on: tokens [start, stop) are read, where there are any."""

    rows: list[int]
    start: int
    stop: int
    number: int  # of the window, from 0
    place: int  # of the token `start` in its window
    going_on: list[int]  # which of the rows, counted from 0, have a next window


def steps(rows: list[int], lengths: Sequence[int], window: int, overlap: int) -> Iterator[Step]:
    start = number = place = 0
    while rows:
        stop = start + window - place
        going_on = [slot for slot, row in enumerate(rows) if lengths[row] > stop]
        yield Step(rows, start, stop, number, place, going_on)
        rows = [rows[slot] for slot in going_on]
        start, number, place = stop, number + 1, overlap


# --- reading ---------------------------------------------------------------------------------------


def read_batch(
    reader: Reader,
    documents: Sequence[TokenizedDocument],
    batch: list[int],
    tallies: dict[str, Tally],
    progress: Progress,
) -> None:
    """Reads some documents from beginning to end, once for each tally; those that have ended leave the batch.

    What is lent for swapping always comes from reading a document with its own memories: were it made with
    swapped ones, a document would meet itself again as soon as the exchange has gone round the batch.
    """
    lengths = [len(document) - 1 for document in documents]
    donors = dict(zip(batch, batch[1:] + batch[:1], strict=True))
    lent: dict[int, Any] = {}
    lends = "swapped" in tallies
    states: dict[str, Any] = dict.fromkeys(["true", *tallies] if lends else tallies)
    for step in steps(batch, lengths, reader.window, reader.overlap):
        pieces = [documents[row].ids[step.start : step.stop + 1].long().to(reader.model.device) for row in step.rows]
        first = step.number == 0  # nothing is in the memory yet: the one reading serves for all
        for memory in list(states)[:1] if first else list(states):
            served = list(states) if first else [memory]
            scored = [tallies[name] for name in served if name in tallies]
            before = states[memory]
            if memory == "swapped" and not first:
                before = reader.swapped(before, [lent[donors[row]] for row in step.rows])
            elif memory == "ablated" and not first:
                before = reader.ablated(before)
            started = time.perf_counter()
            logits, after = _read_window(reader, pieces, before, wants_logits=bool(scored))
            for tally in scored:
                progress(tally.add(step, logits, pieces))
                tally.seconds += time.perf_counter() - started
            del logits  # two readings' would weigh twice
            states |= dict.fromkeys(served, after)
        if lends:
            lent |= {row: reader.lent(states["true"], slot) for slot, row in enumerate(step.rows)}
        if len(step.going_on) < len(step.rows):
            states = {memory: state.select(step.going_on) for memory, state in states.items()}


def _read_window(reader: Reader, pieces: list[Tensor], state: Any, *, wants_logits: bool) -> tuple[Tensor, Any]:
    """pieces: each row's tokens and the one after them, which is only predicted."""
    inputs = torch.nn.utils.rnn.pad_sequence([piece[:-1] for piece in pieces], batch_first=True)
    lengths = torch.tensor([len(piece) - 1 for piece in pieces], device=inputs.device)
    mask = (torch.arange(inputs.shape[1], device=inputs.device) < lengths[:, None]).long()
    return reader.read(inputs, mask, state, wants_logits=wants_logits)


class Tally:
    """Sums losses up in every way they are asked for."""

    def __init__(self, documents: int, window: int):
        self.nll = torch.zeros(documents, dtype=torch.float64)
        self.position_sums = torch.zeros(window, dtype=torch.float64)
        self.position_counts = torch.zeros(window, dtype=torch.int64)
        self.window_sums: list[float] = []
        self.window_counts: list[int] = []
        self.seconds = 0.0

    def add(self, step: Step, logits: Tensor, pieces: list[Tensor]) -> int:
        """Scores one window of every row; says how many tokens that were."""
        scored = 0
        for row, scores, piece in zip(step.rows, logits, pieces, strict=True):
            count = len(piece) - 1
            scores = scores[:count] if scores.dtype == torch.float64 else scores[:count].float()
            # Row by row, so that there is only a small second copy of the logits.
            losses = torch.nn.functional.cross_entropy(scores, piece[1:], reduction="none").double().cpu()
            self.nll[row] += losses.sum()
            self.position_sums[step.place : step.place + count] += losses
            self.position_counts[step.place : step.place + count] += 1
            self._add_to_window(step.number, float(losses.sum()), count)
            scored += count
        return scored

    def _add_to_window(self, number: int, loss: float, count: int) -> None:
        if number == len(self.window_sums):
            self.window_sums.append(0.0)
            self.window_counts.append(0)
        self.window_sums[number] += loss
        self.window_counts[number] += count
