"""Vectors of tokens and documents."""

from __future__ import annotations

import pytest
import torch
from tiny_models import assert_same, padded, shared, tokens, unpadded

WINDOW = 6
pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


def windows_by_hand(model, ids, overlap):
    """Without a memory: each window's own vectors, and where it begins."""
    begins = range(0, ids.shape[1] - overlap, WINDOW - overlap)
    return [(at, model.backbone.base_model(ids[:, at : at + WINDOW]).last_hidden_state) for at in begins]


@pytest.mark.parametrize("overlap", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_an_encoders_token_comes_from_the_window_where_it_is_further_from_the_edge(family, overlap):
    model = shared(family, "none", head="model", window=WINDOW, overlap=overlap)
    ids = tokens(2, 16)
    read = windows_by_hand(model, ids, overlap)
    embedded = model.embed(ids).tokens
    moved = 0
    for token in range(16):
        holding = [(at, vectors) for at, vectors in read if at <= token < at + vectors.shape[1]]

        def distance(window, token=token):
            at, vectors = window
            before = token - at if at else 99  # a document's own ends are no edges
            after = at + vectors.shape[1] - 1 - token if at + vectors.shape[1] < 16 else 99
            return min(before, after)

        best = max(map(distance, holding))
        choices = [vectors[:, token - at] for at, vectors in holding if distance((at, vectors)) == best]
        moved += len(holding) > 1 and best != distance(holding[0])
        assert any(torch.allclose(embedded[:, token], choice, atol=1e-9) for choice in choices), token
    assert moved or overlap < 2


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_decoders_token_comes_from_the_first_window_that_reads_it(family):
    model = shared(family, "spans", head="model", window=WINDOW, overlap=4)
    ids = tokens(2, 16)
    assert_same(model.embed(ids).tokens, model(ids).last_hidden_state, model)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
@pytest.mark.parametrize(("family", "head"), [("bert", "model"), ("roberta", "masked-lm"), ("gpt2", "causal-lm")])
def test_documents_are_pooled_without_their_padding(family, head, pooling, side):
    model = shared(family, "spans", head, window=WINDOW, overlap=2)
    rows = [tokens(15), tokens(4), tokens(9)]
    ids, mask = padded(rows, side)
    output = model.embed(ids, mask, pooling=pooling)
    assert output.tokens.shape == (3, ids.shape[1], 32) and output.documents.shape == (3, 32)
    assert (output.tokens[mask == 0] == 0).all()
    other = model.embed(ids.masked_fill(mask == 0, 50), mask, pooling=pooling)
    assert torch.equal(output.documents, other.documents)
    for row, vectors, document in zip(rows, unpadded(output.tokens, mask), output.documents, strict=True):
        single = model.embed(row[None], pooling=pooling)
        assert_same(vectors, single.tokens[0], model)
        by_hand = {"mean": vectors.mean(0), "first": vectors[0], "last": vectors[-1]}[pooling]
        assert_same(document, by_hand, model)
        assert_same(document, single.documents[0], model)


def test_document_vectors_can_have_length_one():
    output = shared("bert", head="model").embed(tokens(2, 12), normalize=True)
    torch.testing.assert_close(output.documents.norm(dim=-1), torch.ones(2, dtype=torch.float64))


def test_an_embedding_goes_on_from_a_state():
    model = shared("gpt2", "spans", head="model", window=WINDOW, overlap=1)
    ids = tokens(2, 16)
    first = model.embed(ids[:, :7])
    second = model.embed(ids[:, 7:], state=first.state)
    assert_same(torch.cat([first.tokens, second.tokens], 1), model.embed(ids).tokens, model)


def test_an_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match="mean, first or last"):
        shared("bert", head="model").embed(tokens(1, 4), pooling="maximum")
