"""Training runs of tiny masked language models, for all tests of them."""

import random

import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from onward import RecurrentBertConfig, RecurrentBertForMaskedLM
from onward.data.tokens import TokenizedDocument
from onward.training import TrainingRecipe, train

WORDS = [f"w{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"] + ["##s", "##ing", "##ed", "##ly"]
MODELS = {"bert": (BertConfig, BertForMaskedLM), "recurrent": (RecurrentBertConfig, RecurrentBertForMaskedLM)}


def word_tokenizer():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return BertTokenizer(vocab={piece: i for i, piece in enumerate([*special, *WORDS])})


def documents(lengths=(60, 35, 90, 14, 41), seed=0):
    """Each goes through all tokens in order, from one of its own: what is hidden can be told from its neighbours."""
    draw = random.Random(seed)
    made = []
    for number, length in enumerate(lengths):
        first = draw.randrange(len(WORDS))
        ids = torch.tensor([5 + (first + i) % len(WORDS) for i in range(length)], dtype=torch.int32)
        made.append(TokenizedDocument(f"d{number}", ids, length, length))
    return made


def make_model(kind="recurrent", seed=0, **fields):
    torch.manual_seed(seed)
    config, model = MODELS[kind]
    sizes = {
        "vocab_size": 5 + len(WORDS),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 16,
    }
    return model(config(**sizes | fields))


def exact_model(kind="recurrent", **fields):
    return make_model(kind, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **fields).double()


def recipe(**changes):
    values = {"batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 3, "epochs": 2, "evaluate_every_tokens": 150}
    return TrainingRecipe.preset("masked", **values | changes)


def run(folder, model=None, tokenizer=None, training=None, **changes):
    return train(
        make_model() if model is None else model,
        documents() if training is None else training,
        documents((37, 21), 1),
        tokenizer or word_tokenizer(),
        folder,
        recipe(**changes),
        progress=False,
    )
