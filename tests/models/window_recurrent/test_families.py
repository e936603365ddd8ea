"""What must hold for every family of backbones, by one class of tests that runs over all of them."""

from __future__ import annotations

import copy
import os
from itertools import cycle
from unittest.mock import patch

import pytest
import torch
from anatomy import anatomy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import (
    DECODERS,
    ENCODERS,
    FAMILIES,
    FEW_POSITIONS,
    REMEMBERS,
    SHORTEST,
    VARIANTS,
    assert_same,
    backbone,
    padded,
    recurrent_variant,
    shared,
    tokens,
    unpadded,
)
from torch import Tensor, nn
from torch.testing import assert_close
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from onward import add_recurrence

WINDOW = 5
EXAMPLES = int(os.environ.get("ONWARD_EXAMPLES", 20))  # more of them, to hunt


def read(model, ids: Tensor, cuts: list[int], **options) -> Tensor:
    """Logits of `ids`, read in pieces that end at `cuts`."""
    state, parts = None, []
    for begin, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        output = model(ids[:, begin:end], state=state, **options)
        state = output.state
        parts.append(output.logits)
    return torch.cat(parts, dim=1)


def cuts_for(family: str, overlap: int) -> list[int]:
    """Inside windows and at their edges; an encoder can only be cut at an edge."""
    edges = [WINDOW, WINDOW + (WINDOW - overlap)]
    return edges if family in ENCODERS else sorted({3, *edges, 11, 12, 13})


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: g for name, g in zip(named, found, strict=True) if g is not None}


def assert_same_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor], model: nn.Module) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        assert_same(actual[name], expected[name], model)


def without_dropout(model: nn.Module) -> nn.Module:
    """In training mode, but the same on every run."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


@pytest.mark.parametrize("family", FAMILIES)
class TestFamily:
    @pytest.mark.parametrize(("variant", "overlap"), list(zip(VARIANTS, cycle([2, 0]))))
    @torch.no_grad()
    def test_cut_and_continued_is_read_whole(self, family, variant, overlap):
        model = shared(family, variant, overlap=overlap)
        ids = tokens(2, 15)
        whole = model(ids, use_cache=False).logits
        for use_cache in (True, False) if family in DECODERS else (None,):
            assert_same(read(model, ids, cuts_for(family, overlap), use_cache=use_cache), whole, model)

    @torch.no_grad()
    def test_the_first_window_is_the_backbones_bit_for_bit(self, family):
        original = backbone(family)
        model = recurrent_variant(family)
        ids = tokens(2, WINDOW)
        assert torch.equal(model(ids).logits, original(ids).logits)
        # The head has more rows of logits to make at once, which may round them differently.
        assert_same(model(tokens(2, 12)).logits[:, :WINDOW], model(tokens(2, 12)[:, :WINDOW]).logits, model)

    @torch.no_grad()
    def test_without_recurrence_it_is_the_backbone_bit_for_bit(self, family):
        original = backbone(family)
        model = recurrent_variant(family)
        ids, mask = padded([tokens(14), tokens(9)], "right")
        with pytest.raises(TypeError):  # a failed call must leave nothing behind
            model(tokens(2, 14), no_such_argument=1)
        model(tokens(2, 14))
        # So that the backbone itself fails, inside of a window.
        with pytest.raises(IndexError), patch.object(model.config.backbone.get_text_config(), "vocab_size", 2000):
            model(tokens(2, 14) + 1000)
        expected = original(ids, attention_mask=mask, labels=ids, output_hidden_states=True)
        with pytest.raises(KeyError), model.recurrence_disabled():
            raise KeyError
        with model.recurrence_disabled():
            plain = model(ids, attention_mask=mask, labels=ids, output_hidden_states=True)
        assert torch.equal(plain.logits, expected.logits) and torch.equal(plain.loss, expected.loss)
        assert all(map(torch.equal, plain.hidden_states, expected.hidden_states))
        assert torch.equal(model.backbone(ids, attention_mask=mask).logits, expected.logits)
        assert not torch.equal(model(ids, attention_mask=mask).logits, expected.logits)

    @pytest.mark.parametrize("variant", VARIANTS)
    @torch.no_grad()
    def test_the_memory_is_of_the_window_before(self, family, variant):
        """A changed token shows in the next window if its carrier knows the text, and only then. Where the whole
        window is kept as keys and values, it shows as far as in the backbone alone, whose layers may all be local."""
        model = shared(family, variant)
        ids = tokens(1, 2 * WINDOW)
        other = ids.clone()
        other[0, 1] = 3 if ids[0, 1] != 3 else 4

        def difference(model):
            return (model(ids).logits - model(other).logits)[0, WINDOW:].abs().amax(-1)

        if variant not in REMEMBERS:
            assert (difference(model) == 0).all()
        elif model.carrier.takes_slots:
            assert torch.equal(difference(model) > 1e-6, difference(model.backbone) > 1e-6)
        else:
            assert (difference(model) > 1e-6).all()

    @pytest.mark.parametrize("variant", ["spans", "matched"])
    @pytest.mark.parametrize("side", ["left", "right"])
    @torch.no_grad()
    def test_a_padded_batch_is_its_rows_one_by_one(self, family, side, variant):
        """Rows of different lengths, at different places in their windows; also what they go on with."""
        model = shared(family, variant, overlap=1)
        rows = [tokens(13), tokens(5), tokens(1)]
        more = [tokens(2, seed=1), tokens(9, seed=2), tokens(6, seed=3)]
        state, singles = None, [None] * 3
        for batch in (rows, more):
            ids, mask = padded(batch, side)
            output = model(ids, attention_mask=mask, state=state)
            changed = model(ids.masked_fill(mask == 0, 98), attention_mask=mask, state=state)
            assert torch.equal(output.logits, changed.logits)  # padding's ids are never looked at
            for r, (row, got) in enumerate(zip(batch, unpadded(output.logits, mask), strict=True)):
                single = model(row[None], state=singles[r])
                singles[r] = single.state
                assert_same(got, single.logits[0], model)
            state = changed.state

    @pytest.mark.parametrize("variant", ["paper", "spans", "matched"])
    @torch.no_grad()
    def test_a_reset_row_starts_afresh_and_the_others_go_on(self, family, variant):
        model = shared(family, variant, overlap=1)
        ids, more = tokens(3, 8 if family in DECODERS else 9), tokens(3, 8, seed=1)  # at an edge or not
        state = model(ids).state
        marks = torch.tensor([False, True, False])
        output = model(more, state=state, starts_document=marks)
        assert_same(output.logits[1:2], model(more[1:2]).logits, model)
        assert_same(output.logits[::2], model(more, state=state).logits[::2], model)
        everyone = model(more, state=state, starts_document=[True] * 3)
        assert_same(everyone.logits, model(more).logits, model)

    @pytest.mark.parametrize("variant", ["paper", "spans", "selected", "matched"])
    @torch.no_grad()
    def test_eager_attention_is_sdpa(self, family, variant):
        """In float32: some families' eager attention is never more exact. One row has no memory."""
        ids, more = tokens(2, 9), tokens(2, 8, seed=1)
        found = []
        for attention in ("eager", "sdpa"):
            model = recurrent_variant(family, variant, attention=attention, dtype=torch.float32)
            assert model.backbone.config._attn_implementation == f"onward_{attention}"
            first = model(ids)
            second = model(more, state=first.state, starts_document=[True, False])
            found.append(torch.cat([first.logits, second.logits], dim=1))
        assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("variant", ["pooled", "matched"])
    def test_gradients_flow_across_calls(self, family, variant):
        model = shared(family, variant, overlap=1)
        ids, edge = tokens(2, 14), WINDOW + 4
        later = slice(edge, None)
        weight = torch.randn(2, 14 - edge, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        whole = gradients((model(ids).logits[:, later] * weight).sum(), model)
        first = model(ids[:, :edge])
        again = gradients((model(ids[:, later], state=first.state).logits * weight).sum(), model)
        cut = gradients((model(ids[:, later], state=first.state.detach()).logits * weight).sum(), model)
        assert_same_gradients(again, whole, model)
        name = next(n for n in whole if n.startswith("backbone"))
        assert (cut[name] - whole[name]).abs().max() > 1e-6

    @pytest.mark.parametrize("variant", ["spans", "matched"])
    def test_checkpointing_gives_the_gradients_of_plain_backpropagation(self, family, variant):
        model = without_dropout(recurrent_variant(family, variant, overlap=1))
        ids, mask = padded([tokens(14), tokens(8)], "right")
        labels = ids.masked_fill(mask == 0, -100)
        plain = model(ids, attention_mask=mask, labels=labels)
        expected = gradients(plain.loss, model)
        model.gradient_checkpointing_enable()
        assert model.is_gradient_checkpointing
        kept = model(ids, attention_mask=mask, labels=labels)
        assert kept.logits is None and torch.equal(kept.loss, plain.loss)
        assert_same_gradients(gradients(kept.loss, model), expected, model)
        assert any(name.startswith("carrier") for name in expected)
        model.gradient_checkpointing_disable()
        assert model(ids, attention_mask=mask, labels=labels).logits is not None

    @pytest.mark.parametrize("variant", ["pooled", "selected"])
    def test_the_loss_is_cross_entropy_over_the_whole_length(self, family, variant):
        model = shared(family, variant, overlap=2)
        ids, mask = padded([tokens(14), tokens(8)], "left")
        labels = ids.clone()
        labels[0, 2:4] = -100
        output = model(ids, attention_mask=mask, labels=labels)
        targets = labels.masked_fill(mask == 0, -100)
        logits = output.logits
        if family in DECODERS:
            logits, targets = logits[:, :-1], targets[:, 1:].masked_fill(mask[:, :-1] == 0, -100)
        by_hand = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        assert_same(output.loss, by_hand, model)
        halves = model(ids, attention_mask=mask, labels=labels, num_items_in_batch=7).loss
        assert_same(halves, by_hand * (targets != -100).sum() / 7, model)
        unlabelled = model(ids, attention_mask=mask).logits
        for a, b in zip(unpadded(output.logits, mask), unpadded(unlabelled, mask), strict=True):
            assert_same(a, b, model)

    @pytest.mark.parametrize("variant", ["pooled", "selected"])
    def test_hidden_states_are_those_of_the_whole_length(self, family, variant):
        model = shared(family, variant)
        ids = tokens(2, 12)
        with torch.no_grad():
            output = model(ids, output_hidden_states=True, labels=ids)
            own = model.backbone(ids[:, :WINDOW], output_hidden_states=True)
        assert len(output.hidden_states) == len(own.hidden_states)
        for hidden, first in zip(output.hidden_states, own.hidden_states, strict=True):
            assert hidden.shape[1] == 12
            assert_same(hidden[:, :WINDOW], first, model)

    @pytest.mark.parametrize("variant", ["pooled", "selected"])
    @torch.no_grad()
    def test_a_window_may_use_all_positions_of_the_backbone(self, family, variant):
        """Also beside rows that are at another place: padding must not run out of positions."""
        model = shared(family, variant, window=FEW_POSITIONS)
        rows, more = [tokens(FEW_POSITIONS - 1), tokens(2)], [tokens(3, seed=1), tokens(14, seed=2)]
        if family in ENCODERS:
            rows = [tokens(FEW_POSITIONS), tokens(2)]
        ids, mask = padded(rows, "right")
        state = model(ids, attention_mask=mask).state
        ids, mask = padded(more, "right")
        got = unpadded(model(ids, attention_mask=mask, state=state).logits, mask)
        for row, continued, logits in zip(rows, more, got, strict=True):
            single = model(continued[None], state=model(row[None]).state)
            assert_same(logits, single.logits[0], model)


def test_one_position_too_many_is_refused():
    for family in ("gpt2", "roberta"):
        with pytest.raises(ValueError, match=f"at most {FEW_POSITIONS}"):
            recurrent_variant(family, window=FEW_POSITIONS + 1)


@pytest.mark.parametrize("variant", ["pooled", "matched"])
def test_dropout_and_checkpointing_go_together(variant):
    """The second run of a window must draw the same dropout as the first."""
    model = recurrent_variant("gpt2", variant).train()
    ids = tokens(2, 14)
    losses = []
    for checkpointing in (False, True):
        model.bottleneck_checkpointing = checkpointing
        torch.manual_seed(0)
        loss = model(ids, labels=ids).loss
        losses.append((loss, gradients(loss, model)))
    assert torch.equal(losses[0][0], losses[1][0])
    assert_same_gradients(losses[1][1], losses[0][1], model)
    torch.manual_seed(1)
    assert not torch.equal(model(ids, labels=ids).loss, losses[0][0])


@pytest.mark.parametrize("variant", ["pooled", "matched"])
def test_checkpointing_goes_on_inside_a_window_that_was_left_open(variant):
    model, ids = recurrent_variant("gpt2", variant).eval(), tokens(2, 20)
    with torch.no_grad():
        state = model(ids[:, :3]).state
    assert state.open.cache is not None
    model.train()
    found = []
    for checkpointing in (False, True):
        model.bottleneck_checkpointing = checkpointing
        torch.manual_seed(0)
        found.append(gradients(model(ids[:, 3:], labels=ids[:, 3:], state=state).loss, model))
    assert_same_gradients(*found, model)


def test_a_backbone_that_checkpoints_its_layers_keeps_only_the_state_instead():
    inner = without_dropout(backbone("llama"))
    inner.gradient_checkpointing_enable()
    model = add_recurrence(inner, window=WINDOW)
    assert model.is_gradient_checkpointing and not inner.is_gradient_checkpointing
    ids = tokens(1, 12)
    expected = gradients(model.eval()(ids, labels=ids).loss, model)
    assert_same_gradients(gradients(model.train()(ids, labels=ids).loss, model), expected, model)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
class TestTraining:
    def test_shift_labels_name_the_next_token(self, family):
        model = shared(family)
        ids = tokens(2, 13)
        shifted = nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
        assert torch.equal(model(ids, shift_labels=shifted).loss, model(ids, labels=ids).loss)
        longer = tokens(2, 14)
        output = model(longer[:, :-1], shift_labels=longer[:, 1:])
        by_hand = nn.functional.cross_entropy(output.logits.flatten(0, 1), longer[:, 1:].flatten())
        assert_same(output.loss, by_hand, model)

    def test_items_of_an_accumulated_batch_are_the_backbones_without_recurrence(self, family):
        ids, original = tokens(2, 13), backbone(family)
        model = shared(family)
        with model.recurrence_disabled():
            loss = model(ids, labels=ids, num_items_in_batch=7).loss
        assert torch.equal(loss, original(ids, labels=ids, num_items_in_batch=7).loss)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_under_autocast_a_state_keeps_the_models_dtype(self, family, variant):
        model = recurrent_variant(family, variant, overlap=1, dtype=torch.float32).train()
        ids = tokens(2, 14)
        with torch.autocast("cpu", torch.bfloat16):
            first = model(ids[:, :7], labels=ids[:, :7])
            second = model(ids[:, 7:], labels=ids[:, 7:], state=first.state)
        (first.loss + second.loss).backward()
        assert all(t.dtype == torch.float32 for t in second.state.memory if t.is_floating_point())
        assert second.loss.isfinite()

    @pytest.mark.parametrize("after", [1, 2])
    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_truncation_is_detaching_by_hand(self, family, after, checkpointing):
        truncated = without_dropout(recurrent_variant(family, fields={"truncate_after": after}))
        truncated.bottleneck_checkpointing = checkpointing
        model = without_dropout(recurrent_variant(family))
        ids = tokens(2, 5 * WINDOW)
        targets = nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
        loss = truncated(ids, shift_labels=targets).loss
        state, by_hand = None, 0.0
        count = (targets != -100).sum()
        for begin in range(0, 5 * WINDOW, after * WINDOW):
            piece = slice(begin, begin + after * WINDOW)
            state = state.detach() if state is not None else None
            labels = targets[:, piece]
            output = model(ids[:, piece], shift_labels=labels, state=state, num_items_in_batch=count)
            state, by_hand = output.state, by_hand + output.loss
        assert_same(loss, by_hand, model)
        expected = gradients(by_hand, model)
        assert_same_gradients(gradients(loss, truncated), expected, model)
        whole = gradients(model(ids, labels=ids).loss, model)
        assert any((whole[name] - expected[name]).abs().max() > 1e-6 for name in expected)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_gradients_of_a_cached_window_are_those_of_the_whole(self, family, variant):
        model = shared(family, variant)
        ids = tokens(2, 13)
        weight = torch.randn(2, 13, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        whole = gradients((model(ids).logits * weight).sum(), model)
        pieces = read(model, ids, [2, 7, 8, 12], use_cache=True)
        assert_same_gradients(gradients((pieces * weight).sum(), model), whole, model)

    @pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
    @pytest.mark.parametrize("residual", [True, False])
    @torch.no_grad()
    def test_every_pooling_can_be_cut_anywhere(self, family, pooling, residual):
        fields = {"pooling": pooling, "residual": residual, "pooled_layers": "last", "vectors": 3}
        read = []
        for positions in ("all", "before_next_window"):
            model = recurrent_variant(family, overlap=2, fields={**fields, "pooled_positions": positions})
            ids, mask = padded([tokens(14), tokens(6)], "left")
            whole = model(ids, attention_mask=mask, use_cache=False).logits
            read.append(whole)
            state, parts = None, []
            for at in range(14):
                if not mask[:, at].any():
                    continue
                one = slice(at, at + 1)
                output = model(ids[:, one], attention_mask=mask[:, one], state=state, use_cache=True)
                state = output.state
                parts.append(output.logits)
            for got, expected in zip(unpadded(torch.cat(parts, 1), mask), unpadded(whole, mask), strict=True):
                assert_same(got, expected, model)
        assert not torch.allclose(*read)


@st.composite
def readings(draw) -> dict:
    """Several rows, each a sequence of documents, read in several calls with padding and resets."""
    window = draw(st.integers(1, 6))
    rows = draw(st.integers(1, 3))
    calls = []
    for _ in range(draw(st.integers(1, 4))):
        lengths = draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows).filter(any))
        calls.append(
            {
                "lengths": lengths,
                "side": draw(st.sampled_from(["left", "right"])),
                "resets": draw(st.lists(st.booleans(), min_size=rows, max_size=rows) | st.none()),
                "use_cache": draw(st.booleans()),
            }
        )
    return {
        "variant": draw(st.sampled_from([v for v in VARIANTS if window >= SHORTEST.get(v, 1)])),
        "window": window,
        "overlap": draw(st.integers(0, window - 1)),
        "calls": calls,
        "seed": draw(st.integers(0, 5)),
    }


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3_text"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(reading=readings())
def test_any_way_of_reading_is_reading_each_document_alone_and_whole(family, reading):
    model = shared(family, reading["variant"], window=reading["window"], overlap=reading["overlap"])
    rows = len(reading["calls"][0]["lengths"])
    documents: list[list[list[Tensor]]] = [[] for _ in range(rows)]  # per row and document: pieces of ids
    outputs: list[list[list[Tensor]]] = [[] for _ in range(rows)]
    state = None
    with torch.no_grad():
        for number, call in enumerate(reading["calls"]):
            seed = 100 * reading["seed"] + 10 * number
            pieces = [tokens(n, seed=seed + r) for r, n in enumerate(call["lengths"])]
            ids, mask = padded(pieces, call["side"])
            output = model(
                ids,
                attention_mask=mask,
                state=state,
                starts_document=call["resets"],
                use_cache=call["use_cache"],
            )
            state = output.state
            for r, got in enumerate(unpadded(output.logits, mask)):
                if not documents[r] or (call["resets"] and call["resets"][r]):
                    documents[r].append([])
                    outputs[r].append([])
                documents[r][-1].append(pieces[r])
                outputs[r][-1].append(got)
        assert max(state.open.fill) <= reading["window"]
        for row, found in zip(documents, outputs, strict=True):
            for document, logits in zip(row, found, strict=True):
                if len(whole := torch.cat(document)):
                    expected = model(whole[None], use_cache=False).logits[0]
                    assert_same(torch.cat(logits), expected, model)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    variant=st.sampled_from(["spans", "selected", "matched"]),
    prefixes=st.lists(st.integers(0, 3), min_size=2, max_size=2),
    overlap=st.integers(0, 2),
    lengths=st.lists(st.integers(3, 17), min_size=2, max_size=2),
    cuts=st.lists(st.integers(3, 17), max_size=3),
    use_cache=st.booleans(),
)
@example(variant="spans", prefixes=[2, 1], overlap=1, lengths=[17, 16], cuts=[7, 11], use_cache=True)  # at an edge
@example(variant="matched", prefixes=[2, 1], overlap=1, lengths=[17, 16], cuts=[7, 11], use_cache=True)
def test_a_decoder_with_a_prefix_can_be_cut_anywhere_behind_it(variant, prefixes, overlap, lengths, cuts, use_cache):
    model = shared("gpt2", variant, window=7, overlap=overlap)
    rows = [tokens(n, seed=n) for n in lengths]
    state, parts = None, [[], []]
    with torch.no_grad():
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 17], strict=True):
            ids, mask = padded([row[begin:end] for row in rows], "right")
            if mask.any():
                output = model(ids, attention_mask=mask, prefix_length=prefixes, state=state, use_cache=use_cache)
                state = output.state
                for r, got in enumerate(unpadded(output.logits, mask)):
                    parts[r].append(got)
        for row, prefix, got in zip(rows, prefixes, parts, strict=True):
            expected = model(row[None], prefix_length=prefix, use_cache=False).logits[0]
            assert_same(torch.cat(got), expected, model)
            if len(row) > 7 and prefix:
                assert not torch.allclose(expected, model(row[None]).logits[0])


@torch.no_grad()
def test_a_prefix_begins_every_window():
    """Changing a token of the prefix changes later windows even where nothing is carried."""
    model = shared("gpt2", "none", window=6)
    ids = tokens(1, 20)
    other = ids.clone()
    other[0, 1] = 3 if ids[0, 1] != 3 else 4
    changed = (model(ids, prefix_length=2).logits - model(other, prefix_length=2).logits)[0].abs().amax(-1)
    assert (changed[1:] > 1e-6).all() and changed[0] == 0
    first = model.backbone(ids[:, :6]).logits
    later = [model.backbone(torch.cat([ids[:, :2], ids[:, at : at + 4]], 1)).logits[:, 2:] for at in (6, 10)]
    expected = torch.cat([first, *later], dim=1)
    assert_same(model(ids[:, :14], prefix_length=2).logits, expected, model)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_rows_can_be_picked_out_of_a_state_in_any_order(family):
    for variant in VARIANTS:
        model = shared(family, variant, overlap=1)
        rows, more = [tokens(7), tokens(12), tokens(5)], tokens(3, 7, seed=1)
        ids, mask = padded(rows, "left")
        state = model(ids, attention_mask=mask).state
        for order in ([2, 0, 1], [0], [1, 1], [2, 2, 0, 0]):
            got = model(more[order], state=state.select(order)).logits
            for r, logits in zip(order, got, strict=True):
                single = model(more[r : r + 1], state=model(rows[r][None]).state)
                assert_same(logits, single.logits[0], model)


@pytest.mark.parametrize("variant", ["spans", "selected"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
@torch.no_grad()
def test_a_family_of_encoders_may_be_a_decoder(family, variant):
    """RoBERTa counts positions from behind the padding's: also in a cached window of a ragged batch."""
    model = shared(family, variant, "causal-lm", overlap=1, is_decoder=True)
    assert model.config.causal
    rows, more = [tokens(8), tokens(3)], [tokens(4, seed=1), tokens(9, seed=2)]
    ids, mask = padded(rows, "left")
    state = model(ids, attention_mask=mask, use_cache=True).state
    ids, mask = padded(more, "left")
    got = unpadded(model(ids, attention_mask=mask, state=state, use_cache=True).logits, mask)
    for row, continued, logits in zip(rows, more, got, strict=True):
        whole = model(torch.cat([row, continued])[None], use_cache=False).logits[0, len(row) :]
        assert_same(logits, whole, model)
    one_by_one = read(model, tokens(1, 13), list(range(1, 13)), use_cache=True)
    assert_same(one_by_one, model(tokens(1, 13), use_cache=False).logits, model)


@pytest.mark.parametrize("variant", ["spans", "matched"])
@torch.no_grad()
def test_calls_change_neither_the_state_nor_the_model(variant):
    model = shared("llama", variant, overlap=2)
    state = model(tokens(2, 7)).state
    before, parts = copy.deepcopy(state), anatomy(model)
    first = model(tokens(2, 9, seed=1), state=state)
    assert torch.equal(model(tokens(2, 9, seed=1), state=state).logits, first.logits)
    assert torch.equal(before.open.ids, state.open.ids) and before.open.fill == state.open.fill
    for old, new in zip(before.open.cache, state.open.cache, strict=True):
        assert torch.equal(old[0], new[0]) and torch.equal(old[1], new[1])
    assert anatomy(model) == parts


@pytest.mark.parametrize("position", [-1.0, -3.0, 2.0])
@torch.no_grad()
def test_the_memory_stands_at_its_rotary_position(position):
    """Keys that the seam takes from a layer are its own norm, projection and rotation at that position."""
    model = recurrent_variant("llama", "paper")
    base = model.backbone.base_model
    layer, vectors = base.layers[1], torch.randn(2, 1, 32, dtype=torch.float64)
    model.carrier.vectors, model.carrier.positions = lambda memory: {2: vectors}, lambda: [position]
    key, value = model(tokens(2, 5 + 4)).state.open.inserted[2]
    normed = layer.input_layernorm(vectors)
    by_hand = layer.self_attn.k_proj(normed).view(2, 1, 2, 8).transpose(1, 2)
    cos, sin = base.rotary_emb(vectors, torch.tensor([[position]]))
    _, by_hand = apply_rotary_pos_emb(by_hand, by_hand, cos, sin)
    assert_same(key, by_hand, model)
    assert_same(value, layer.self_attn.v_proj(normed).view(2, 1, 2, 8).transpose(1, 2), model)


@pytest.mark.parametrize("variant", ["pooled", "paper", "spans"])
def test_the_memory_stands_right_before_the_window(variant):
    """The last inserted vector is at -1, and the others before it: as if they were the tokens before."""
    carrier = recurrent_variant("llama", variant).carrier
    assert carrier.positions() == [float(p) for p in range(-carrier.count, 0)]


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_half_precision_reads_token_by_token_as_well_as_whole(variant):
    """Sums over a window are kept exact, or they would stop growing at 256 tokens."""
    model = recurrent_variant("gpt2", variant, window=280, dtype=torch.float32, n_positions=280).to(torch.bfloat16)
    ids = tokens(1, 280)
    whole = model(ids).state.memory
    state = model(ids[:, :250]).state
    for at in range(250, 280):
        state = model(ids[:, at : at + 1], state=state).state
    assert state.has_memory == (True,)
    for cut, memory in zip(state.memory, whole, strict=True):
        assert cut.dtype == memory.dtype
        assert_close(cut.float(), memory.float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_text_of_one_window_gives_every_trained_parameter_a_gradient(variant):
    """Processes that train together wait for all of them."""
    model = without_dropout(recurrent_variant("gpt2", variant))
    ids = tokens(2, WINDOW)
    model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.carrier.parameters() if p.requires_grad)
