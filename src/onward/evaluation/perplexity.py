"""How well a window-recurrent language model predicts whole documents, and what its memory is worth.

Documents are read window by window, several at a time. Every token but each document's first is scored once.
A gain can come from what a memory holds or from there being one at all, so a document can also be read with
the memories of another ("swapped").
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.window_recurrent import WindowRecurrentForCausalLM, WindowRecurrentModel, add_recurrence
from ..models.window_recurrent.carriers import Tensors
from ..state import WindowState
from ..streams import TokenizedDocument

MEMORIES = ("true", "swapped")

Progress = Callable[[int], None]  # is told how many more tokens have been scored


class NothingToSwap(ValueError):
    """There are no two documents whose memories could be exchanged."""


# --- what is measured ------------------------------------------------------------------------------


@dataclass(frozen=True)
class DocumentScore:
    """`words` and `bytes` are those of the whole text read; none where no token is scored.

    The first token, which nothing predicts, is part of that text, as in the usual word-level perplexity.
    """

    name: str
    nll: float  # in nats, summed over `tokens`
    tokens: int
    words: int
    bytes: int


@dataclass(frozen=True)
class Curve:
    """Losses summed along an axis, and how many tokens each sum has."""

    sums: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def means(self) -> list[float]:
        """Nats per token; nan where nothing was scored."""
        return [s / n if n else math.nan for s, n in zip(self.sums, self.counts, strict=True)]


@dataclass(frozen=True)
class Measures:
    """What `measure` finds."""

    documents: tuple[DocumentScore, ...]  # in the order they were given
    by_position: Curve  # by the place in the window, from 0, of the token that makes the prediction
    by_window: Curve  # by the number of the window in its document, from 0
    seconds: float
    peak_memory: int  # bytes on top of what was in use before
    window: int
    overlap: int
    memory: str = "true"

    @property
    def nll(self) -> float:
        return math.fsum(d.nll for d in self.documents)

    @property
    def tokens(self) -> int:
        return sum(d.tokens for d in self.documents)

    @property
    def words(self) -> int:
        return sum(d.words for d in self.documents)

    @property
    def bytes(self) -> int:
        return sum(d.bytes for d in self.documents)

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / self.tokens

    @property
    def token_perplexity(self) -> float:
        return _exp(self.loss)

    @property
    def word_perplexity(self) -> float:
        """exp(total nll / whitespace words of the raw text): comparable between tokenizers."""
        return _exp(self.nll / self.words) if self.words else math.inf

    @property
    def bits_per_byte(self) -> float:
        return self.nll / math.log(2) / self.bytes if self.bytes else math.inf

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def standard_error(self) -> float | None:
        """Of `loss`, over documents; None with fewer than two."""
        return _error_of_ratio([d.nll for d in self.documents], [d.tokens for d in self.documents])


@dataclass(frozen=True)
class Difference:
    """In nats per token; `standard_error` over documents, None with fewer than two."""

    mean: float
    standard_error: float | None


def paired_difference(first: Measures, second: Measures) -> Difference:
    """How much lower the loss of `second` is than that of `first`, on the same documents.

    Documents differ more among themselves than models do, so it is the error of the differences that counts.
    """
    if [(d.name, d.tokens) for d in first.documents] != [(d.name, d.tokens) for d in second.documents]:
        raise ValueError("the two measures are of different documents: measure both on the same")
    differences = [a.nll - b.nll for a, b in zip(first.documents, second.documents, strict=True)]
    tokens = [d.tokens for d in first.documents]
    return Difference(math.fsum(differences) / sum(tokens), _error_of_ratio(differences, tokens))


def context_recovered(window_only: Measures, recurrent: Measures, full: Measures | None) -> float | None:
    """Which part of what a longer context gains over plain windows is gained by recurrence, per token.

    0: nothing, 1: all. None without a longer context (see `full_context`), or when it gains nothing.
    """
    if full is None or window_only.loss <= full.loss:
        return None
    return (window_only.loss - recurrent.loss) / (window_only.loss - full.loss)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _error_of_ratio(sums: Sequence[float], sizes: Sequence[int]) -> float | None:
    """Standard error of sum(sums) / sum(sizes) when the pairs are a random sample."""
    pairs = [(s, n) for s, n in zip(sums, sizes, strict=True) if n]
    if len(pairs) < 2:
        return None
    total = sum(n for _, n in pairs)
    mean = math.fsum(s for s, _ in pairs) / total
    scatter = math.fsum((s - mean * n) ** 2 for s, n in pairs)
    return math.sqrt(scatter * len(pairs) / (len(pairs) - 1)) / total


# --- models to compare with ------------------------------------------------------------------------


def plain(model: PreTrainedModel, window: int, overlap: int = 0) -> WindowRecurrentForCausalLM:
    """The backbone of `model`, or `model` itself, read in windows that carry nothing. Weights are shared."""
    backbone = model.backbone if isinstance(model, WindowRecurrentModel) else model
    return add_recurrence(backbone, carrier="none", insert_at=1, window=window, overlap=overlap)


def full_context(model: PreTrainedModel, window: int, cap: int = 512) -> WindowRecurrentForCausalLM | None:
    """The plain backbone with the longest window it allows, at most `cap`; None if `window` is as long.

    Windows overlap by half, so that every token sees at least half a window before it.
    """
    backbone = model.backbone if isinstance(model, WindowRecurrentModel) else model
    positions = getattr(backbone.config.get_text_config(), "max_position_embeddings", None)
    longest = min(positions or cap, cap)
    return plain(backbone, longest, longest // 2) if longest > window else None


# --- measuring -------------------------------------------------------------------------------------


def measure(
    model: WindowRecurrentForCausalLM,
    documents: Sequence[TokenizedDocument],
    *,
    batch_size: int = 8,
    memory: str = "true",
    max_tokens: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    progress: Progress | None = None,
) -> Measures:
    """Reads whole documents and scores every token but each one's first.

    `memory`: "true", or "swapped": every window is scored with the memory that another document of the batch
    has at that window (or had at its end). `max_tokens` reads only so many first tokens of each document; the
    words and bytes of what is left are counted with the `tokenizer`.
    """
    return measure_memories(
        model,
        documents,
        memories=(memory,),
        batch_size=batch_size,
        max_tokens=max_tokens,
        tokenizer=tokenizer,
        progress=progress,
    )[memory]


@torch.no_grad()
def measure_memories(
    model: WindowRecurrentForCausalLM,
    documents: Sequence[TokenizedDocument],
    *,
    memories: Sequence[str] = MEMORIES,
    batch_size: int = 8,
    max_tokens: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    progress: Progress | None = None,
) -> dict[str, Measures]:
    """`measure` for true and swapped memories at once: what is swapped comes from the true reading anyway."""
    _check(model, memories, batch_size, max_tokens)
    documents = [first_tokens(document, max_tokens, tokenizer) for document in documents]
    lengths = [max(0, len(document) - 1) for document in documents]  # the last token predicts nothing
    if not any(lengths):
        raise ValueError("there is nothing to score: give at least one document of two tokens or more")
    batches = _batches(lengths, batch_size, model.config.window, swapped="swapped" in memories)
    tallies = {memory: _Tally(len(documents), model.config.window) for memory in memories}
    training = model.training
    model.eval()
    try:
        # Weights may come from the disk only now: that is neither time nor memory of reading.
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device))
        with _peak_memory(model.device) as peak:
            for batch in batches:
                _read_batch(model, documents, batch, tallies, progress or (lambda scored: None))
    finally:
        model.train(training)
    return {
        memory: tally.finish(documents, peak(), model.config.window, model.config.overlap, memory)
        for memory, tally in tallies.items()
    }


def _check(model: Any, memories: Sequence[str], batch_size: int, max_tokens: int | None) -> None:
    if not isinstance(model, WindowRecurrentForCausalLM):
        raise TypeError(
            f"a {type(model).__name__} is not read in windows: use add_recurrence(model, ...), or "
            "plain(model, window, overlap) for the backbone alone"
        )
    for memory in memories:
        if memory not in MEMORIES:
            raise ValueError(f"memory={memory!r} is not known: choose one of {', '.join(MEMORIES)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if max_tokens is not None and max_tokens < 2:
        raise ValueError(f"max_tokens={max_tokens}: the first token is not scored, so read at least 2")
    if "swapped" in memories and batch_size < 2:
        raise NothingToSwap("memories are swapped within a batch: use a batch_size of at least 2")


def first_tokens(
    document: TokenizedDocument, max_tokens: int | None, tokenizer: PreTrainedTokenizerBase | None
) -> TokenizedDocument:
    """A document cut to `max_tokens`, with the words and bytes of the text that is left."""
    if max_tokens is None or len(document) <= max_tokens:
        return document
    if tokenizer is None:
        raise ValueError(
            f"max_tokens={max_tokens} cuts document {document.name!r}, and its words must be counted anew: "
            "pass the tokenizer, too"
        )
    whole, kept = (_decode(tokenizer, ids) for ids in (document.ids, document.ids[:max_tokens]))
    # Some tokenizers do not give the text back as it was: then the counts keep their proportion.
    words = document.words * len(kept.split()) / max(1, len(whole.split()))
    size = document.bytes * len(kept.encode()) / max(1, len(whole.encode()))
    return TokenizedDocument(document.name, document.ids[:max_tokens], round(words), round(size))


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Tensor) -> str:
    text = str(tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))
    return text.rstrip("\ufffd")  # the beginning of a character that was cut


def _batches(lengths: Sequence[int], batch_size: int, window: int, *, swapped: bool) -> list[list[int]]:
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
class _Step:
    """One window of the documents that still go on: tokens [start, stop) are read, where there are any."""

    rows: list[int]
    start: int
    stop: int
    number: int  # of the window, from 0
    place: int  # of the token `start` in its window
    going_on: list[int]  # which of the rows, counted from 0, have a next window


def _steps(rows: list[int], lengths: Sequence[int], window: int, overlap: int) -> Iterator[_Step]:
    start = number = place = 0
    while rows:
        stop = start + window - place
        going_on = [slot for slot, row in enumerate(rows) if lengths[row] > stop]
        yield _Step(rows, start, stop, number, place, going_on)
        rows = [rows[slot] for slot in going_on]
        start, number, place = stop, number + 1, overlap


def _read_batch(
    model: WindowRecurrentForCausalLM,
    documents: Sequence[TokenizedDocument],
    batch: list[int],
    tallies: dict[str, _Tally],
    progress: Progress,
) -> None:
    """Reads some documents from beginning to end; those that have ended leave the batch."""
    lengths = [len(document) - 1 for document in documents]
    memories = _Memories(batch)
    state: WindowState | None = None
    for step in _steps(batch, lengths, model.config.window, model.config.overlap):
        pieces = [documents[row].ids[step.start : step.stop + 1].long().to(model.device) for row in step.rows]
        readings = {"true": state}
        if "swapped" in tallies and state is not None:
            readings["swapped"] = memories.swapped(state, step.rows)
        for memory, before in readings.items():
            # Nothing is in the memory yet in the first window: the one reading serves for both.
            scored = [tallies[name] for name in tallies if name == memory or before is None]
            started = time.perf_counter()
            logits, after = _read_window(model, pieces, before, wants_logits=bool(scored))
            for tally in scored:
                progress(tally.add(step, logits, pieces))
                tally.seconds += time.perf_counter() - started
            del logits  # two readings' would weigh twice
            if memory == "true":
                state = after
        assert state is not None
        memories.keep(state, step.rows)
        if len(step.going_on) < len(step.rows):
            state = state.select(step.going_on)


class _Memories:
    """What each document of a batch last carried on, for others to read with.

    It always comes from reading the document with its own memories: were it made with swapped ones, a
    document would meet itself again as soon as the exchange has gone round the batch.
    """

    def __init__(self, batch: list[int]):
        self.donors = dict(zip(batch, batch[1:] + batch[:1], strict=True))
        self.own: dict[int, Tensors] = {}

    def keep(self, state: WindowState, rows: list[int]) -> None:
        for slot, row in enumerate(rows):
            self.own[row] = tuple(t[slot : slot + 1] for t in state.memory)

    def swapped(self, state: WindowState, rows: list[int]) -> WindowState:
        parts = zip(*(self.own[self.donors[row]] for row in rows), strict=True)
        return replace(state, memory=tuple(torch.cat(part) for part in parts))


def _read_window(
    model: WindowRecurrentForCausalLM, pieces: list[Tensor], state: WindowState | None, *, wants_logits: bool
) -> tuple[Tensor, WindowState]:
    """pieces: each row's tokens and the one after them, which is only predicted."""
    inputs = torch.nn.utils.rnn.pad_sequence([piece[:-1] for piece in pieces], batch_first=True)
    lengths = torch.tensor([len(piece) - 1 for piece in pieces], device=inputs.device)
    mask = (torch.arange(inputs.shape[1], device=inputs.device) < lengths[:, None]).long()
    output = model(
        inputs, attention_mask=mask, state=state, use_cache=False, logits_to_keep=0 if wants_logits else 1
    )
    return output.logits, output.state


class _Tally:
    """Sums losses up in every way they are asked for."""

    def __init__(self, documents: int, window: int):
        self.nll = torch.zeros(documents, dtype=torch.float64)
        self.position_sums = torch.zeros(window, dtype=torch.float64)
        self.position_counts = torch.zeros(window, dtype=torch.int64)
        self.window_sums: list[float] = []
        self.window_counts: list[int] = []
        self.seconds = 0.0

    def add(self, step: _Step, logits: Tensor, pieces: list[Tensor]) -> int:
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

    def finish(
        self, documents: Sequence[TokenizedDocument], peak: int, window: int, overlap: int, memory: str
    ) -> Measures:
        return Measures(
            documents=tuple(
                DocumentScore(d.name, float(nll), len(d) - 1, d.words, d.bytes)
                if len(d) > 1
                else DocumentScore(d.name, 0.0, 0, 0, 0)
                for d, nll in zip(documents, self.nll, strict=True)
            ),
            by_position=Curve(tuple(self.position_sums.tolist()), tuple(self.position_counts.tolist())),
            by_window=Curve(tuple(self.window_sums), tuple(self.window_counts)),
            seconds=self.seconds,
            peak_memory=peak,
            window=window,
            overlap=overlap,
            memory=memory,
        )


# --- memory in use ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _peak_memory(device: torch.device) -> Iterator[Callable[[], int]]:
    """Gives a function that says by how many bytes memory has grown at its highest since."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
        return
    before = _start_resident_peak()
    yield lambda: max(0, _resident_peak() - before)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _start_resident_peak() -> int:
    """Sets the process's highest memory back to the present one, where the system allows it; returns it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # gives back what is free, so that using it again shows
        _CLEAR.write_text("5")
    return _resident_peak()


def _resident_peak() -> int:
    if _STATUS.is_file():
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
