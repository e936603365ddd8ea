"""`generate` over many windows: greedy, sampling, beams, batches, streams, and on from a state."""

from __future__ import annotations

import pytest
import torch
from tiny_models import PAD, VARIANTS, backbone, padded, recurrent_variant, shared, tokens
from transformers import TextStreamer
from transformers.generation.streamers import BaseStreamer

WINDOW = 5
GREEDY = {"do_sample": False, "eos_token_id": -1, "pad_token_id": PAD}
pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


def argmax_by_forward(model, ids, count):
    """The slow way: the whole text is read again for every token."""
    for _ in range(count):
        ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return ids


@pytest.mark.parametrize(
    ("family", "overlap"),
    [("gpt2", 0), ("gpt2", 2), ("opt", 0), ("gpt_neox", 2), ("llama", 0), ("gemma3_text", 2), ("biogpt", 0)],
)
def test_greedy_is_the_argmax_of_forward(family, overlap):
    model = shared(family, "spans", overlap=overlap)
    ids = tokens(2, 7)
    expected = argmax_by_forward(model, ids, 11)
    assert torch.equal(model.generate(ids, max_new_tokens=11, **GREEDY), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_with_every_carrier(variant):
    model = shared("gpt2", variant, overlap=1)
    ids = tokens(2, 3)
    assert torch.equal(model.generate(ids, max_new_tokens=12, **GREEDY), argmax_by_forward(model, ids, 12))


def test_the_first_window_and_disabled_recurrence_generate_what_the_backbone_does():
    model, original = shared("llama"), backbone("llama")
    ids = tokens(1, 2)
    assert torch.equal(
        model.generate(ids, max_new_tokens=3, **GREEDY), original.generate(ids, max_new_tokens=3, **GREEDY)
    )
    expected = original.generate(ids, max_new_tokens=12, **GREEDY)
    with model.recurrence_disabled():
        assert torch.equal(model.generate(ids, max_new_tokens=12, **GREEDY), expected)
    assert not torch.equal(model.generate(ids, max_new_tokens=12, **GREEDY), expected)


def test_sampling_is_repeatable_and_follows_forward():
    model = shared("gpt2", "spans")
    ids = tokens(2, 4)
    sampled = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        options = {**GREEDY, "do_sample": True, "output_logits": True, "return_dict_in_generate": True}
        sampled.append(model.generate(ids, max_new_tokens=14, **options))
    assert torch.equal(sampled[0].sequences, sampled[1].sequences)
    assert not torch.equal(sampled[0].sequences, sampled[2].sequences)
    expected = model(sampled[0].sequences, use_cache=False).logits[:, 3:-1]
    torch.testing.assert_close(torch.stack(sampled[0].logits, dim=1), expected.float(), rtol=1e-4, atol=1e-4)


def scores_by_forward(model, sequences, prompt):
    """The mean log-probability of what follows the prompt."""
    log_probabilities = model(sequences, use_cache=False).logits[:, prompt - 1 : -1].float().log_softmax(-1)
    picked = log_probabilities.gather(-1, sequences[:, prompt:, None])[..., 0]
    return picked.sum(1) / picked.shape[1]


@pytest.mark.parametrize(("family", "variant"), [*(("gpt2", v) for v in VARIANTS), ("llama", "spans")])
def test_beams_carry_their_own_state(family, variant):
    """Beams are mixed at every step; with states mixed up, their scores would not be those of their text."""
    model = shared(family, variant, overlap=1)
    output = model.generate(
        tokens(2, 4), max_new_tokens=11, num_beams=3, num_return_sequences=3, output_scores=True,
        return_dict_in_generate=True, **GREEDY,
    )  # fmt: skip
    assert output.sequences.shape == (6, 15)
    assert any(len(set(row.tolist())) > 1 for row in output.beam_indices)  # they did change places
    expected = scores_by_forward(model, output.sequences, 4)
    torch.testing.assert_close(output.sequences_scores, expected, rtol=1e-4, atol=1e-4)


def test_beams_of_a_left_padded_batch_are_those_of_its_rows():
    model = shared("gpt2", "spans")
    rows = [tokens(3), tokens(8)]
    ids, mask = padded(rows, "left")
    options = {"max_new_tokens": 9, "num_beams": 3, **GREEDY}
    together = model.generate(ids, attention_mask=mask, **options)
    for row, text in zip(rows, together, strict=True):
        assert torch.equal(model.generate(row[None], **options)[0, len(row) :], text[8:])


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama", "gemma3_text"])
def test_a_left_padded_batch_is_its_rows_one_by_one(family):
    model = shared(family, "spans", overlap=1)
    rows = [tokens(9), tokens(2), tokens(5)]
    ids, mask = padded(rows, "left")
    together = model.generate(ids, attention_mask=mask, max_new_tokens=12, **GREEDY)
    for row, text in zip(rows, together, strict=True):
        assert torch.equal(model.generate(row[None], max_new_tokens=12, **GREEDY)[0, len(row) :], text[9:])


def test_generation_ends_row_by_row_at_the_end_token():
    model = shared("gpt2")
    free = model.generate(tokens(2, 4), max_new_tokens=12, **GREEDY)
    end = free[0, 9].item()
    stopped = model.generate(tokens(2, 4), max_new_tokens=12, **{**GREEDY, "eos_token_id": end})
    at = free[0, 4:].tolist().index(end) + 5
    assert torch.equal(stopped[0, :at], free[0, :at]) and (stopped[0, at:] == PAD).all()


def test_without_a_mask_it_is_as_with_one():
    model = shared("llama")
    ids = tokens(2, 7)
    with_mask = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, **GREEDY)
    assert torch.equal(model.generate(ids, max_new_tokens=8, **GREEDY), with_mask)


@pytest.mark.parametrize(("family", "first"), [("gpt2", 3), ("gpt2", WINDOW), ("llama", 7)])
def test_generating_on_from_a_state_is_generating_from_the_whole(family, first):
    model = shared(family, "spans", overlap=1)
    ids = tokens(2, 10)
    state = model(ids[:, :first]).state
    whole = model.generate(ids, max_new_tokens=9, **GREEDY)
    continued = model.generate(ids[:, first:], state=state, max_new_tokens=9, **GREEDY)
    assert torch.equal(continued, whole[:, first:])
    repeated = model.generate(
        ids[:, first:], state=state, max_new_tokens=9, num_beams=2, num_return_sequences=2, **GREEDY
    )
    beams = model.generate(ids, max_new_tokens=9, num_beams=2, num_return_sequences=2, **GREEDY)
    assert torch.equal(repeated, beams[:, first:])


def test_several_samples_of_one_prompt_differ():
    model = shared("gpt2")
    torch.manual_seed(0)
    options = {**GREEDY, "do_sample": True}
    samples = model.generate(tokens(1, 6), max_new_tokens=8, num_return_sequences=4, **options)
    assert samples.shape == (4, 14) and len({tuple(row.tolist()) for row in samples}) == 4


def test_a_streamer_gets_every_token_once():
    class Collects(BaseStreamer):
        def __init__(self):
            self.tokens, self.ended = [], False

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def end(self):
            self.ended = True

    model, streamer = shared("gpt2"), Collects()
    generated = model.generate(tokens(1, 6), max_new_tokens=9, streamer=streamer, **GREEDY)
    assert streamer.ended and streamer.tokens == generated[0].tolist()


def test_a_text_streamer_prints_while_windows_go_by(capsys):
    class Tokenizer:
        def decode(self, ids, **_):
            return "".join(f"{int(i)} " for i in ids)

    model = shared("gpt2")
    text = model.generate(
        tokens(1, 3), max_new_tokens=11, streamer=TextStreamer(Tokenizer(), skip_prompt=True), **GREEDY
    )
    assert capsys.readouterr().out.split() == [str(i) for i in text[0, 3:].tolist()]


def test_the_state_stays_small_over_two_hundred_tokens(monkeypatch):
    model = recurrent_variant("gpt2", "spans", overlap=1)
    sizes, steps = [], []
    forward = model.forward

    def watched(*args, **kwargs):
        output = forward(*args, **kwargs)
        opened = output.state.open
        sizes.append(max([opened.ids.shape[1]] + [key.shape[2] for key, _ in opened.cache or ()]))
        steps.append(kwargs["input_ids"].shape[1])
        return output

    monkeypatch.setattr(model, "forward", watched)
    generated = model.generate(tokens(1, 3), max_new_tokens=200, **GREEDY)
    assert generated.shape == (1, 203) and len(sizes) == 200
    assert max(sizes) < WINDOW and steps == [3] + [1] * 199
