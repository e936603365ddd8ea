"""Whether a continuation keeps to the topic of its context: LDA, and the distance between two mixtures of topics."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WORDS_OF_A_PIECE = 500
VOCABULARY = 5000


def require_scikit_learn() -> None:
    """Checked first: topics are found at the very end of a study."""
    if importlib.util.find_spec("sklearn") is None:
        raise ModuleNotFoundError("topics need scikit-learn: pip install scikit-learn, or onward[studies]")


class TopicModel:
    """Latent Dirichlet allocation over pieces of text, the same for the same texts."""

    def __init__(self, texts: Sequence[str], topics: int = 20):
        require_scikit_learn()
        from sklearn.decomposition import LatentDirichletAllocation
        from sklearn.feature_extraction.text import CountVectorizer

        pieces = [piece for text in texts for piece in _pieces(text)]
        if not pieces:
            raise ValueError("there is no text to find topics in: give some documents")
        self._counts = CountVectorizer(stop_words="english", max_features=VOCABULARY)
        self._model = LatentDirichletAllocation(topics, learning_method="online", random_state=0, max_iter=5)
        try:
            counted: Any = self._counts.fit_transform(pieces)
        except ValueError as error:
            raise ValueError(f"there are no words to find topics in ({error}): give more text") from error
        self._model.fit(counted)

    def mixtures(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, topics]: rows of shares; all are the same for a text without a known word."""
        return self._model.transform(self._counts.transform(texts))

    def known_words(self, texts: Sequence[str]) -> np.ndarray:
        """[texts]: how many words of each text have topics."""
        counted: Any = self._counts.transform(texts)
        return np.asarray(counted.sum(-1)).ravel()


def _pieces(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[start : start + WORDS_OF_A_PIECE]) for start in range(0, len(words), WORDS_OF_A_PIECE)]


def divergences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Jensen-Shannon, in bits, row by row: 0 for the same mixture, 1 for mixtures without a common topic."""
    middle = (first + second) / 2

    def relative(mixture: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(mixture > 0, mixture * np.log2(mixture / middle), 0.0)
        return terms.sum(-1)

    return (relative(first) + relative(second)) / 2


@dataclass(frozen=True)
class SignTest:
    """How often the first was lower, of those that differ, and how likely chance does that or more (two-sided)."""

    share: float
    pairs: int
    p: float


def sign_test(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> SignTest:
    lower = int(sum(a < b for a, b in zip(first, second, strict=True)))
    pairs = int(sum(a != b for a, b in zip(first, second, strict=True)))
    if not pairs:
        return SignTest(0.5, 0, 1.0)
    ways = as_rare = 1  # orders with this many lower ones, from none on
    for count in range(min(lower, pairs - lower)):
        ways = ways * (pairs - count) // (count + 1)
        as_rare += ways
    return SignTest(lower / pairs, pairs, min(1.0, 2 * as_rare / 2**pairs))
