"""The fast block-recurrent model against the plain reference: logits, states and every gradient, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from block_models import CASES, OPTIONS, draw, shapes, tiny, without_effect
from tiny_models import tokens
from torch import Tensor

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM, BlockState
from onward.models.block_recurrent.reference import loss, read_document

SOME = ["Slide:12L", "Rec:lstm:dual", "feedback from the last of two", "memory and states", "not itself, with states"]


def lengths(window: int) -> list[int]:
    """One token, less than a block, a block, and blocks with a rest."""
    blocks = 6 if window == 1 else 3 if window <= 8 else 2
    return sorted({1, max(1, window - 3), window, blocks * window + min(3, window - 1)})


def build(config: BlockRecurrentConfig) -> tuple[Any, dict[str, Tensor]]:
    """The model, and its parameters by their names, all of them drawn anew."""
    model = BlockRecurrentForCausalLM(config).double().eval()
    parameters = dict(model.model.named_parameters())
    drawn = draw(config)
    assert {name: tuple(p.shape) for name, p in parameters.items()} == shapes(config)
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(drawn[name])
    return model, parameters


def states_of(state: BlockState) -> dict[int, Tensor]:
    """Of the only row, the states [S, d] by layer, counted from 1."""
    return {i: layer.cell.vectors[0] for i, layer in enumerate(state.layers, start=1) if layer.cell is not None}


def gradients(value: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if gradient is None else gradient
        for (name, p), gradient in zip(parameters.items(), found, strict=True)
    }


def assert_close(ours: Tensor, theirs: Tensor, what: str) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10, msg=lambda text: f"{what}: {text}")


def assert_all_close(ours: dict[Any, Tensor], theirs: dict[Any, Tensor], what: str) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert_close(ours[name], theirs[name], f"{what} {name}")


@pytest.mark.parametrize("case", CASES)
def test_logits_states_and_all_gradients(case: str) -> None:
    config = tiny(case)
    model, parameters = build(config)
    for length in lengths(config.window):
        ids = tokens(length)
        theirs, their_states = read_document(config, parameters, ids)
        output = model.eval()(ids[None])
        assert_close(output.logits[0], theirs, f"logits of {length} tokens")
        assert_all_close(states_of(output.state), their_states, f"after {length} tokens, states of layer")
        if length < max(2, config.window) or (length == config.window and case in OPTIONS):
            continue  # the reference takes its time: gradients of whole blocks, and of the options for several

        expected = loss(theirs, ids)
        by_name = gradients(expected, parameters)
        ours = torch.nn.functional.cross_entropy(output.logits[0, :-1], ids[1:])
        assert_all_close(gradients(ours, parameters), by_name, f"{length} tokens, gradient of")

        trained = model.train()(ids[None], labels=ids[None])
        assert trained.logits is None
        assert_close(trained.loss, expected, f"loss of {length} tokens")
        assert_all_close(gradients(trained.loss, parameters), by_name, f"{length} tokens, in training, gradient of")
        assert_all_close(states_of(trained.state), their_states, f"{length} tokens, in training, states of")
        if length > config.window:
            silent = {name for name, gradient in by_name.items() if gradient.abs().max() < 1e-7}
            assert silent == without_effect(config)


@pytest.mark.parametrize("case", SOME)
def test_pieces_have_the_logits_and_gradients_of_the_whole(case: str) -> None:
    config = tiny(case)
    model, parameters = build(config)
    ids = tokens(27)
    theirs, their_states = read_document(config, parameters, ids)
    pieces, state = [], None
    for piece in ids.split([1, 3, 4, 11, 1, 7]):
        output = model(piece[None], state=state)
        pieces.append(output.logits[0])
        state = output.state
    ours = torch.cat(pieces)
    assert_close(ours, theirs, "logits")
    assert_all_close(states_of(state), their_states, "states of layer")
    by_name = gradients(loss(theirs, ids), parameters)
    assert_all_close(gradients(loss(ours, ids), parameters), by_name, "gradient of")


@pytest.mark.parametrize("case", SOME)
def test_checkpointing_over_blocks_has_the_loss_and_gradients_of_the_reference(case: str) -> None:
    config = tiny(case)
    model, parameters = build(config)
    model.train()
    model.gradient_checkpointing_enable()
    ids = tokens(27)
    logits, _ = read_document(config, parameters, ids)
    expected = loss(logits, ids)
    ours = model(ids[None], labels=ids[None]).loss
    assert_close(ours, expected, "loss")
    assert_all_close(gradients(ours, parameters), gradients(expected, parameters), "gradient of")


@pytest.mark.parametrize("case", SOME)
@torch.no_grad()
def test_rows_of_different_length_are_each_read_as_if_alone(case: str) -> None:
    config = tiny(case)
    model, parameters = build(config)
    counts = torch.tensor([8, 19, 1, 16])
    right = torch.arange(19) < counts[:, None]  # padded at the right
    read, goes_on = tokens(4, 19), tokens(4, 9, seed=1)
    outputs = {}
    for side, mask in (("right", right), ("left", right.flip(1))):
        ids = torch.zeros_like(read).masked_scatter(mask, read[right])
        output = model(ids, attention_mask=mask.long())
        outputs[side] = mask, output.logits, model(goes_on, state=output.state).logits
    for row, count in enumerate(counts.tolist()):
        theirs, _ = read_document(config, parameters, torch.cat([read[row, :count], goes_on[row]]))
        for side, (mask, logits, after) in outputs.items():
            assert_close(logits[row, mask[row]], theirs[:count], f"row {row} padded {side}")
            assert_close(after[row], theirs[count:], f"row {row} padded {side}, going on")


@pytest.mark.parametrize("case", ["Rec:lstm:dual", "Feedback:fixed:skip"])
@pytest.mark.parametrize("factor", [0.0, 2e-7])
def test_queries_and_keys_of_almost_no_length_are_not_made_long(case: str, factor: float) -> None:
    config = tiny(case, num_states=3)
    model, parameters = build(config)
    ids = tokens(19)
    with torch.no_grad():
        parameters["embed_tokens.weight"][ids[5:9]] *= factor  # short keys, too: the norm before them has an epsilon
        parameters["layers.0.attention.projection.weight"][:8] *= factor
        for name in ("projection.weight", "initial", "ids"):
            parameters[f"layers.1.cell.{name}"][1] *= factor
    ours, (theirs, _) = model(ids[None]).logits[0], read_document(config, parameters, ids)
    assert_close(ours, theirs, "logits")
    by_name = gradients(loss(theirs, ids), parameters)
    for name, gradient in gradients(loss(ours, ids), parameters).items():
        largest = 1 + by_name[name].abs().max()  # up to a million
        assert_close(gradient / largest, by_name[name] / largest, f"gradient of {name}")
