"""Perplexities and bits, and how two models are compared."""

import math

import pytest
from block_models import build

from onward.data import Document
from onward.data.tokens import tokenize
from onward.data.vocabularies import byte_tokenizer
from onward.evaluation import (
    Curve,
    DocumentScore,
    Measures,
    context_recovered,
    measure,
    paired_difference,
    word_perplexity,
)


def measures_of(*scores):
    documents = tuple(DocumentScore(f"d{i}", nll, tokens, 1, 1) for i, (nll, tokens) in enumerate(scores))
    return Measures(documents, Curve((), ()), Curve((), ()), 1.0, 0, 10, 0)


@pytest.mark.parametrize(("bits", "perplexity"), [(3.39, "34.80"), (3.36, "33.72"), (3.32, "32.34")])
def test_word_perplexity_is_the_papers(bits, perplexity):
    """Table 2, with the tokens and words of PG19's test set."""
    assert f"{word_perplexity(bits, 10_523_460, 6_966_499):.2f}" == perplexity


def test_measures_are_per_token_byte_and_word():
    model = build("Rec:fixed:skip", vocab_size=257)
    measures = measure(model, tokenize([Document("d", "one two  three\nfour fünf")], byte_tokenizer()))
    assert (measures.tokens, measures.words, measures.bytes) == (24, 5, 25)
    assert measures.bits_per_token == pytest.approx(measures.nll / 24 / math.log(2))
    assert measures.bits_per_byte == pytest.approx(measures.bits_per_token * 24 / 25)
    assert measures.word_perplexity == pytest.approx(word_perplexity(measures.bits_per_token, 24, 5))


def test_paired_difference_and_its_error():
    first, second = measures_of((10.0, 5), (40.0, 5)), measures_of((9.0, 5), (37.0, 5))
    difference = paired_difference(first, second)
    assert difference.mean == pytest.approx(0.4)
    # per document 0.2 and 0.6 nats per token: standard error of the mean of two
    assert difference.standard_error == pytest.approx(0.2)
    assert first.standard_error == pytest.approx(3.0)
    assert paired_difference(measures_of((1.0, 5)), measures_of((1.0, 5))).standard_error is None
    with pytest.raises(ValueError, match="different documents"):
        paired_difference(first, measures_of((9.0, 5), (37.0, 6)))


def test_context_recovered():
    window, recurrent, full = measures_of((30.0, 10)), measures_of((25.0, 10)), measures_of((20.0, 10))
    assert context_recovered(window, recurrent, full) == pytest.approx(0.5)
    assert context_recovered(window, recurrent, None) is None
    assert context_recovered(full, recurrent, window) is None


def test_infinite_perplexity_is_no_error():
    assert measures_of((1e6, 2)).word_perplexity == math.inf
