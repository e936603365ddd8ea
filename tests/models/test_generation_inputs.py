"""What `generate` is given reaches the model; what it cannot use is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from systems import block, window
from tiny_models import tiny_model, tokens

from onward import BlockRecurrentForCausalLM, WindowRecurrentForCausalLM


def made(system: str) -> Any:
    return window("gpt2", "causal-lm", eos_token_id=None) if system == "window" else block()


@pytest.fixture(params=["window", "block"])
def model(request: pytest.FixtureRequest) -> Any:
    return made(request.param)


@pytest.mark.parametrize("beams", [1, 2])
@torch.no_grad()
def test_hidden_states_are_returned_for_every_token(model: Any, beams: int) -> None:
    ids = tokens(2, 11)
    output = model.generate(
        ids, max_new_tokens=4, num_beams=beams, return_dict_in_generate=True, output_hidden_states=True
    )
    assert len(output.hidden_states) == 4
    layers = model.config.num_hidden_layers + 1
    rows = 2 * beams
    assert [tuple(h.shape) for h in output.hidden_states[0]] == [(rows, 11, 32)] * layers
    assert all(tuple(h.shape) == (rows, 1, 32) for step in output.hidden_states[1:] for h in step)
    if beams == 1:
        whole = model(output.sequences[:, :-1], output_hidden_states=True).hidden_states
        for layer, expected in enumerate(whole):
            ours = torch.cat([step[layer] for step in output.hidden_states], 1)
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [WindowRecurrentForCausalLM, BlockRecurrentForCausalLM])
def test_arguments_of_a_class_of_ones_own_are_handed_on(kind: Any) -> None:
    seen: list[Any] = []

    class Own(kind):
        def forward(self, input_ids: Any = None, my_flag: Any = None, **kwargs: Any) -> Any:
            seen.append((my_flag, kwargs.get("output_hidden_states")))
            return super().forward(input_ids, **kwargs)

    model = made("window" if kind is WindowRecurrentForCausalLM else "block")
    model.__class__ = Own
    model.generate(tokens(1, 5), max_new_tokens=3, my_flag="x", state=None, attention_mask=torch.ones(1, 5))
    assert seen == [("x", None)] * 3


def test_what_is_prepared_is_all_that_was_given(model: Any) -> None:
    given = {"my_flag": 1, "token_type_ids": torch.arange(5)[None], "output_hidden_states": True}
    ids = tokens(1, 5)
    first = model.prepare_inputs_for_generation(ids, is_first_iteration=True, prefix_length=2, **given)
    assert first["my_flag"] == 1 and first["output_hidden_states"] and first["prefix_length"] == 2
    assert torch.equal(first["token_type_ids"], given["token_type_ids"]) and torch.equal(first["input_ids"], ids)
    later = model.prepare_inputs_for_generation(ids, state="state", labels=ids, next_sequence_length=1, **given)
    assert torch.equal(later["token_type_ids"], torch.tensor([[4]])) and later["state"] == "state"
    assert later["my_flag"] == 1 and not {"labels", "next_sequence_length"} & later.keys()


@pytest.mark.parametrize("beams", [1, 2])
@torch.no_grad()
def test_a_prefix_begins_every_window_of_what_is_generated(beams: int) -> None:
    model, ids = made("window"), tokens(2, 7)
    ours = model.generate(ids, max_new_tokens=9, prefix_length=[2, 3], num_beams=beams)
    if beams == 1:
        output = model(ids, prefix_length=[2, 3])
        made_by_hand = ids
        for _ in range(9):
            made_by_hand = torch.cat([made_by_hand, output.logits[:, -1:].argmax(-1)], 1)
            output = model(made_by_hand[:, -1:], state=output.state)
        assert torch.equal(ours, made_by_hand)
    assert not torch.equal(ours, model.generate(ids, max_new_tokens=9, num_beams=beams))


@torch.no_grad()
def test_a_prompt_may_be_embeddings() -> None:
    model, ids = made("block"), tokens(2, 9)
    embedded = model.get_input_embeddings()(ids)
    for mask in (None, torch.ones(2, 9)):
        ours = model.generate(inputs_embeds=embedded, attention_mask=mask, max_new_tokens=4, do_sample=False)
        assert torch.equal(ours, model.generate(ids, max_new_tokens=4, do_sample=False)[:, 9:])
    with pytest.raises(
        ValueError, match="inputs_embeds is not supported: windows are cut from token ids; pass input_ids"
    ):
        made("window").generate(inputs_embeds=embedded, max_new_tokens=4)


def test_no_model_that_cannot_forget_is_an_assistant(model: Any) -> None:
    stock = tiny_model("gpt2")
    with pytest.raises(ValueError, match="cannot be another one's assistant, as a state cannot forget tokens"):
        stock.generate(tokens(1, 5), assistant_model=model, max_new_tokens=5)
    with pytest.raises(
        ValueError, match="generate with assistant_model is not supported: a state cannot forget tokens"
    ):
        model.generate(tokens(1, 5), assistant_model=stock, max_new_tokens=5)
