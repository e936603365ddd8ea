"""transformers' heads on documents of any length, each checked against its own weights by hand."""

from __future__ import annotations

import pytest
import torch
from tiny_models import ENCODERS, PAD, assert_same, padded, recurrent_variant, shared, tokens, unpadded
from torch import nn

from onward.models.window_recurrent.reading import HiddenStates
from onward.models.window_recurrent.request import Request

WINDOW = 6
QA = "question-answering"
SEQUENCE = "sequence-classification"
TOKEN = "token-classification"


def hidden(model, ids, **options):
    with torch.no_grad():
        return model.reader.read(Request(ids, **options), HiddenStates()).kept["last_hidden_state"]


# -- question answering


@pytest.mark.parametrize("family", [*ENCODERS, "gpt2", "llama"])
def test_answers_are_sought_in_the_whole_document(family):
    model = shared(family, head=QA, window=WINDOW, overlap=1)
    ids = tokens(2, 15)
    starts, ends = torch.tensor([13, 2]), torch.tensor([14, 7])
    output = model(ids, start_positions=starts, end_positions=ends)
    assert output.start_logits.shape == output.end_logits.shape == (2, 15)
    by_hand = [
        nn.functional.cross_entropy(logits, targets)
        for logits, targets in ((output.start_logits, starts), (output.end_logits, ends))
    ]
    assert_same(output.loss, sum(by_hand) / 2, model)
    first = model.backbone(ids[:, :WINDOW])
    assert_same(output.start_logits[:, :WINDOW], first.start_logits, model)
    assert_same(output.end_logits[:, :WINDOW], first.end_logits, model)
    plain = model(ids, return_dict=False)
    assert torch.equal(plain[0], model(ids).start_logits)


@torch.no_grad()
def test_the_question_begins_every_window():
    """Without a memory, a later window is the backbone's reading of question and text."""
    model = shared("bert", "none", head=QA, window=WINDOW)
    ids = tokens(2, 14)
    output = model(ids, prefix_length=2)
    for begin in (6, 10):
        window = torch.cat([ids[:, :2], ids[:, begin : begin + 4]], dim=1)
        own = model.backbone(window).start_logits[:, 2:]
        assert_same(output.start_logits[:, begin : begin + 4], own, model)


@pytest.mark.parametrize("as_tensor", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_questions_may_differ_in_length(as_tensor, side):
    model = shared("roberta", "spans", head=QA, window=WINDOW, overlap=1)
    rows, prefixes = [tokens(15), tokens(9), tokens(4)], [3, 1, 0]
    ids, mask = padded(rows, side)
    given = torch.tensor(prefixes) if as_tensor else prefixes
    output = model(ids, attention_mask=mask, prefix_length=given)
    for row, prefix, got in zip(rows, prefixes, unpadded(output.start_logits, mask), strict=True):
        assert_same(got, model(row[None], prefix_length=prefix).start_logits[0], model)
    without = unpadded(model(ids, attention_mask=mask).start_logits, mask)
    assert not torch.allclose(without[0], unpadded(output.start_logits, mask)[0])


@pytest.mark.parametrize("prefix", [6, 5])
def test_a_question_that_fills_the_window_is_refused(prefix):
    model = shared("bert", head=QA, window=WINDOW, overlap=1)
    with pytest.raises(ValueError, match="prefix"):
        model(tokens(1, 14), prefix_length=prefix)


def test_a_document_shorter_than_its_question_is_refused():
    with pytest.raises(ValueError, match="prefix of 3 tokens"):
        shared("bert", head=QA, window=WINDOW)(tokens(1, 2), prefix_length=3)


@torch.no_grad()
def test_the_question_is_kept_in_the_state():
    model = shared("bert", "spans", head=QA, window=WINDOW)
    ids = tokens(1, 18)
    whole = model(ids, prefix_length=2).start_logits
    first = model(ids[:, :10], prefix_length=2)
    second = model(ids[:, 10:], state=first.state)
    assert_same(torch.cat([first.start_logits, second.start_logits], 1), whole, model)
    again = model(ids[:, 10:], state=first.state, prefix_length=5)  # a running document keeps its own
    assert_same(again.start_logits, whole[:, 10:], model)
    assert not torch.allclose(model(ids).start_logits[:, WINDOW:], whole[:, WINDOW:])


@pytest.mark.parametrize("family", ["bert", "electra"])
@torch.no_grad()
def test_token_types_go_with_their_tokens_through_windows(family):
    model = shared(family, "none", head=QA, window=WINDOW, overlap=1)
    ids, types = tokens(2, 15), torch.tensor([[0] * 3 + [1] * 12] * 2)
    output = model(ids, token_type_ids=types, prefix_length=3)
    window = torch.cat([ids[:, :3], ids[:, 5:8]], dim=1)  # the question, the overlap and two new tokens
    own = model.backbone(window, token_type_ids=torch.tensor([[0] * 3 + [1] * 3] * 2)).start_logits
    assert_same(output.start_logits[:, 6:8], own[:, 4:], model)
    assert not torch.allclose(output.start_logits, model(ids, prefix_length=3).start_logits)
    rows = [ids[0], ids[1, :8]]
    packed, mask = padded(rows, "left")
    packed_types, _ = padded([types[0], types[1, :8]], "left")
    got = model(packed, attention_mask=mask, token_type_ids=packed_types, prefix_length=3).start_logits
    assert_same(unpadded(got, mask)[1], output.start_logits[1, :8], model)


# -- sequence classification


def by_head(model, vector):
    """What an encoder's classification head makes of its first token's vector [B, k]."""
    inner = model.backbone
    family = inner.config.model_type
    if family == "bert":
        return inner.classifier(inner.bert.pooler(vector[:, None]))
    if family == "distilbert":
        return inner.classifier(inner.pre_classifier(vector).relu())
    if family == "modernbert":
        return inner.classifier(inner.head(vector))
    return inner.classifier(vector[:, None])  # roberta, electra: the head takes the first of a sequence


@pytest.mark.parametrize("family", ENCODERS)
@torch.no_grad()
def test_an_encoder_pools_its_first_token_over_windows(family):
    """The first token begins every window; the maximum of its vectors goes to the head."""
    pooling = {"classifier_pooling": "cls"} if family == "modernbert" else {}
    model = recurrent_variant(family, "none", SEQUENCE, window=WINDOW, num_labels=3, **pooling)
    ids = tokens(2, 14)
    windows = [ids[:, :6], torch.cat([ids[:, :1], ids[:, 6:11]], 1), torch.cat([ids[:, :1], ids[:, 11:]], 1)]
    firsts = [model.backbone.base_model(window).last_hidden_state[:, 0] for window in windows]
    expected = by_head(model, torch.stack(firsts).amax(0))
    assert_same(model(ids).logits, expected, model)
    assert not torch.allclose(by_head(model, firsts[0]), expected)
    short = ids[:, :WINDOW]
    assert torch.equal(model(short).logits, model.backbone(short).logits)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
@torch.no_grad()
def test_padded_documents_are_classified_as_alone(family, side):
    model = shared(family, "spans", SEQUENCE, window=WINDOW, overlap=1)
    rows = [tokens(15), tokens(3), tokens(8)]
    ids, mask = padded(rows, side)
    logits = model(ids, attention_mask=mask).logits
    for row, got in zip(rows, logits, strict=True):
        assert_same(got, model(row[None]).logits[0], model)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
@torch.no_grad()
def test_a_decoder_classifies_by_its_last_token(family, side):
    model = shared(family, "spans", SEQUENCE, window=WINDOW, overlap=1)
    rows = [tokens(15), tokens(3), tokens(8)]
    rows[1][-1] = PAD  # a real token may have the padding's id
    ids, mask = padded(rows, side)
    logits = model(ids, attention_mask=mask).logits
    other = model(ids.masked_fill(mask == 0, 7), attention_mask=mask).logits
    assert torch.equal(logits, other)
    for row, got in zip(rows, logits, strict=True):
        assert_same(got, model.backbone.score(hidden(model, row[None])[:, -1])[0], model)


def test_classification_losses_are_the_heads_own():
    for labels, count in ((torch.tensor([2, 0]), 3), (torch.tensor([0.3, -1.0]), 1)):
        model = recurrent_variant("bert", head=SEQUENCE, window=WINDOW, num_labels=count)
        output = model(tokens(2, 14), labels=labels if count > 1 else labels.double())
        if count > 1:
            expected = nn.functional.cross_entropy(output.logits, labels)
        else:
            expected = nn.functional.mse_loss(output.logits[:, 0], labels.double())
        assert_same(output.loss, expected, model)
        output.loss.backward()
        assert all(p.grad.abs().sum() > 0 for p in model.carrier.parameters())


# -- tokens


@pytest.mark.parametrize("family", [*ENCODERS, "gpt2", "llama"])
def test_every_token_is_labelled(family):
    model = shared(family, head=TOKEN, window=WINDOW, overlap=1, num_labels=3)
    ids, mask = padded([tokens(14), tokens(8)], "right")
    labels = (ids % 3).masked_fill(mask == 0, -100)
    output = model(ids, attention_mask=mask, labels=labels)
    assert output.logits.shape == (2, 14, 3)
    by_hand = nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(output.loss.double(), by_hand, rtol=1e-6, atol=1e-6)  # some heads use float32
    with torch.no_grad():
        for row, got in zip([tokens(14), tokens(8)], unpadded(output.logits, mask), strict=True):
            assert_same(got, model(row[None]).logits[0], model)


@pytest.mark.parametrize("family", ENCODERS)
def test_masked_tokens_are_guessed_window_by_window(family):
    model = shared(family, window=WINDOW, overlap=1)
    ids = tokens(2, 14)
    labels = ids.masked_fill(torch.arange(14) % 4 != 1, -100)
    output = model(ids, labels=labels)
    by_hand = nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
    assert_same(output.loss, by_hand, model)
    as_tuple = model(ids, labels=labels, return_dict=False)
    assert torch.equal(as_tuple[0], output.loss) and torch.equal(as_tuple[1], output.logits)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "gpt2", "llama", "opt"])
@torch.no_grad()
def test_a_bare_model_gives_hidden_states_of_the_whole_length(family):
    model = shared(family, head="model", window=WINDOW)
    ids = tokens(2, 14)
    output = model(ids, output_hidden_states=True)
    own = model.backbone(ids[:, :WINDOW], output_hidden_states=True)
    assert output.last_hidden_state.shape == (2, 14, 32)
    assert torch.equal(model(ids[:, :WINDOW]).last_hidden_state, own.last_hidden_state)
    assert len(output.hidden_states) == len(own.hidden_states)
    for whole, first in zip(output.hidden_states, own.hidden_states, strict=True):
        assert whole.shape == (2, 14, 32)
        assert_same(whole[:, :WINDOW], first, model)
    assert torch.equal(model(ids, return_dict=False)[0], model(ids).last_hidden_state)
    if own.get("pooler_output") is not None:
        assert_same(output.pooler_output, own.pooler_output, model)
    else:
        assert output.pooler_output is None


@pytest.mark.parametrize(("family", "head"), [("bert", QA), ("bert", SEQUENCE), ("gpt2", TOKEN), ("llama", "model")])
@torch.no_grad()
def test_every_head_without_recurrence_is_the_backbones(family, head):
    model = shared(family, "spans", head, window=WINDOW)
    ids = tokens(2, 14)
    expected, recurrent_output = model.backbone(ids), model(ids)
    with model.recurrence_disabled():
        plain = model(ids)
    name = {"question-answering": "start_logits", "model": "last_hidden_state"}.get(head, "logits")
    assert torch.equal(plain[name], expected[name])
    assert not torch.allclose(recurrent_output[name], expected[name])


@pytest.mark.parametrize("overlap", [0, 1])
@torch.no_grad()
def test_classification_of_a_document_cut_at_a_window_edge(overlap):
    model = recurrent_variant("bert", "spans", SEQUENCE, overlap=overlap)
    ids = tokens(2, 17)
    edge = 5  # the first window; later ones hold the first token again
    state = model(ids[:, :edge]).state
    expected = model(ids)
    assert_same(model(ids[:, edge:], state=state).logits, expected.logits, model)
    fresh = model(ids[:, edge:], state=state, starts_document=[True, False])
    assert_same(fresh.logits[:1], model(ids[:1, edge:]).logits, model)
    assert_same(fresh.logits[1:], expected.logits[1:], model)
