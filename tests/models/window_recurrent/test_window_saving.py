"""Saving and loading give the same model back: whole, or only what was added."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, VARIANTS, backbone, language_head, moved, recurrent_variant, tokens
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from onward import WindowRecurrenceConfig, add_recurrence
from onward.models.window_recurrent.saving import _digest_of_version_0_1

AUTO = {
    "model": AutoModel,
    "causal-lm": AutoModelForCausalLM,
    "masked-lm": AutoModelForMaskedLM,
    "question-answering": AutoModelForQuestionAnswering,
    "sequence-classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
}
OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state", "pooler_output")


@torch.no_grad()
def assert_same_model(model, other, ids=None):
    ids = tokens(2, 13) if ids is None else ids
    first, second = model(ids), moved(other)(ids)
    found = [name for name in OUTPUTS if first.get(name) is not None]
    assert found and [name for name in OUTPUTS if second.get(name) is not None] == found
    assert all(torch.equal(first[name], second[name]) for name in found)
    assert first.state.model == second.state.model


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_comes_back_the_same(family, tmp_path):
    model = recurrent_variant(family, "spans", overlap=1, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded = AUTO[language_head(family)].from_pretrained(tmp_path)
    assert type(loaded) is type(model) and not loaded.training
    assert type(loaded.backbone) is type(model.backbone)
    assert_same_model(model, loaded)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_carrier_comes_back_the_same(variant, tmp_path):
    model = recurrent_variant("gpt2", variant, fields={"insert_at": [1, 3]}, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.insertion_layers == (1, 3)
    assert_same_model(model, loaded)


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", "model"),
        ("bert", "question-answering"),
        ("roberta", "sequence-classification"),
        ("distilbert", "token-classification"),
        ("electra", "question-answering"),
        ("llama", "model"),
        ("gpt2", "sequence-classification"),
        ("llama", "token-classification"),
    ],
)
def test_every_head_comes_back_the_same(family, head, tmp_path):
    labels = {"num_labels": 3} if head.endswith("classification") else {}
    model = recurrent_variant(family, head=head, **labels)
    model.save_pretrained(tmp_path)
    loaded = AUTO[head].from_pretrained(tmp_path)
    assert type(loaded) is type(model) and loaded.config.num_labels == model.config.num_labels
    assert_same_model(model, loaded)
    wrong = AutoModelForMaskedLM if family == "bert" else AutoModelForCausalLM
    with pytest.raises(ValueError, match=head):
        wrong.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_tied_weights_stay_tied(family, tmp_path):
    model = recurrent_variant(family)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    assert shapes.count([99, 32]) == 1
    for one in (model, AUTO[language_head(family)].from_pretrained(tmp_path), copy.deepcopy(model)):
        assert one.get_output_embeddings().weight is one.get_input_embeddings().weight


def test_new_tokens_can_be_added(tmp_path):
    model = recurrent_variant("gpt2")
    model.resize_token_embeddings(120)
    assert model.config.vocab_size == model.backbone.config.vocab_size == 120
    model.save_pretrained(tmp_path)
    ids = tokens(2, 13) + 20
    assert ids.max() >= 99 and model(ids).logits.shape == (2, 13, 120)
    assert_same_model(model, AutoModelForCausalLM.from_pretrained(tmp_path), ids)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_is_kept_or_chosen(dtype, tmp_path):
    model = recurrent_variant("gpt2", dtype=dtype)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    assert_same_model(model, loaded)
    chosen = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert {p.dtype for p in chosen.parameters()} == {torch.float32}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_can_be_chosen_when_loading(attention, tmp_path):
    model = recurrent_variant("llama", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attention)
    assert loaded.backbone.base_model.config._attn_implementation == f"onward_{attention}"
    ids = tokens(2, 13)
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("variant", ["spans", "selected", "constant slots"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_the_seam_is_named_in_no_file(variant, attention, tmp_path):
    """What is saved can be loaded without this library knowing what attention was used."""
    model, ids = recurrent_variant("llama", variant, attention=attention, dtype=torch.float32), tokens(2, 13)
    assert model.config._attn_implementation == attention
    model.save_pretrained(tmp_path / "model")
    model.backbone.save_pretrained(tmp_path / "backbone")
    for file in tmp_path.rglob("*.json"):
        assert "onward_sdpa" not in file.read_text() and "onward_eager" not in file.read_text()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "backbone", attn_implementation=attention)
    assert plain.config._attn_implementation == attention
    assert torch.equal(moved(plain)(ids).logits, model.backbone(ids).logits)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation=attention)
    assert torch.equal(moved(loaded)(ids).logits, model(ids).logits)


@pytest.mark.parametrize("variant", ["spans", "selected"])
@pytest.mark.parametrize("part", ["model", "backbone", "base"])
@torch.no_grad()
def test_another_attention_can_be_chosen_later(variant, part):
    """Of the whole model, its backbone, or the backbone without its head; a copy keeps the choice."""
    model, ids = recurrent_variant("llama", variant, dtype=torch.float32), tokens(2, 13)
    expected = model(ids).logits
    chooses = {"model": model, "backbone": model.backbone, "base": model.backbone.base_model}[part]
    chooses.set_attn_implementation("eager")
    eager = model(ids).logits
    assert model.backbone.config._attn_implementation == "onward_eager"
    assert not torch.equal(eager, expected)
    torch.testing.assert_close(eager, expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(copy.deepcopy(model)(ids).logits, eager)
    attentions = model.backbone(ids, output_attentions=True).attentions
    assert len(attentions) == 3 and all(weights.shape[-2:] == (13, 13) for weights in attentions)
    chooses.set_attn_implementation("sdpa")
    assert torch.equal(model(ids).logits, expected)


def test_a_card_is_written_once(tmp_path):
    model = recurrent_variant("gpt2", window=7, overlap=2)
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: onward\n")
    assert "windows of 7 tokens with an overlap of 2" in card
    assert f"{sum(p.numel() for p in model.carrier.parameters()):,}" in card
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"


def test_generation_settings_are_kept(tmp_path):
    inner = backbone("gpt2")
    inner.generation_config.max_new_tokens = 4
    inner.generation_config.repetition_penalty = 1.5
    inner.save_pretrained(tmp_path / "backbone")
    model = add_recurrence(AutoModelForCausalLM.from_pretrained(tmp_path / "backbone"), window=5)
    assert model.generation_config.repetition_penalty == 1.5
    assert model.generation_config is not model.backbone.generation_config
    model.generation_config.max_new_tokens = 3
    for added_only in (False, True):
        model.save_pretrained(tmp_path / "saved", added_only=added_only)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
        assert loaded.generation_config.repetition_penalty == 1.5
        assert loaded.generate(tokens(1, 4), do_sample=False).shape[1] <= 7


@pytest.mark.parametrize(("family", "head"), [("gpt2", None), ("llama", None), ("roberta", "question-answering")])
def test_only_what_was_added_can_be_saved(family, head, tmp_path):
    inner = backbone(family, head)
    inner.save_pretrained(tmp_path / "backbone")
    auto = AUTO[head or language_head(family)]
    config = WindowRecurrenceConfig(window=5, overlap=1)
    model = add_recurrence(moved(auto.from_pretrained(tmp_path / "backbone")), config)
    model.save_pretrained(tmp_path / "added", added_only=True)
    written = {path.name for path in (tmp_path / "added").iterdir()}
    assert {"README.md", "config.json", "recurrence.safetensors"} <= written
    assert "model.safetensors" not in written
    with safe_open(tmp_path / "added" / "recurrence.safetensors", "pt") as file:
        assert set(file.keys()) == set(model.carrier.state_dict())
    assert json.loads((tmp_path / "added/config.json").read_text())["added_only"]
    assert not model.config.added_only
    loaded = auto.from_pretrained(tmp_path / "added")
    assert type(loaded) is type(model) and not loaded.training and loaded.dtype == model.dtype
    assert_same_model(model.eval(), loaded)
    loaded.save_pretrained(tmp_path / "whole")  # and from there as a whole
    assert_same_model(model, auto.from_pretrained(tmp_path / "whole"))


def test_only_what_was_added_is_not_enough_for_a_trained_backbone(tmp_path):
    backbone("gpt2").save_pretrained(tmp_path / "backbone")
    model = add_recurrence(AutoModelForCausalLM.from_pretrained(tmp_path / "backbone"), window=5)
    with torch.no_grad():
        next(model.backbone.parameters()).mul_(1.1)
    model.save_pretrained(tmp_path / "added", added_only=True)
    with pytest.raises(ValueError, match="save the whole model"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "added")


def test_what_was_added_is_loaded_in_another_precision_and_from_older_files(tmp_path):
    backbone("gpt2").float().save_pretrained(tmp_path / "backbone")
    model = add_recurrence(AutoModelForCausalLM.from_pretrained(tmp_path / "backbone"), window=5)
    model.save_pretrained(tmp_path / "added", added_only=True)
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "added", dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    file = tmp_path / "added" / "recurrence.safetensors"
    for digest, fits in ((_digest_of_version_0_1(model.backbone), True), ("0" * 64, False), ("{", False)):
        save_file(load_file(file), file, metadata={"format": "pt", "backbone": digest})
        if fits:
            assert_same_model(model.eval(), AutoModelForCausalLM.from_pretrained(tmp_path / "added"))
        else:
            with pytest.raises(ValueError, match="save the whole model|recurrence.safetensors is damaged"):
                AutoModelForCausalLM.from_pretrained(tmp_path / "added")


def test_a_backbone_without_a_name_must_be_saved_whole(tmp_path):
    with pytest.raises(ValueError, match="save the whole model"):
        recurrent_variant("gpt2").save_pretrained(tmp_path, added_only=True)


def test_a_configuration_alone_makes_a_model_of_its_kind(tmp_path):
    model = recurrent_variant("bert", "spans")
    model.config.save_pretrained(tmp_path)
    made = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert type(made) is type(model)
    shapes = [{n: p.shape for n, p in one.named_parameters()} for one in (made, model)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_copies_and_state_dicts_are_the_same_model(variant):
    model = recurrent_variant("gpt2", variant)
    twin = copy.deepcopy(model)
    assert_same_model(model, twin)
    fresh = add_recurrence(backbone("gpt2", seed=3), copy.deepcopy(model.config))
    ids = tokens(2, 13)
    assert not torch.equal(fresh(ids).logits, model(ids).logits)
    assert not any(fresh.load_state_dict(model.state_dict()))
    assert_same_model(model, fresh)
    with torch.no_grad():
        next(twin.backbone.parameters()).zero_()
    assert not torch.equal(twin(ids).logits, model(ids).logits)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_model_cast_to_bfloat16_reads_and_learns(family, variant):
    model = recurrent_variant(family, variant, overlap=1, dtype=torch.float32).to(torch.bfloat16)
    ids = tokens(2, 13)
    output = model(ids, labels=ids)
    output.loss.backward()
    assert output.logits.dtype == torch.bfloat16 and output.loss.isfinite()
    with torch.no_grad():
        state = model(ids).state
        assert all(t.dtype == torch.bfloat16 for t in state.memory if t.is_floating_point())
        assert model(ids, state=state).logits.isfinite().all()
