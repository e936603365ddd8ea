"""A damaged file of a saved model is named, whichever way it is loaded."""

from __future__ import annotations

import pickle

import pytest
import torch
from small_models import save_small_gpt2
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM, RecurrentBertConfig, RecurrentBertForMaskedLM
from onward.data.vocabularies import byte_tokenizer, load_tokenizer
from onward.models.pretrained import load_backbone, load_whole
from onward.utils.files import DamagedFile

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 257}


def block(folder):
    fields = {"window": 8, "recurrent_layers": [2], "num_states": 4}
    BlockRecurrentForCausalLM(BlockRecurrentConfig.preset("Rec:fixed:skip", **SIZES, **fields)).save_pretrained(folder)
    return AutoModelForCausalLM


def masked(folder):
    RecurrentBertForMaskedLM(RecurrentBertConfig(**SIZES, intermediate_size=64)).save_pretrained(folder)
    return AutoModelForMaskedLM


@pytest.mark.parametrize("make", [block, masked])
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_weights_that_broke_off(tmp_path, make, keep):
    auto = make(tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(DamagedFile, match=f"{file} is damaged"):
        auto.from_pretrained(tmp_path)
    with pytest.raises(DamagedFile, match=f"{file} is damaged"):
        auto.from_pretrained(pretrained_model_name_or_path=str(tmp_path))


@pytest.mark.parametrize("content", ["{}", "[]", "null", '""', "", "garbage", "3"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_json_that_is_none_of_its_kind(tmp_path, name, content):
    save_small_gpt2(tmp_path)
    (tmp_path / name).write_text(content)
    if (name, content) == ("tokenizer_config.json", "{}"):
        return  # nothing in it must be there
    with pytest.raises((ValueError, OSError), match=rf"{tmp_path}.*|{name}"):
        load_backbone(str(tmp_path))
    if name != "config.json":
        with pytest.raises((ValueError, OSError), match=rf"{tmp_path}|{name}"):
            load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"half", pickle.dumps({"a": 1}), "saved"])
def test_foreign_pickles(tmp_path, content):
    save_small_gpt2(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    file = tmp_path / "pytorch_model.bin"
    if content == "saved":
        torch.save([1, 2], file)
    else:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=f"{file} is damaged, or holds no weights|has no weights for"):
        load_backbone(str(tmp_path))


def test_weights_that_are_missing_are_not_drawn(tmp_path):
    auto = block(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    load_backbone(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    for load in (load_backbone, lambda folder: load_whole(auto, folder)):
        with pytest.raises(ValueError, match="has no weights for .* they would be drawn at random"):
            load(str(tmp_path))
