"""How well a recurrent language model predicts whole documents, and what its memory is worth.

A gain can come from what a memory holds or from there being one at all, so a document can also be read with
the memories of another ("swapped"), and by block-recurrent models with the states that every document starts
from ("ablated").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.tokens import TokenizedDocument
from ..models.window_recurrent import WindowRecurrentForCausalLM, WindowRecurrentModel, add_recurrence
from ..utils.memory import peak_memory
from .readers import Reader, reader_of
from .reading import NothingToSwap, Progress, Tally, batches, read_batch

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
    by_window: Curve  # by the number of the window or block in its document, from 0
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
    def bits_per_token(self) -> float:
        return self.loss / math.log(2)

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


def word_perplexity(bits_per_token: float, tokens: int, words: int) -> float:
    """Bits per token of one vocabulary as word-level perplexity, which all vocabularies share."""
    return _exp(bits_per_token * tokens / words * math.log(2))


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
    model: PreTrainedModel,
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
    has at that window (or had at its end). For block-recurrent models the memory is what comes from further
    back than the window, and it can also be "ablated": every block is scored with the states that documents
    start from. `max_tokens` reads only so many first tokens of each document; the words and bytes of what is
    left are counted with the `tokenizer`.
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
    model: PreTrainedModel,
    documents: Sequence[TokenizedDocument],
    *,
    memories: Sequence[str] | None = None,
    batch_size: int = 8,
    max_tokens: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    progress: Progress | None = None,
) -> dict[str, Measures]:
    """`measure` for several memories at once, by default all: what is swapped comes from the true reading anyway."""
    reader = reader_of(model)
    memories = reader.memories if memories is None else memories
    _check(reader, memories, batch_size, max_tokens)
    documents = [first_tokens(document, max_tokens, tokenizer) for document in documents]
    lengths = [max(0, len(document) - 1) for document in documents]  # the last token predicts nothing
    if not any(lengths):
        raise ValueError("there is nothing to score: give at least one document of two tokens or more")
    together = batches(lengths, batch_size, reader.window, swapped="swapped" in memories)
    tallies = {memory: Tally(len(documents), reader.window) for memory in memories}
    training = model.training
    model.eval()
    try:
        # Weights may come from the disk only now: that is neither time nor memory of reading.
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device))
        with peak_memory(model.device) as peak:
            for batch in together:
                read_batch(reader, documents, batch, tallies, progress or (lambda scored: None))
    finally:
        model.train(training)
    return {memory: _measures(tally, documents, peak(), reader, memory) for memory, tally in tallies.items()}


def _check(reader: Reader, memories: Sequence[str], batch_size: int, max_tokens: int | None) -> None:
    for memory in memories:
        if memory not in reader.memories:
            raise ValueError(f"memory={memory!r} is not known: choose one of {', '.join(reader.memories)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if max_tokens is not None and max_tokens < 2:
        raise ValueError(f"max_tokens={max_tokens}: the first token is not scored, so read at least 2")
    if "swapped" in memories and batch_size < 2:
        raise NothingToSwap("memories are swapped within a batch: use a batch_size of at least 2")


def _measures(tally: Tally, documents: Sequence[TokenizedDocument], peak: int, reader: Reader, memory: str) -> Measures:
    return Measures(
        documents=tuple(
            DocumentScore(d.name, float(nll), len(d) - 1, d.words, d.bytes)
            if len(d) > 1
            else DocumentScore(d.name, 0.0, 0, 0, 0)
            for d, nll in zip(documents, tally.nll, strict=True)
        ),
        by_position=Curve(tuple(tally.position_sums.tolist()), tuple(tally.position_counts.tolist())),
        by_window=Curve(tuple(tally.window_sums), tuple(tally.window_counts)),
        seconds=tally.seconds,
        peak_memory=peak,
        window=reader.window,
        overlap=reader.overlap,
        memory=memory,
    )


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
