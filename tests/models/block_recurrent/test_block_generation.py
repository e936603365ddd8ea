"""`generate` over many blocks: token by token it is what one pass over the whole says, and the state stays small."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from block_models import LITTLE_MEMORY, PRESETS, draw, tiny
from tiny_models import tokens
from torch import Tensor
from transformers import GenerationConfig, TextStreamer

from onward import BlockRecurrentForCausalLM

PAD = 0
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": PAD}
OPTIONS = ["not itself, with feedback", "memory and states", "two recurrent layers", "blocks of three tokens"]
pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class FromScratch(BlockRecurrentForCausalLM):
    """Carries nothing: reads the whole text again for every token."""

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        return {"input_ids": input_ids, "attention_mask": kwargs.get("attention_mask"), "logits_to_keep": 1}

    def _reorder_cache(self, state: Any, beam_idx: Tensor) -> Any:
        return state


@cache
def build(case: str, kind: type = BlockRecurrentForCausalLM, **fields: Any) -> Any:
    """With an output layer of its own: with the embeddings there, tiny models say the last word again and again."""
    config = tiny(case, tie_word_embeddings=False, **fields)
    model = kind(config).double().eval()
    model.model.load_state_dict(draw(config))
    model.lm_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return model


def best_by_one_pass(model: Any, text: Tensor, prompt: int) -> Tensor:
    return model(text).logits[:, prompt - 1 : -1].argmax(-1)


@pytest.mark.parametrize("case", [*PRESETS, *OPTIONS])
def test_greedy_token_by_token_is_the_argmax_of_one_pass(case: str) -> None:
    model = build(case)
    ids = tokens(2, 5)
    text = model.generate(ids, max_new_tokens=2 * model.config.window + 6, **GREEDY)
    assert torch.equal(text[:, :5], ids)
    assert torch.equal(text[:, 5:], best_by_one_pass(model, text, 5))
    assert len(set(text[:, 5:].flatten().tolist())) > 3, "a model that repeats itself would prove little"


@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 16, 21])
def test_prompts_that_end_anywhere_in_a_block(prompt: int) -> None:
    model = build("Rec:lstm:dual")
    text = model.generate(tokens(2, prompt), max_new_tokens=18, **GREEDY)
    assert torch.equal(text[:, prompt:], best_by_one_pass(model, text, prompt))


def test_sampling_is_repeatable_and_follows_one_pass() -> None:
    model = build("Rec:fixed:skip")
    ids = tokens(2, 4)
    sampled = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        sampled.append(
            model.generate(
                ids,
                max_new_tokens=22,
                do_sample=True,
                pad_token_id=PAD,
                output_logits=True,
                return_dict_in_generate=True,
            )
        )
    assert torch.equal(sampled[0].sequences, sampled[1].sequences)
    assert not torch.equal(sampled[0].sequences, sampled[2].sequences)
    expected = model(sampled[0].sequences).logits[:, 3:-1].float()
    torch.testing.assert_close(torch.stack(sampled[0].logits, 1), expected, rtol=1e-5, atol=1e-5)


def test_several_samples_of_one_prompt_differ() -> None:
    torch.manual_seed(0)
    samples = build("Rec:fixed:skip").generate(
        tokens(2, 6), max_new_tokens=12, do_sample=True, num_return_sequences=3, pad_token_id=PAD
    )
    assert samples.shape == (6, 18) and len({tuple(row.tolist()) for row in samples}) == 6


BEAMS = ["Slide:12L", "Rec:lstm:single", "Feedback:fixed:skip", "little memory", "memory and feedback"]


@pytest.mark.parametrize("case", BEAMS)
def test_beams_are_those_of_a_model_that_carries_nothing(case: str) -> None:
    """Beams change places at every step, and each must take its own state along."""
    model, from_scratch = build(case), build(case, FromScratch)
    options = {
        "max_new_tokens": 21,
        "num_beams": 3,
        "num_return_sequences": 3,
        "output_scores": True,
        "return_dict_in_generate": True,
        **GREEDY,
    }
    ours, theirs = (each.generate(tokens(2, 4), **options) for each in (model, from_scratch))
    assert ours.sequences.shape == (6, 25)
    assert any(len(set(row.tolist())) > 1 for row in ours.beam_indices), "they did change places"
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=1e-5, atol=1e-5)
    log_probabilities = model(ours.sequences).logits[:, 3:-1].log_softmax(-1)
    picked = log_probabilities.gather(-1, ours.sequences[:, 4:, None])[..., 0]
    torch.testing.assert_close(ours.sequences_scores.double(), picked.mean(1), rtol=1e-5, atol=1e-5)


def left_padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0), value=PAD) for row in rows])
    return ids, torch.stack([torch.arange(width) >= width - len(row) for row in rows]).long()


@pytest.mark.parametrize(("case", "beams"), [*((case, 1) for case in BEAMS), ("memory and feedback", 3)])
def test_a_left_padded_batch_is_its_rows_one_by_one(case: str, beams: int) -> None:
    model = build(case)
    rows = [tokens(9), tokens(2, seed=1), tokens(5, seed=2)]
    ids, mask = left_padded(rows)
    together = model.generate(ids, attention_mask=mask, max_new_tokens=13, num_beams=beams, **GREEDY)
    for row, text in zip(rows, together, strict=True):
        alone = model.generate(row[None], max_new_tokens=13, num_beams=beams, **GREEDY)
        assert torch.equal(alone[0, len(row) :], text[9:])


def test_rows_end_one_by_one_at_the_end_token() -> None:
    model = build("Rec:fixed:skip")
    free = model.generate(tokens(2, 4), max_new_tokens=14, **GREEDY)
    end = free[0, 9].item()
    stopped = model.generate(tokens(2, 4), max_new_tokens=14, eos_token_id=end, **GREEDY)
    at = free[0, 4:].tolist().index(end) + 5
    assert torch.equal(stopped[0, :at], free[0, :at]) and (stopped[0, at:] == PAD).all()
    if end not in free[1, 4:]:
        assert torch.equal(stopped[1], free[1])


@pytest.mark.parametrize("first", [8, 11])
@pytest.mark.parametrize("case", BEAMS)
def test_generating_on_from_a_state_is_generating_from_the_whole(case: str, first: int) -> None:
    model = build(case)
    ids = tokens(2, 13)
    state = model(ids[:, :first]).state
    for options in ({}, {"num_beams": 2, "num_return_sequences": 2}):
        whole = model.generate(ids, max_new_tokens=9, **GREEDY, **options)
        continued = model.generate(ids[:, first:], state=state, max_new_tokens=9, **GREEDY, **options)
        assert torch.equal(continued, whole[:, first:])


def test_a_state_with_a_mask_of_the_whole_text() -> None:
    """As a caller has it who keeps the mask of all that was read."""
    model = build("Rec:fixed:skip")
    ids = tokens(2, 13)
    whole = model.generate(ids, max_new_tokens=9, **GREEDY)
    state = model(ids[:, :6]).state
    continued = model.generate(ids[:, 6:], state=state, attention_mask=torch.ones_like(ids), max_new_tokens=9, **GREEDY)
    assert torch.equal(continued, whole[:, 6:])


@pytest.mark.parametrize(
    "option",
    [
        {"prompt_lookup_num_tokens": 3},
        {"guidance_scale": 1.5},
        {"cache_implementation": "static"},
        {"prefill_chunk_size": 4},
        {"output_attentions": True, "return_dict_in_generate": True},
        {"past_key_values": object()},
        {"generation_config": GenerationConfig(prompt_lookup_num_tokens=3)},
    ],
    ids=lambda option: next(iter(option)),
)
def test_ways_to_generate_that_are_not_there(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="generate with (prompt|guid|cache|prefill|output|past).* is not supported: "):
        build("Rec:fixed:skip").generate(tokens(1, 4), max_new_tokens=3, **option)


def test_the_state_that_a_text_has_left() -> None:
    model = build("Rec:fixed:skip")
    output = model.generate(tokens(1, 4), max_new_tokens=9, return_dict_in_generate=True, **GREEDY)
    state = output.past_key_values
    assert state.tokens == (12,)  # all but the last token, which nobody has read yet
    more = model.generate(output.sequences[:, -1:], state=state, max_new_tokens=6, **GREEDY)
    assert torch.equal(more[:, 1:], model.generate(tokens(1, 4), max_new_tokens=15, **GREEDY)[:, -6:])


def test_a_document_that_starts_is_not_overlooked() -> None:
    """What `forward` takes must have its effect, or be refused."""
    model = build("Rec:fixed:skip")
    ids, state = tokens(2, 5), model(tokens(2, 11, seed=1)).state
    fresh = model.generate(ids, max_new_tokens=9, **GREEDY)
    try:
        ours = model.generate(ids, state=state, starts_document=[True, True], max_new_tokens=9, **GREEDY)
    except (TypeError, ValueError) as error:
        assert "starts_document" in str(error)
    else:
        assert torch.equal(ours, fresh)


def test_without_a_cache_the_state_is_carried_all_the_same() -> None:
    model = build("Rec:fixed:skip")
    expected = model.generate(tokens(2, 5), max_new_tokens=12, **GREEDY)
    assert torch.equal(model.generate(tokens(2, 5), max_new_tokens=12, use_cache=False, **GREEDY), expected)


def test_what_cannot_work_with_a_state_is_refused() -> None:
    model = build("Rec:fixed:skip")
    with pytest.raises(ValueError, match="the state has 1 rows, and the input 2"):
        model.generate(tokens(2, 5), state=model(tokens(1, 5)).state, max_new_tokens=3, **GREEDY)
    with pytest.raises(ValueError, match="not used by the model: .'statee'"):
        model.generate(tokens(1, 5), statee=3, max_new_tokens=3, **GREEDY)


def test_a_text_streamer_prints_while_blocks_go_by(capsys: pytest.CaptureFixture[str]) -> None:
    class Tokenizer:
        def decode(self, ids: Any, **_: Any) -> str:
            return "".join(f"{int(i)} " for i in ids)

    streamer = TextStreamer(Tokenizer(), skip_prompt=True)  # type: ignore[arg-type]
    text = build("Rec:fixed:skip").generate(tokens(1, 3), max_new_tokens=19, streamer=streamer, **GREEDY)
    assert capsys.readouterr().out.split() == [str(i) for i in text[0, 3:].tolist()]


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for item in value:
            yield from tensors(item)


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("Rec:lstm:dual", {}),
        ("Feedback:fixed:skip", {}),
        ("Memorizing:32k", LITTLE_MEMORY),
    ],
)
def test_the_state_stays_as_large_as_it_is_over_three_hundred_tokens(
    case: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(case, **fields)
    window, limit = model.config.window, model.config.memory_size
    lengths, totals, steps = [], [], []
    forward = model.forward

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        steps.append(kwargs["input_ids"].shape[1])
        lengths.append([layer.recent.keys.shape[2] for layer in output.state.layers])
        totals.append(sum(t.numel() for t in tensors(output.state.layers)))
        assert all(layer.memory is None or layer.memory.keys.shape[2] <= limit for layer in output.state.layers)
        return output

    monkeypatch.setattr(model, "forward", watched)
    model.generate(tokens(1, 3), max_new_tokens=300, **GREEDY)
    assert steps == [3] + [1] * 299
    assert all(count == min(window, 3 + step) for step, each in enumerate(lengths) for count in each)
    # What a block needs before its end is not there between two blocks: so block is compared with block.
    settled = totals[max(window, limit + window) :]
    assert len(settled) > 200 and settled[:-window] == settled[window:]
    assert max(settled) <= max(totals[: 2 * window + limit])


def test_a_state_does_not_hold_on_to_a_long_text() -> None:
    """A few columns of a long text must not keep all of it in memory."""
    for case in ("Slide:12L", "Rec:fixed:skip", "little memory"):
        model = build(case)
        found = list(tensors(model(tokens(1, 400)).state.layers))
        stored = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}
        assert sum(stored.values()) <= 2 * sum(t.nbytes for t in found), case
