"""Tiny backbones with a tokenizer, saved as folders: what commands and the README load by name."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
)

from onward.data.vocabularies import byte_tokenizer


def save_small_gpt2(folder: Path, **fields: object) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": 257, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "eos_token_id": 0}
    config = GPT2Config(**{**sizes, "bos_token_id": 0, "pad_token_id": 0, **fields})
    GPT2LMHeadModel(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def save_small_bert(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    config = BertConfig(vocab_size=257, max_position_embeddings=128, **sizes)
    BertForQuestionAnswering(config).save_pretrained(folder)
    assert isinstance(BertModel.from_pretrained(folder), BertModel)
    byte_tokenizer().save_pretrained(folder)
    return folder
