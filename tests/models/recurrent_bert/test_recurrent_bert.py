"""A recurrent BERT is BERT but for its feed-forward blocks: heads, padding, saving, parameters, a start from BERT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import moved
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, BertConfig, BertForMaskedLM, BertTokenizer, pipeline

from onward import (
    RecurrentBertConfig,
    RecurrentBertForMaskedLM,
    RecurrentBertForSequenceClassification,
    RecurrentBertForTokenClassification,
    RecurrentBertModel,
)
from onward.models.recurrent_bert.modeling_recurrent_bert import MODELS, LightRecurrence

TINY: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
WAYS = [
    {"direction": direction, "stride": stride}
    for direction in ("forward", "bidirectional", "alternating")
    for stride in (1, 2, 3)
]


def build(kind: Any = RecurrentBertForMaskedLM, **fields: Any) -> Any:
    """In float64, every part of it drawn wide enough to matter."""
    model = kind(RecurrentBertConfig(**{**TINY, **fields})).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 99, shape, generator=torch.Generator().manual_seed(seed))


def read(model: Any, given: Tensor, mask: Tensor | None = None, **more: Any) -> Tensor:
    """The last layer's vectors."""
    return model.base_model(given, attention_mask=mask, **more).last_hidden_state


# -- the maths


def papers_recurrence(x: Tensor, w1: Tensor, w2: Tensor, b: Tensor, b2: Tensor, stride: int) -> Tensor:
    """As the paper writes it, for x [n, d]: c starts from 0, and the bias is added in the end."""
    values, gates = x @ w1.T, (x @ w2.T + b2).sigmoid()
    states: list[Tensor] = []
    for i, row in enumerate(values):
        before = states[i - stride] if i >= stride else torch.zeros_like(row)
        states.append(nn.functional.silu(before - row) + row)
    return (torch.stack(states) + b) * gates


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_layers_recurrence_is_the_papers(way: dict[str, Any]) -> None:
    config = RecurrentBertConfig(**TINY, **way, recurrence_size=7)
    for layer in (0, 1):
        module = LightRecurrence(config, layer).double()
        nn.init.normal_(module.input.bias)
        x = torch.randn(2, 11, 32, dtype=torch.float64)
        sizes = [4, 3] if way["direction"] == "bidirectional" else [7]
        weights, biases = (p.split([2 * size for size in sizes]) for p in (module.input.weight, module.input.bias))
        expected = []
        for row in x:
            read = []
            for turned, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                back = bool(turned) or way["direction"] == "alternating" and layer == 1
                given = row.flip(0) if back else row
                out = papers_recurrence(given, *weight.chunk(2), *bias.chunk(2), way["stride"])
                read.append(out.flip(0) if back else out)
            expected.append(module.output(torch.cat(read, -1)))
        torch.testing.assert_close(module(x, None), torch.stack(expected), rtol=0, atol=1e-12)


def test_without_recurrence_layers_are_berts() -> None:
    """With recurrences that give nothing, and a BERT whose feed-forward blocks give nothing."""
    ours = build()
    theirs = BertForMaskedLM(BertConfig(**TINY)).double().eval()
    missing = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert all("intermediate" in name or "output.dense" in name for name in missing.missing_keys)
    assert all("recurrence" in name for name in missing.unexpected_keys)
    for layer in ours.bert.encoder.layer:
        nn.init.zeros_(layer.recurrence.output.weight), nn.init.zeros_(layer.recurrence.output.bias)
    for layer in theirs.bert.encoder.layer:
        nn.init.zeros_(layer.output.dense.weight), nn.init.zeros_(layer.output.dense.bias)
    given, mask = ids(2, 15), torch.ones(2, 15, dtype=torch.long)
    mask[0, 9:] = 0
    ours, theirs = ours(given, attention_mask=mask), theirs(given, attention_mask=mask)
    assert torch.equal(ours.logits[mask.bool()], theirs.logits[mask.bool()])


@pytest.mark.parametrize("direction", ["forward", "alternating", "bidirectional"])
def test_where_text_goes(direction: str) -> None:
    """A change at one place reaches, through one layer's recurrence alone, what comes after it, or all."""
    config = RecurrentBertConfig(**TINY, direction=direction)
    module = LightRecurrence(config, 1).double()
    x = torch.randn(1, 9, 32, dtype=torch.float64)
    other = x.clone()
    other[0, 4] += 1
    changed = (module(x, None) - module(other, None)).abs().amax(-1)[0] > 1e-12
    reached = {"forward": [4, 5, 6, 7, 8], "alternating": [0, 1, 2, 3, 4], "bidirectional": list(range(9))}
    assert changed.nonzero()[:, 0].tolist() == reached[direction]


# -- padding


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_padded_row_is_the_row_alone(way: dict[str, Any], implementation: str) -> None:
    model = build(**way)
    model.set_attn_implementation(implementation)
    row = ids(1, 11)
    alone = read(model, row)
    for left in (0, 1, 4):
        batch, mask = ids(2, 15, seed=1), torch.ones(2, 15, dtype=torch.long)
        batch[0, left : left + 11] = row
        mask[0] = 0
        mask[0, left : left + 11] = 1
        places = (mask.cumsum(1) - 1).clamp(min=0)
        together = read(model, batch, mask, position_ids=places)
        torch.testing.assert_close(together[0, left : left + 11], alone[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(together[1], read(model, batch[1:])[0], rtol=0, atol=1e-12)


# -- a transformers model


@pytest.mark.parametrize("size", ["base", "large"])
def test_it_has_as_many_parameters_as_bert(size: str) -> None:
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    fields = large if size == "large" else {}
    with torch.device("meta"):
        ours, theirs = RecurrentBertForMaskedLM(RecurrentBertConfig(**fields)), BertForMaskedLM(BertConfig(**fields))
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == pytest.approx(counts[1], rel=1e-3)
    assert RecurrentBertConfig().recurrence_size == 2048
    assert [RecurrentBertConfig(intermediate_size=n).recurrence_size for n in (1, 48, 1024, 4096)] == [1, 32, 680, 2728]


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_every_head_is_saved_loaded_and_trained(kind: Any, tmp_path: Path) -> None:
    model = build(kind, direction="bidirectional").float()
    model.save_pretrained(tmp_path)
    loaded = kind.auto_class.from_pretrained(tmp_path)
    assert type(loaded) is kind and type(loaded.config) is RecurrentBertConfig
    given = ids(2, 3, 12) if "MultipleChoice" in kind.__name__ else ids(2, 12)
    first, again = model(given), moved(loaded).eval()(given)
    assert all(torch.equal(a, b) for a, b in zip(first.to_tuple(), again.to_tuple(), strict=True))
    labels: dict[str, Any] = {
        "RecurrentBertForMaskedLM": {"labels": given},
        "RecurrentBertForTokenClassification": {"labels": given % 2},
        "RecurrentBertForSequenceClassification": {"labels": torch.tensor([0, 1])},
        "RecurrentBertForMultipleChoice": {"labels": torch.tensor([0, 2])},
        "RecurrentBertForQuestionAnswering": {"start_positions": given[:, 0] % 5, "end_positions": given[:, 0] % 5},
    }.get(kind.__name__)
    if labels is not None:
        model(given, **labels).loss.backward()
        unused = [name for name, p in model.named_parameters() if p.grad is None]
        assert unused == []


def test_a_new_model_starts_as_bert_does() -> None:
    model = RecurrentBertForMaskedLM(RecurrentBertConfig(**{**TINY, "hidden_size": 64, "intermediate_size": 300}))
    recurrence = model.bert.encoder.layer[1].recurrence
    for part in (recurrence.input, recurrence.output):
        assert part.weight.std().item() == pytest.approx(0.02, rel=0.1) and not part.bias.any()
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_single_token_has_gradients(way: dict[str, Any]) -> None:
    model = build(**way)
    model(ids(1, 1), labels=ids(1, 1)).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_hook_sees_what_a_layer_has_made() -> None:
    model, given = build(), ids(2, 9)
    seen: list[Tensor] = []
    layer = model.bert.encoder.layer[0].recurrence.input
    layer.register_forward_hook(lambda module, args, out: seen.extend([args[0], out]))
    (model(given, labels=given).loss + seen[1].square().mean()).backward()
    torch.testing.assert_close(seen[1], nn.functional.linear(seen[0], layer.weight, layer.bias))


def test_what_bert_takes_by_place_is_taken_and_masks_have_two_dimensions() -> None:
    model, given = build(RecurrentBertModel), ids(2, 9)
    mask, types = torch.ones_like(given), torch.zeros_like(given)
    assert torch.equal(model(given, mask, types)[0], model(given, attention_mask=mask, token_type_ids=types)[0])
    with pytest.raises(ValueError, match=r"attention_mask has the shape \(2, 1, 9, 9\): .* needs \[batch, length\]"):
        model(given, torch.ones(2, 1, 9, 9))


def test_hidden_states_attentions_tuples_and_checkpointing() -> None:
    model, given = build(), ids(2, 9)
    model.set_attn_implementation("eager")
    output = model(given, labels=given, output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == 4 and len(output.attentions) == 3
    assert torch.equal(model(given, return_dict=False)[0], output.logits)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train().zero_grad()
        mask = torch.ones_like(given)
        mask[0, 6:] = 0
        model(given, attention_mask=mask, labels=given).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_a_start_from_bert(tmp_path: Path) -> None:
    theirs = BertForMaskedLM(BertConfig(**TINY))
    theirs.save_pretrained(tmp_path)
    config = RecurrentBertConfig.from_bert(str(tmp_path), stride=2)
    assert config.stride == 2 and config.hidden_size == 32 and type(config) is RecurrentBertConfig
    ours = RecurrentBertForMaskedLM.from_pretrained(tmp_path, config=config)
    there = theirs.state_dict()
    for name, value in ours.state_dict().items():
        assert ("recurrence" in name) != (name in there and torch.equal(value, there[name])), name
    assert ours.bert.encoder.layer[0].recurrence.input.weight.std().item() == pytest.approx(0.02, rel=0.1)
    with pytest.raises(ValueError, match="only a BERT .* got a gpt2"):
        RecurrentBertConfig.from_bert(AutoConfig.for_model("gpt2"))


# -- pipelines, unchanged


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, "the", "reader", "read", "##s", "##er", "on", "and", "onward", "."]
    return BertTokenizer(vocab={word: i for i, word in enumerate(words)})


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("fill-mask", RecurrentBertForMaskedLM),
        ("text-classification", RecurrentBertForSequenceClassification),
        ("token-classification", RecurrentBertForTokenClassification),
    ],
)
def test_pipelines_take_a_folder(task: str, kind: Any, tokenizer: BertTokenizer, tmp_path: Path) -> None:
    """From the folder alone, several texts at once, each as it would be by itself."""
    build(kind, direction="bidirectional").float().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    run = pipeline(task, str(tmp_path))  # type: ignore[call-overload]
    texts: list[Any] = ["the [MASK] reads on .", "the reader and the reader read on [MASK] ."]
    together, alone = run(texts, batch_size=2), [run(text) for text in texts]
    assert len(together) == 2

    def numbers(found: Any) -> list[float]:
        return [found["score"]] if isinstance(found, dict) else [x for part in found for x in numbers(part)]

    assert numbers(together) == pytest.approx(numbers(alone), abs=1e-5)
    if task == "token-classification":
        assert {entity["word"] for entity in together[0]} >= {"the", "on"}


def test_a_tokenizer_is_found_by_the_configuration_alone(tokenizer: BertTokenizer, tmp_path: Path) -> None:
    build().save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))))
    found = AutoTokenizer.from_pretrained(tmp_path)
    assert found.tokenize("the readers") == ["the", "reader", "##s"]


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_every_head_under_autocast_and_in_half_precision(kind: Any) -> None:
    model = build(kind).float()
    given = ids(2, 3, 12) if "MultipleChoice" in kind.__name__ else ids(2, 12)
    exact = model(given)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found = model(given)[0]
    half = model.bfloat16()(given)[0]
    for other in (found, half):
        assert (other.float() - exact).norm() < 0.1 * exact.norm()


# -- what cannot be


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stride": 0}, "stride=0: it must be a whole number of at least 1"),
        ({"stride": 64}, "stride=64: it must be less than max_position_embeddings=64"),
        ({"stride": 1.5}, "stride"),
        ({"recurrence_size": 0}, "recurrence_size=0: it must be a whole number of at least 1"),
        (
            {"recurrence_size": 1, "direction": "bidirectional"},
            "recurrence_size=1: two directions need at least 2 channels",
        ),
        ({"direction": "backwards"}, "direction='backwards': .*alternating, bidirectional, forward"),
        ({"activation": "gelu"}, "activation='gelu': choose one of relu, silu"),
        ({"strid": 2}, "no field 'strid' .*did you mean 'stride'"),
        ({"num_attention_heads": 5}, "hidden_size=32: it cannot be shared by num_attention_heads=5"),
        ({"is_decoder": True}, "is an encoder"),
        ({"chunk_size_feed_forward": 4}, "chunk_size_feed_forward=4: a recurrence cannot be chunked"),
    ],
    ids=str,
)
def test_impossible_values_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        RecurrentBertConfig(**{**TINY, **fields})
