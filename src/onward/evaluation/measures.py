"""What an evaluation finds: losses by document, by position and by window, and how two evaluations compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DocumentScore:
    """`words` and `bytes` count the whole text, and are 0 where no token is scored.

    They include the first token, which nothing predicts, as in the usual word-level perplexity.
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

    def mean(self, start: int, stop: int) -> float:
        """Nats per token of the places [start, stop); nan where nothing was scored."""
        count = sum(self.counts[start:stop])
        return sum(self.sums[start:stop]) / count if count else math.nan

    @property
    def means(self) -> list[float]:
        return [self.mean(place, place + 1) for place in range(len(self.counts))]


@dataclass(frozen=True)
class Measures:
    """The result of `measure`."""

    documents: tuple[DocumentScore, ...]  # in the order they were given
    by_position: Curve  # by the place in the window, from 0, of the token that makes the prediction
    by_window: Curve  # by the number of the window or block in its document, from 0
    seconds: float
    peak_memory: int  # bytes on top of what was in use before
    window: int
    overlap: int
    memory: str = "true"

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / self.tokens

    @property
    def bits_per_token(self) -> float:
        return self.loss / math.log(2)

    @property
    def standard_error(self) -> float | None:
        """Of `loss`, over documents; None with fewer than two."""
        return _error_of_ratio([d.nll for d in self.documents], [d.tokens for d in self.documents])

    @property
    def word_perplexity(self) -> float:
        """exp(total nll / whitespace words of the raw text): comparable between tokenizers."""
        return _exp(self.nll / self.words) if self.words else math.inf

    @property
    def token_perplexity(self) -> float:
        return _exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        return self.nll / math.log(2) / self.bytes if self.bytes else math.inf

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
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Every property and field."""
        names = [name for name, value in vars(Measures).items() if isinstance(value, property)]
        values = {name: getattr(self, name) for name in names} | asdict(self)
        for axis in ("by_position", "by_window"):
            values[axis]["means"] = getattr(self, axis).means
        return values


@dataclass(frozen=True)
class Difference:
    """In nats per token; `standard_error` over documents, None with fewer than two."""

    mean: float
    standard_error: float | None

    def __str__(self) -> str:
        return f"{self.mean:+.3f}" + ("" if self.standard_error is None else f" ± {self.standard_error:.3f}")


def paired_difference(first: Measures, second: Measures) -> Difference:
    """How much lower the loss of `second` is than that of `first`, on the same documents.

    Documents differ more from each other than models do, so the error is that of the differences.
    """
    if [(d.name, d.tokens) for d in first.documents] != [(d.name, d.tokens) for d in second.documents]:
        raise ValueError("the two measures are of different documents: measure both on the same")
    differences = [a.nll - b.nll for a, b in zip(first.documents, second.documents, strict=True)]
    tokens = [d.tokens for d in first.documents]
    return Difference(math.fsum(differences) / sum(tokens), _error_of_ratio(differences, tokens))


def context_recovered(window_only: Measures, recurrent: Measures, full: Measures | None) -> float | None:
    """The share of a longer context's gain over plain windows that recurrence gains too: 0 is nothing, 1 is all.

    None without a longer context (see `full_context`), or when it gains nothing.
    """
    if full is None or window_only.loss <= full.loss:
        return None
    return (window_only.loss - recurrent.loss) / (window_only.loss - full.loss)


def word_perplexity(bits_per_token: float, tokens: int, words: int) -> float:
    """Converts bits per token of one vocabulary into word-level perplexity, which is comparable between all."""
    return _exp(bits_per_token * tokens / words * math.log(2))


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
