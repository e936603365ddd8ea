"""Whole documents scored by block-recurrent models: alone, in batches, with true, swapped and ablated states."""

import pytest
import torch
from block_models import build, tiny

from onward.data.tokens import TokenizedDocument
from onward.evaluation import NothingToSwap, measure, measure_memories
from onward.evaluation.controls import BlockControls

W = 8
CARRYING = ["Rec:fixed:skip", "Rec:lstm:dual", "Feedback:lstm:single", "little memory", "memory and states"]
EVALUATED = [
    *CARRYING,
    "Slide:12L",
    "XL:1024",
    "not itself, with states",
    "two recurrent layers",
    "blocks of three tokens",
]


def documents(*lengths):
    generator = torch.Generator().manual_seed(1)
    return [
        TokenizedDocument(f"d{i}", torch.randint(3, 99, (n,), generator=generator).int(), n // 2 + 1, 4 * n)
        for i, n in enumerate(lengths)
    ]


# Ends within a block, at its end, and one token before and after it; one document has nothing to score.
DOCUMENTS = documents(37, 7, 26, 1, 49, 8, 9, 10, 2, 17)


@torch.no_grad()
def losses_of(model, ids):
    """The loss of every token but the first, from one call for the whole document."""
    return torch.nn.functional.cross_entropy(model(ids[None]).logits[0, :-1], ids[1:], reduction="none")


@pytest.mark.parametrize("case", EVALUATED)
def test_blocks_and_batches_equal_one_call_for_each_document(case):
    model = build(case)
    measures = measure(model, DOCUMENTS, batch_size=4)
    for document, score in zip(DOCUMENTS, measures.documents, strict=True):
        assert (score.name, score.tokens) == (document.name, len(document) - 1)
        if score.tokens:
            assert score.nll == pytest.approx(float(losses_of(model, document.ids.long()).sum()), abs=1e-8)


def test_curves_hold_each_token_where_it_belongs():
    model, document = build("Rec:fixed:skip"), documents(20)[0]
    losses = losses_of(model, document.ids.long())
    measures = measure(model, [document])
    assert (measures.window, measures.overlap) == (W, 0)
    assert measures.by_window.counts == (8, 8, 3)  # by distance from the start
    assert measures.by_window.sums == pytest.approx([float(part.sum()) for part in losses.split(W)])
    assert measures.by_position.counts == (3, 3, 3, 2, 2, 2, 2, 2)
    assert measures.by_position.sums[2] == pytest.approx(float(losses[[2, 10, 18]].sum()))


def test_the_model_is_left_as_it_was():
    model = build("Rec:lstm:dual", dropout=0.3).train()
    first = measure_memories(model, DOCUMENTS, batch_size=3)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    again = measure_memories(model, DOCUMENTS, batch_size=3)
    assert [first[memory].nll for memory in first] == [again[memory].nll for memory in again]


# --- controls --------------------------------------------------------------------------------------


def score(model, piece, state):
    """Losses [B] of a block and the token after it, [B, W + 1], and the state after it."""
    with torch.no_grad():
        output = model(piece[:, :-1], state=state)
    losses = torch.nn.functional.cross_entropy(output.logits.transpose(1, 2), piece[:, 1:], reduction="none")
    return losses.sum(1), output.state


def blocks(ids):
    """ids: [B, n W + 1] -> n pieces [B, W + 1], each with the token after it."""
    return [ids[:, start : start + W + 1] for start in range(0, ids.shape[1] - 1, W)]


def initial_vectors(model, state):
    """The state with its vectors put back to those that documents start from."""
    layers = []
    for module, layer in zip(model.model.layers, state.layers, strict=True):
        if layer.cell is not None:
            vectors = module.cell.initial.detach().expand(state.batch_size, -1, -1)
            layer = layer._replace(cell=layer.cell._replace(vectors=vectors))
        layers.append(layer)
    return type(state)(state.model, state.tokens, tuple(layers))


@pytest.mark.parametrize("case", ["Rec:fixed:skip", "Rec:lstm:dual", "Feedback:lstm:single", "two recurrent layers"])
def test_ablated_scores_every_block_with_the_initial_states(case):
    model, pair = build(case), documents(4 * W + 1, 4 * W + 1)
    expected, state = torch.zeros(2, dtype=torch.float64), None
    for piece in blocks(torch.stack([document.ids for document in pair]).long()):
        losses, state = score(model, piece, None if state is None else initial_vectors(model, state))
        expected += losses
    measured = measure(model, pair, memory="ablated")
    assert [d.nll for d in measured.documents] == pytest.approx(expected.tolist(), abs=1e-8)
    assert measured.nll != pytest.approx(measure(model, pair).nll, abs=1e-3)


def test_ablated_remembers_only_the_block_before():
    """As a document that begins with the block before, where there are no states."""
    model, document = build("little memory", num_hidden_layers=1, memory_layer=1), documents(5 * W + 1)[0]
    ids = document.ids.long()
    expected = losses_of(model, ids[: W + 1]).sum()
    for start in range(0, 4 * W, W):
        expected += losses_of(model, ids[start : start + 2 * W + 1])[W:].sum()
    assert measure(model, [document], memory="ablated").nll == pytest.approx(float(expected), abs=1e-8)
    assert measure(model, [document]).nll != pytest.approx(float(expected), abs=1e-3)


@pytest.mark.parametrize("case", CARRYING)
def test_swapped_scores_every_block_with_the_next_documents_states(case):
    model, trio = build(case), documents(4 * W + 1, 4 * W + 1, 4 * W + 1)
    expected = torch.zeros(3, dtype=torch.float64)
    own = swapped = None
    for piece in blocks(torch.stack([document.ids for document in trio]).long()):
        if own is not None:
            swapped = type(own)(own.model, own.tokens, _with_recent(own.select([1, 2, 0]), swapped))
        losses, swapped = score(model, piece, swapped)
        own = score(model, piece, own)[1]
        expected += losses
    measured = measure(model, trio, memory="swapped")
    assert [d.nll for d in measured.documents] == pytest.approx(expected.tolist(), abs=1e-8)
    assert measured.nll != pytest.approx(measure(model, trio).nll, abs=1e-3)


@pytest.mark.parametrize("case", CARRYING)
def test_a_document_that_has_ended_lends_its_last_states(case):
    """And what it remembers, which is less than a longer document would."""
    memory = {"memory_size": 4 * W} if tiny(case).memory_size else {}
    model, (short, long) = build(case, **memory), documents(2 * W + 4, 6 * W + 1)
    with torch.no_grad():
        lent = model(short.ids[None, : 2 * W].long()).state  # its rest is no complete block
    expected, state = 0.0, None
    for number, piece in enumerate(blocks(long.ids[None].long())):
        if number == 1:
            with torch.no_grad():
                first = model(short.ids[None, :W].long()).state
            state = type(lent)(lent.model, (W,), _with_recent(first, state))
        elif number > 1:
            state = type(lent)(lent.model, (2 * W,), _with_recent(lent, state))
        losses, state = score(model, piece, state)
        expected += float(losses)
    swapped = measure(model, [short, long], memory="swapped").documents[1].nll
    assert swapped == pytest.approx(expected, abs=1e-8)


def _with_recent(carried, state):
    pairs = zip(carried.layers, state.layers, strict=True)
    return tuple(other._replace(recent=layer.recent) for other, layer in pairs)


def test_a_model_that_carries_nothing_has_nothing_to_lose():
    found = measure_memories(build("Slide:12L"), DOCUMENTS, batch_size=3)
    assert list(found) == ["true", "swapped", "ablated"]
    assert found["swapped"].nll == pytest.approx(found["true"].nll, abs=1e-9)
    assert found["ablated"].nll == pytest.approx(found["true"].nll, abs=1e-9)


def test_controls_measured_alone_or_together_are_the_same():
    model = build("memory and states")
    together = measure_memories(model, DOCUMENTS, batch_size=3)
    first_blocks = {measures.by_window.sums[0] for measures in together.values()}
    assert len(first_blocks) == 1  # nothing has been carried there
    for memory, measures in together.items():
        alone = measure(model, DOCUMENTS, batch_size=3, memory=memory)
        assert [d.nll for d in alone.documents] == pytest.approx([d.nll for d in measures.documents], abs=1e-8)
    assert measure(model, DOCUMENTS, batch_size=1, memory="ablated").nll == pytest.approx(together["ablated"].nll)


def test_what_cannot_be_is_refused():
    model = build("Rec:fixed:skip")
    with pytest.raises(ValueError, match="memory='constant': it is not known; choose one of true, swapped, ablated"):
        measure(model, DOCUMENTS, memory="constant")
    with pytest.raises(NothingToSwap, match="batch_size of at least 2"):
        measure(model, DOCUMENTS, memory="swapped", batch_size=1)
    with pytest.raises(NothingToSwap, match="give at least two"):
        measure(model, documents(30, 5), memory="swapped")
    with pytest.raises(ValueError, match="the vocabulary 50 ids"):
        measure(build("Rec:fixed:skip", vocab_size=50), DOCUMENTS)


def test_ablating_changes_no_state_in_place():
    model = build("memory and states")
    with torch.no_grad():
        state = model(DOCUMENTS[0].ids[None, : 3 * W].long()).state
    before = state.to(torch.float64)
    BlockControls(model).ablated(state)
    assert before.tokens == state.tokens == (3 * W,)
    assert torch.equal(before.layers[1].cell.vectors, state.layers[1].cell.vectors)
