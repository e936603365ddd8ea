"""What a block-recurrent model does with a text, against the reference and the model's own state."""

import math

import pytest
import torch
from block_models import build
from helpers import tokens

from onward.data.tokens import TokenizedDocument
from onward.evaluation import measure
from onward.inspection import diagnose
from onward.inspection.diagnostics import alike
from onward.models.block_recurrent.reference import below, rms_norm, scaled, split, state_heads

W = 8


def document(length, seed=0):
    return TokenizedDocument("text", tokens(length, seed=seed), length // 4, length)


@torch.no_grad()
def states_after(model, ids, blocks):
    return model(ids[None, : blocks * W]).state


# --- states ----------------------------------------------------------------------------------------


def test_likeness_of_vectors():
    assert alike(torch.ones(5, 7)) == pytest.approx((1, 1))
    assert alike(torch.eye(5, 7)) == pytest.approx((0, 5))
    assert alike(torch.cat([torch.eye(1, 4), -torch.eye(1, 4)])) == pytest.approx((-1, 1))
    cosine, rank = alike(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 3.0]]))
    assert cosine == pytest.approx(1 / 3) and 1 < rank < 2
    one = alike(torch.ones(1, 4))
    assert math.isnan(one[0]) and one[1] == pytest.approx(1)


@pytest.mark.parametrize("case", ["Rec:lstm:dual", "feedback from the last of two"])
def test_states_are_looked_at_after_every_complete_block(case):
    model, text = build(case), document(4 * W + 3)
    found = diagnose(model, text).states
    assert list(found) == model.config.recurrent_layers
    for layer, likeness in found.items():
        cell = model.model.layers[layer - 1].cell
        expected = [alike(cell.initial)]
        expected += [alike(states_after(model, text.ids, n).layers[layer - 1].cell.vectors[0]) for n in range(1, 5)]
        assert likeness.cosine == pytest.approx([cosine for cosine, _ in expected])
        assert likeness.effective_rank == pytest.approx([rank for _, rank in expected])


# --- gates -----------------------------------------------------------------------------------------


def test_a_fixed_gate_keeps_what_it_has_learnt():
    model = build("Rec:fixed:skip")
    kept = model.model.layers[1].cell.attention_gate.forget.detach().sigmoid()
    gates = diagnose(model, document(3 * W)).gates
    assert list(gates) == [(2, "attention gate", "kept"), (2, "attention gate", "taken in")]
    found = gates[2, "attention gate", "kept"]
    assert found.mean == pytest.approx(float(kept.mean()))
    assert found.deviation == pytest.approx(float(kept.std(correction=0)))
    assert (found.lowest, found.highest) == pytest.approx((float(kept.min()), float(kept.max())))
    assert gates[2, "attention gate", "taken in"].mean == pytest.approx(1 - found.mean)


@torch.no_grad()
def test_an_lstm_gates_values_are_those_that_make_the_next_states():
    model = build("no tanh in lstm:skip")
    gate, text = model.model.layers[1].cell.attention_gate, document(3 * W + 1)
    given, kept, taken_in = [], [], []
    hook = gate.register_forward_hook(lambda module, inputs, after: given.append((*inputs, after)))
    states_after(model, text.ids, 3)
    hook.remove()
    for before, attended, after in given:
        z, i, f = (attended @ gate.kernel.weight.mT + gate.kernel.bias).chunk(3, -1)
        kept.append((f + 1).sigmoid())
        taken_in.append((i - 1).sigmoid())
        torch.testing.assert_close(before * kept[-1] + z * taken_in[-1], after)
    gates = diagnose(model, text).gates
    for part, values in (("kept", torch.stack(kept)), ("taken in", torch.stack(taken_in))):
        found = gates[2, "attention gate", part]
        assert found.mean == pytest.approx(float(values.mean()))
        assert found.deviation == pytest.approx(float(values.std(correction=0)))
        assert (found.lowest, found.highest) == pytest.approx((float(values.min()), float(values.max())))


def test_every_gate_is_named():
    for case, names in {"Rec:lstm:dual": ["attention gate", "mlp gate"], "Rec:fixed:single": ["mlp gate"]}.items():
        assert list(dict.fromkeys(name for _, name, _ in diagnose(build(case), document(20)).gates)) == names


# --- state use -----------------------------------------------------------------------------------------


@torch.no_grad()
def test_state_use_against_the_reference():
    """The recurrent layer is the first, so that its tokens are the embeddings."""
    model, text = build("Rec:lstm:dual", recurrent_layers=[1]), document(4 * W - 2)
    config, found = model.config, diagnose(model, text).state_use
    assert list(found) == [1]
    parameters = dict(model.model.named_parameters())
    layer = below(parameters, "layers.0.")
    joined = []
    hook = model.model.layers[0].attention.output.register_forward_pre_hook(lambda m, given: joined.append(given[0]))
    model(text.ids[None])
    hook.remove()
    own, states = joined[0][0, W:].chunk(2, -1)
    own_weight, state_weight = layer["attention.output.weight"].chunk(2, -1)
    sizes = [(part @ weight.mT).norm(dim=-1).sum() for part, weight in ((states, state_weight), (own, own_weight))]
    assert found[1].size == pytest.approx(float(sizes[0] / sizes[1]))

    entropies = []
    for block in range(1, 4):
        vectors = states_after(model, text.ids, block).layers[0].cell.vectors[0]
        keys, *_ = state_heads(config, below(layer, "cell."), vectors)
        x = parameters["embed_tokens.weight"][text.ids[block * W : (block + 1) * W]]
        normed = rms_norm(x, layer["attention_norm.weight"], config.rms_norm_eps)
        asked = (normed @ layer["attention.projection.weight"].mT).chunk(4, -1)[3]
        queries = scaled(split(asked, config.num_attention_heads), layer["attention.state_scale"])
        for query, key in zip(queries, keys, strict=True):
            shares = (query @ key.mT).softmax(-1)
            entropies.append(-(shares * shares.log()).sum(-1) / math.log(config.num_states))
    assert found[1].spread == pytest.approx(float(torch.cat(entropies).mean()))


def test_with_feedback_every_layer_uses_states():
    model = build("feedback from the last of two")
    found = diagnose(model, document(30)).state_use
    assert list(found) == [1, 2, 3]
    assert all(use.size > 0 and 0 < use.spread < 1 for use in found.values())
    with torch.no_grad():  # states at layer 3 that cannot be told apart: layer 2 reads those, layer 1 has its own
        model.model.layers[2].cell.projection.weight[: model.config.attention_width] = 0
    found = diagnose(model, document(30)).state_use
    assert found[2].spread == pytest.approx(1) and found[3].spread == pytest.approx(1) and found[1].spread < 0.999


def test_use_is_even_where_queries_are_zero_and_peaked_where_they_are_large():
    model = build("Rec:fixed:skip")
    scale = model.model.layers[1].attention.state_scale
    with torch.no_grad():
        scale.zero_()
        assert diagnose(model, document(20)).state_use[2].spread == pytest.approx(1)
        scale.fill_(1e4)
        assert diagnose(model, document(20)).state_use[2].spread < 0.01


def test_one_state_alone_has_no_spread():
    found = diagnose(build("one state"), document(20))
    assert math.isnan(found.state_use[2].spread) and math.isnan(found.states[2].cosine[0])


# --- losses ----------------------------------------------------------------------------------------


def test_losses_are_those_of_evaluation():
    model, text = build("Rec:fixed:skip"), document(4 * W)
    losses = diagnose(model, text).losses
    assert list(losses) == ["true", "ablated"]
    for memory, measures in losses.items():
        assert measures.nll == pytest.approx(measure(model, [text], memory=memory).nll)
    assert len(losses["true"].by_window.means) == 4
    assert list(diagnose(build("Memorizing:32k"), text).losses) == ["true", "ablated"]


def test_a_model_without_states_has_only_its_losses():
    found = diagnose(build("Slide:12L"), document(20))
    assert not found.gates and not found.states and not found.state_use
    assert list(found.losses) == ["true"]


def test_a_text_of_one_block_is_too_short():
    model = build("Rec:fixed:skip")
    with pytest.raises(ValueError, match="9 tokens have no second block in which states are used: give at least 10"):
        diagnose(model, document(W + 1))
    diagnose(model, document(W + 2))


def test_the_model_is_left_as_it_was():
    model, text = build("Rec:lstm:dual", dropout=0.3).train(), document(20)
    assert diagnose(model, text).gates == diagnose(model, text).gates
    assert model.training
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
