"""Training runs of tiny window-recurrent models, for all tests of training."""

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from onward import add_recurrence
from onward.data import Document
from onward.data.tokens import tokenize
from onward.training import TrainingRecipe, train

WORDS = [f"w{i}" for i in range(98)]
# 5 segments of 24 tokens in each of 6 documents: 15 steps of two segments in an epoch
RECIPE = TrainingRecipe(
    batch_size=2,
    windows_per_segment=3,
    epochs=1,
    warmup_steps=3,
    learning_rate=1e-3,
    carrier_learning_rate=1e-2,
    evaluate_every_tokens=4 * 48,
    patience=None,
)


def recipe(**changes):
    return TrainingRecipe(**{**RECIPE.__dict__, **changes})


def word_tokenizer():
    words = Tokenizer(models.WordLevel({"[UNK]": 0} | {w: i + 1 for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def documents(count=6, tokens=120, seed=0):
    """Each draws from its own ten words, so that there is something to remember."""
    draw = random.Random(seed)
    vocabularies = [draw.sample(WORDS, 10) for _ in range(count)]
    return [Document(f"d{i}", " ".join(draw.choices(words, k=tokens))) for i, words in enumerate(vocabularies)]


def make_model(carrier="pooled", dropout=0.1, window=8, seed=0, **fields):
    torch.manual_seed(seed)
    backbone = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=99,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=16,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    return add_recurrence(backbone, carrier=carrier, window=window, hidden=[16], **fields)


def run(folder, tokenizer, model=None, changes=None, **options):
    return train(
        make_model() if model is None else model,
        documents(),
        documents(count=3, tokens=50, seed=1),
        tokenizer,
        folder,
        recipe(**(changes or {})),
        **{"progress": False, **options},
    )


# Two epochs of 6 steps; validations at 2, 4, .., further checkpoints at every third
LONG = {"epochs": 2, "batch_size": 5, "evaluate_every_tokens": 240, "save_every_tokens": 360, "patience": 9}

UNEVEN = [100, 40, 7, 90, 3, 30]  # among them segments of a single window, which do not use the carrier


def train_on_uneven_documents(folder, tokenizer, changes=None):
    training = [tokenize([d], tokenizer, max_tokens=n)[0] for d, n in zip(documents(), UNEVEN, strict=True)]
    validation = [
        tokenize([d], tokenizer, max_tokens=n)[0] for d, n in zip(documents(3, 50, 1), (50, 9, 20), strict=True)
    ]
    chosen = recipe(batch_size=2, windows_per_segment=2, warmup_steps=0, max_tokens=10_000, **(changes or {}))
    return train(make_model(dropout=0), training, validation, tokenizer, folder, chosen, progress=False)
