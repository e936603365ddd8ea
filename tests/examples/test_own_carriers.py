"""The carriers of examples/own_carriers.py do what they say, and documents can be cut anywhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from onward import WindowRecurrenceConfig, add_recurrence
from onward.data import Document
from onward.data.tokens import TokenizedDocument, tokenize
from onward.data.vocabularies import train_vocabulary
from onward.evaluation import measure
from onward.models.window_recurrent.carriers import CARRIERS
from onward.training import TrainingRecipe

WINDOW, SPANS = 12, 3


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    before = dict(CARRIERS)
    place = Path(__file__).parents[2] / "examples" / "own_carriers.py"
    spec = importlib.util.spec_from_file_location("own_carriers", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TEXT", WINDOW - 4)
    monkeypatch.setattr(module, "SUMMARIES", 4)
    yield module
    CARRIERS.clear()
    CARRIERS.update(before)


def small_gpt2() -> GPT2LMHeadModel:
    sizes = {"vocab_size": 50, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def model_with(**fields: Any) -> Any:
    torch.manual_seed(0)
    return add_recurrence(small_gpt2(), WindowRecurrenceConfig(**fields, window=WINDOW)).double().eval()


def ids_of(model: Any, length: int = 5 * WINDOW + 5) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))


def logits(model: Any, ids: torch.Tensor, **given: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, **given).logits


@pytest.mark.parametrize(
    "fields",
    [
        {"carrier": "weighted", "history": [SPANS]},
        {"carrier": "gated", "history": [SPANS, 2]},
        {"carrier": "gated", "history": [SPANS, 2, 2]},
        {"carrier": "summaries"},
    ],
)
def test_cut_anywhere(example: Any, fields: dict[str, Any]) -> None:
    model = model_with(**fields)
    for parameter in model.carrier.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = ids_of(model)
    whole = logits(model, ids)
    for cut in (5, WINDOW, 3 * WINDOW + 1):
        with torch.no_grad():
            state = model(ids[:, :cut]).state
        torch.testing.assert_close(logits(model, ids[:, cut:], state=state), whole[:, cut:])


def test_weighted_starts_as_spans_and_learns_what_to_weigh(example: Any) -> None:
    spans, weighted = (model_with(carrier=name, history=[SPANS]) for name in ("spans", "weighted"))
    ids = ids_of(spans)
    assert torch.equal(logits(weighted, ids), logits(spans, ids))
    weighted(ids, labels=ids).loss.backward()
    assert weighted.carrier.key.grad.abs().min() > 0


def test_a_closed_gate_keeps_two_windows_and_an_open_one_the_first(example: Any) -> None:
    spans, gated = (model_with(carrier=name, history=[SPANS, SPANS]) for name in ("spans", "gated"))
    ids = ids_of(spans)
    torch.nn.init.constant_(gated.carrier.keep, -1e3)
    assert torch.equal(logits(gated, ids), logits(spans, ids))
    torch.nn.init.constant_(gated.carrier.keep, 1e3)
    with torch.no_grad():
        states = [gated(ids[:, : count * WINDOW]).state.memory[0] for count in (2, 4)]
    assert torch.equal(states[0][:, :, 1 : 1 + SPANS], states[1][:, :, 1 : 1 + SPANS])
    gated = model_with(carrier="gated", history=[SPANS, SPANS])
    gated(ids, labels=ids).loss.backward()
    assert gated.carrier.keep.grad.abs().sum() > 0 and gated.carrier.gate_up.grad.abs().sum() > 0


def test_summaries_remember_the_last_tokens_only(example: Any) -> None:
    model = model_with(carrier="summaries")
    ids = ids_of(model, WINDOW)
    with torch.no_grad():
        means, seen = model(ids).state.memory
        hidden = model.backbone.transformer(ids, output_hidden_states=True).hidden_states[0]
        first_layer = model.backbone.transformer.h[0].ln_1(hidden)
    assert seen.all() and means.shape[2] == 5
    torch.testing.assert_close(means[:, 0], first_layer[:, [0, 8, 9, 10, 11]])


def test_summary_tokens_follow_every_whole_window(example: Any) -> None:
    document = TokenizedDocument("a", torch.arange(19, dtype=torch.int32), 19, 19)
    added = [100, 101, 102, 103]
    expected = [*range(8), *added, *range(8, 16), *added, 16, 17, 18]
    assert example.with_summaries(document, 100).ids.tolist() == expected


@pytest.mark.parametrize("added", [0, 4])
def test_the_loss_of_a_text_leaves_out_the_tokens_added_to_it(example: Any, added: int) -> None:
    text = TokenizedDocument("a", torch.arange(19) % 50, 19, 19)
    document = example.with_summaries(text, 50) if added else text
    backbone = small_gpt2()
    backbone.resize_token_embeddings(50 + added)
    torch.nn.init.normal_(backbone.transformer.wte.weight)  # so that losses differ
    model = add_recurrence(backbone, WindowRecurrenceConfig(carrier="none", window=8 + added)).double().eval()
    losses = torch.nn.functional.cross_entropy(
        logits(model, document.ids[None, :-1])[0], document.ids[1:], reduction="none"
    )
    of_text = losses[document.ids[1:] < 50]
    assert len(of_text) == 18 and len(losses) == 18 + 2 * added
    assert example.loss_of_text(measure(model, [document])) == pytest.approx(of_text.mean().item())


@pytest.mark.parametrize("name", ["plain", "weighted", "gated", "summaries"])
def test_a_trial_trains_and_evaluates(example: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(example, "TEXT", 24)
    texts = [Document(str(i), f"number {i}: " + "some words to read, " * 20) for i in range(4)]
    tokenizer = train_vocabulary(texts, 300)
    backbone = small_gpt2()
    backbone.resize_token_embeddings(len(tokenizer))
    documents = tokenize(texts, tokenizer)
    recipe = TrainingRecipe(batch_size=2, windows_per_segment=3, max_tokens=300, warmup_steps=1, patience=None)
    found = example.trial(name, backbone, documents[:2], documents[2:], recipe, tokenizer)
    assert set(found) == {"true", "swapped"} and all(0 < loss < 10 for loss in found.values())
