"""Training runs of tiny block-recurrent models, for all tests of training."""

import gc
import random

import torch

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM
from onward.data.tokens import TokenizedDocument
from onward.training import TrainingRecipe, train

VOCABULARY, LENGTH, LANES = 64, 16, 4
UNEVEN = (100, 37, 61, 16, 2, 80, 45)  # whole segments, parts of one, and parts of a block
HELD_OUT = (50, 33, 9, 2)
gc.freeze()  # Trainer collects garbage at every start, among all that was imported


def documents(lengths=UNEVEN, seed=0):
    """Each draws from its own six tokens, so that there is something to remember."""
    draw = random.Random(seed)
    made = []
    for number, length in enumerate(lengths):
        ids = draw.choices(draw.sample(range(VOCABULARY), 6), k=length)
        made.append(TokenizedDocument(f"d{number}", torch.tensor(ids, dtype=torch.int32), length, length))
    return made


def make_model(seed=0, **fields):
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "window": 8,
        "segment_length": LENGTH,
        "num_states": 4,
        "recurrent_layers": [2],
        "dropout": 0.05,
    }
    return BlockRecurrentForCausalLM(BlockRecurrentConfig(**sizes | fields))


def exact_model(**fields):
    """Without chance and nearly without rounding, which Adafactor's first steps would enlarge."""
    return make_model(dropout=0.0, **fields).double()


def recipe(**changes):
    values = {"batch_size": LANES, "learning_rate": 0.2, "warmup_steps": 3, "epochs": 2}
    return TrainingRecipe.preset("block-recurrent", **values | changes)


def run(folder, tokenizer, model=None, training=None, **changes):
    return train(
        make_model() if model is None else model,
        documents() if training is None else training,
        documents(HELD_OUT, 1),
        tokenizer,
        folder,
        recipe(**changes),
        progress=False,
    )


LONG = {"evaluate_every_tokens": 400, "save_every_tokens": 150}
