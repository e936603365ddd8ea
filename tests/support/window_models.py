"""A tiny window-recurrent model with a vocabulary of words, and documents in it."""

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from onward import add_recurrence
from onward.data import Document

WORDS = [f"w{i}" for i in range(60)]


def word_tokenizer():
    vocabulary = {"[UNK]": 0} | {word: i for i, word in enumerate(WORDS, start=1)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def word_documents():
    choose = random.Random(0)
    return [Document(f"d{n}", " ".join(choose.choices(WORDS, k=n))) for n in (45, 8, 33, 70)]


def backbone(positions=64):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=positions, bos_token_id=0)
    return GPT2LMHeadModel(config).double().eval()


def recurrent(**fields):
    return add_recurrence(
        backbone(), **{"carrier": "pooled", "stands_for": "pooled", "window": 10, "hidden": [16], **fields}
    )


def shaken(model):
    for parameter in model.carrier.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model
