"""Runs a model over several documents at a time, and scores every token except each one's first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.tokens import TokenizedDocument
from .controls import Controls
from .measures import Curve, DocumentScore, Measures


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


# --- running the model ------------------------------------------------------------------------------


def score_batch(
    controls: Controls,
    documents: Sequence[TokenizedDocument],
    batch: list[int],
    tallies: dict[str, Tally],
    progress: Callable[[int], None],
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
    rows, start, stop = batch, 0, controls.window
    while rows:
        pieces = [documents[row].ids[start : stop + 1].long().to(controls.model.device) for row in rows]
        # Nothing is remembered in the first window, so one run of it serves all memories.
        for memories in [[*states]] if start == 0 else [[memory] for memory in states]:
            scored = [tallies[memory] for memory in memories if memory in tallies]
            before = states[memories[0]]
            if start and memories == ["swapped"]:
                before = controls.swapped(before, [lent[donors[row]] for row in rows])
            elif start and memories == ["ablated"]:
                before = controls.ablated(before)
            started = time.perf_counter()
            logits, after = _run_window(controls.model, pieces, before, wants_logits=bool(scored))
            for tally in scored:
                for row, own_logits, piece in zip(rows, logits, pieces, strict=True):
                    tally.add(row, own_logits, piece)
                tally.seconds += time.perf_counter() - started
                progress(sum(len(piece) - 1 for piece in pieces))
            del logits  # before the next run makes its own
            states |= dict.fromkeys(memories, after)
        if lends:
            lent |= {row: controls.lent(states["true"], slot) for slot, row in enumerate(rows)}
        going_on = [slot for slot, row in enumerate(rows) if lengths[row] > stop]
        if len(going_on) < len(rows):
            rows = [rows[slot] for slot in going_on]
            states = {memory: state.select(going_on) for memory, state in states.items()}
        start, stop = stop, stop + controls.window - controls.overlap


def _run_window(model: Any, pieces: list[Tensor], state: Any, *, wants_logits: bool) -> tuple[Tensor, Any]:
    """pieces: each row's tokens and the one after them, which is only predicted."""
    ids = torch.nn.utils.rnn.pad_sequence([piece[:-1] for piece in pieces], batch_first=True)
    lengths = torch.tensor([len(piece) - 1 for piece in pieces], device=ids.device)
    mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
    keep = 0 if wants_logits else 1
    output = model(ids, attention_mask=mask, state=state, use_cache=False, logits_to_keep=keep)
    return output.logits, output.state


class Tally:
    """The losses of every document with one memory."""

    def __init__(self, documents: Sequence[TokenizedDocument]):
        self.documents = documents
        self.losses: list[list[Tensor]] = [[] for _ in documents]  # of each window's tokens
        self.seconds = 0.0

    def add(self, row: int, logits: Tensor, ids: Tensor) -> None:
        """ids: [n + 1], the tokens of a window and the one after them. logits: [at least n, V]."""
        logits = logits[: len(ids) - 1]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        self.losses[row].append(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none").cpu())

    def measures(self, window: int, overlap: int, peak_memory: int, memory: str) -> Measures:
        losses = [torch.cat(parts).double() if parts else torch.zeros(0) for parts in self.losses]
        scores = (
            DocumentScore(d.name, float(own.sum()), len(own), d.words if len(own) else 0, d.bytes if len(own) else 0)
            for d, own in zip(self.documents, losses, strict=True)
        )
        place = torch.cat([torch.arange(len(own)) for own in losses])  # in the document
        number = (place - overlap).clamp(min=0) // (window - overlap)
        position = place - number * (window - overlap)
        return Measures(
            documents=tuple(scores),
            by_position=_curve(position, torch.cat(losses), window),
            by_window=_curve(number, torch.cat(losses)),
            seconds=self.seconds,
            peak_memory=peak_memory,
            window=window,
            overlap=overlap,
            memory=memory,
        )


def _curve(places: Tensor, losses: Tensor, length: int = 0) -> Curve:
    sums, counts = torch.bincount(places, losses, length), torch.bincount(places, minlength=length)
    return Curve(tuple(sums.tolist()), tuple(counts.tolist()))
