"""What transformers and users write on a configuration is saved and loaded again; what one misspells is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from systems import HEADS, SYSTEMS, bert, block, examples, window
from tiny_models import recurrent, tiny_model, tokens
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from onward import (
    BlockRecurrentConfig,
    RecurrentBertConfig,
    RecurrentBertForMaskedLM,
    WindowRecurrenceConfig,
    WindowRecurrentForCausalLM,
    add_recurrence,
)
from onward.data.vocabularies import byte_tokenizer

CONFIGURATIONS = {"window": WindowRecurrenceConfig, "block": BlockRecurrentConfig, "bert": RecurrentBertConfig}


def made(system: str) -> Any:
    return HEADS[SYSTEMS[system]][0]()


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> str:
    return request.param


# -- special tokens


def test_the_backbones_special_tokens_are_the_configurations() -> None:
    model = recurrent("gpt2", window=8, backbone={"eos_token_id": [3, 4], "pad_token_id": 7})
    config = model.config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, [3, 4], 7)
    assert config.mask_token_id is None
    config.pad_token_id = 9
    assert model.backbone.config.pad_token_id == 9 and config.pad_token_id == 9


def test_special_tokens_named_before_there_is_a_backbone_are_kept(tmp_path: Path) -> None:
    config = WindowRecurrenceConfig(window=8, pad_token_id=7)
    config.eos_token_id = 5
    config.save_pretrained(tmp_path)
    model = add_recurrence(tiny_model("gpt2"), WindowRecurrenceConfig.from_pretrained(tmp_path))
    assert model.config.pad_token_id == model.backbone.config.pad_token_id == 7
    assert model.config.eos_token_id == model.backbone.config.eos_token_id == 5
    assert "pad_token_id" not in model.config.__dict__  # one truth


def test_generation_ends_where_the_configuration_says() -> None:
    config = recurrent("gpt2", window=8, backbone={"eos_token_id": None, "pad_token_id": 6}).config
    ids = tokens(1, 4)
    torch.manual_seed(0)
    wanted = int(AutoModelForCausalLM.from_config(config).eval().generate(ids, max_new_tokens=1)[0, -1])
    config.eos_token_id = wanted
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert model.generation_config.eos_token_id == wanted and model.generation_config.pad_token_id == 6
    assert model.generate(ids, max_new_tokens=9).shape[1] == 5


TRAINED = {
    "window causal": lambda: window("gpt2", "causal-lm", vocab_size=300, bos_token_id=1, pad_token_id=None),
    "window tokens": lambda: window("bert", "token-classification", vocab_size=300, num_labels=3),
    "window decoder classes": lambda: window("gpt2", "sequence-classification", vocab_size=300, num_labels=3),
    "block causal": block,
    "bert masked": lambda: bert(RecurrentBertForMaskedLM, vocab_size=300),
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_trained_with_its_tokenizer_is_loaded_again(name: str, tmp_path: Path) -> None:
    """Trainer writes the tokenizer's special tokens onto the configuration."""
    model, tokenizer = TRAINED[name](), byte_tokenizer()
    tokenizer.pad_token_id, tokenizer.bos_token_id = 2, 4
    arguments = TrainingArguments(
        tmp_path, per_device_train_batch_size=8, max_steps=1, save_steps=1, report_to=[], use_cpu=True
    )
    trainer = Trainer(model, arguments, train_dataset=examples(HEADS[name][1]), processing_class=tokenizer)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert model.config.pad_token_id == 2 and model.config.bos_token_id == 4
    for folder in (tmp_path / "saved", tmp_path / "checkpoint-1"):
        again = type(model).from_pretrained(pretrained_model_name_or_path=folder)
        for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
            assert getattr(again.config, token) == getattr(model.config, token)
        for ours, theirs in zip(again.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        if again.can_generate():
            assert again.generation_config.pad_token_id == 2
            assert again.generate(tokens(1, 4), max_new_tokens=2).shape[1] <= 6


def test_a_file_of_before_with_special_tokens_beside_the_backbone_loads(tmp_path: Path) -> None:
    """So Trainer left them, and then no one could read the file."""
    recurrent("gpt2", window=8).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bos_token_id": 11, "pad_token_id": 12}))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.bos_token_id == model.backbone.config.bos_token_id == 11
    assert model.backbone.config.pad_token_id == 12


# -- fields that are not ours


def test_what_a_user_notes_is_saved_and_loaded(system: str, tmp_path: Path) -> None:
    model = made(system)
    model.config.my_note = "x"
    model.save_pretrained(tmp_path)
    kind = CONFIGURATIONS[system]
    loaded = [
        AutoConfig.from_pretrained(tmp_path),
        kind.from_pretrained(tmp_path),
        kind.from_json_file(tmp_path / "config.json"),
        type(model).from_pretrained(tmp_path).config,
    ]
    assert [config.my_note for config in loaded] == ["x"] * 4
    assert AutoConfig.from_pretrained(tmp_path, my_note="y").my_note == "y"
    config, unused = AutoConfig.from_pretrained(tmp_path, my_note="y", other=1, return_unused_kwargs=True)
    assert config.my_note == "y" and unused == {"other": 1}


def test_changes_while_loading_are_made_and_checked(system: str, tmp_path: Path) -> None:
    model = made(system)
    model.save_pretrained(tmp_path)
    name, good, bad = ("stride", 2, 0) if system == "bert" else ("window", 16, 0)
    kind = CONFIGURATIONS[system]
    assert getattr(kind.from_pretrained(tmp_path, **{name: good}), name) == good
    assert getattr(type(model).from_pretrained(tmp_path, **{name: good}).config, name) == good
    with pytest.raises(ValueError, match=f"{name}={bad}: it must be"):
        kind.from_pretrained(tmp_path, **{name: bad})
    with pytest.raises(ValueError, match=f"has no field '{name}s' .*did you mean '{name}'"):
        AutoConfig.from_pretrained(tmp_path, **{f"{name}s": good})
    with pytest.raises(ValueError if system == "window" else TypeError, match=f"'{name}s'"):
        type(model).from_pretrained(tmp_path, **{f"{name}s": good})
    kind.from_pretrained(tmp_path, padding_side="left")  # a tokenizer's word, which reaches us through AutoTokenizer


def test_what_a_person_misspells_is_refused(system: str) -> None:
    name = "strid" if system == "bert" else "windw"
    with pytest.raises(ValueError, match=f"has no field '{name}'"):
        CONFIGURATIONS[system](**{name: 3})


def test_a_bert_with_notes_is_given_recurrence() -> None:
    config = bert(RecurrentBertForMaskedLM).config
    stock = AutoConfig.for_model("bert", hidden_size=32, num_attention_heads=4, my_note="x")
    assert RecurrentBertConfig.from_bert(stock, stride=2).my_note == "x"
    with pytest.raises(ValueError, match="has no field 'strides'"):
        RecurrentBertConfig.from_bert(stock, strides=2)
    assert not hasattr(config, "my_note")


# -- loading


def test_every_class_loads_by_the_keyword_of_transformers(system: str, tmp_path: Path) -> None:
    model = made(system)
    model.save_pretrained(tmp_path)
    assert isinstance(type(model).from_pretrained(pretrained_model_name_or_path=tmp_path), type(model))
    if system == "window":
        bare = recurrent("bert", "model", window=8)
        bare.save_pretrained(tmp_path / "bare")
        assert AutoModel.from_pretrained(pretrained_model_name_or_path=tmp_path / "bare").config.head == "model"
        with pytest.raises(ValueError, match="'model'.*is for 'causal-lm'"):
            WindowRecurrentForCausalLM.from_pretrained(pretrained_model_name_or_path=tmp_path / "bare")


def test_a_folder_says_what_it_is_loaded_with(system: str, tmp_path: Path) -> None:
    """Where onward was not imported transformers says that it is out of date, and cannot be made to say more."""
    model = made(system)
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: onward\n") and "after `import onward`" in card
    assert f"from transformers import {model.auto_class.__name__}" in card
    assert isinstance(model.auto_class.from_pretrained(tmp_path), type(model))
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"
    model.save_pretrained(tmp_path / "other", is_main_process=False)
    assert not (tmp_path / "other" / "README.md").exists()


def test_without_onward_the_error_names_it(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers prints the kind of a model that it does not know, and nothing else that a file holds."""
    made(system).save_pretrained(tmp_path)
    monkeypatch.setattr(CONFIG_MAPPING, "_extra_content", {})
    with pytest.raises(ValueError, match="model type `onward_.*does not recognize"):
        AutoConfig.from_pretrained(tmp_path)


def test_kinds_of_version_0_1_load(system: str, tmp_path: Path) -> None:
    model = made(system)
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    content["model_type"] = content["model_type"].removeprefix("onward_")
    file.write_text(json.dumps(content))
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is type(model.config) and config.model_type == model.config.model_type
    loaded = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
    loaded.save_pretrained(tmp_path)
    assert json.loads(file.read_text())["model_type"].startswith("onward_")


def test_special_tokens_that_a_person_names_end_generation() -> None:
    model = add_recurrence(tiny_model("gpt2"), WindowRecurrenceConfig(window=8, eos_token_id=7))
    assert model.generation_config.eos_token_id == 7
