"""Tiny encoders with a tokenizer of a few words, tasks that they can learn, and runs that are killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast, TrainerCallback

from onward import RecurrentBertConfig, RecurrentBertForMaskedLM
from onward.finetuning import FinetuningRecipe

WORDS = ["the", "a", "sea", "ship", "man", "boy", "old", "long", "was", "is", "went", "home", "to", "in", "and", "who"]
NAMES = ["anna", "bert", "carl", "dora", "emil", "frida"]
PLACES = ["paris", "rome", "oslo", "bern", "lima", "kiev"]
GOOD, BAD = ["good", "great", "fine"], ["bad", "awful", "poor"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["##s", "##ing", "##ed", ".", ",", "?", "'", '"', *LETTERS, *(f"##{letter}" for letter in LETTERS)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *NAMES, *PLACES, *GOOD, *BAD, *PIECES]


def tokenizer(**more: Any) -> PreTrainedTokenizerBase:
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    word_piece = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    word_piece.normalizer = normalizers.BertNormalizer()
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    word_piece.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    special = {name: f"[{name[:3].upper()}]" for name in ("pad_token", "cls_token", "sep_token")}
    made = PreTrainedTokenizerFast(
        tokenizer_object=word_piece, unk_token="[UNK]", mask_token="[MASK]", model_max_length=64, **special, **more
    )
    made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return made


KINDS = {"bert": (BertConfig, BertForMaskedLM), "recurrent": (RecurrentBertConfig, RecurrentBertForMaskedLM)}


def save_encoder(folder: Path, kind: str = "bert", **fields: Any) -> Path:
    config, model = KINDS[kind]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    torch.manual_seed(0)
    made = model(config(vocab_size=len(VOCABULARY), max_position_embeddings=64, **{**sizes, **fields}))
    made.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def save_sentiment(folder: Path, train: int = 96, held: int = 48) -> Path:
    """GLUE's form of SST-2; one word of a sentence decides."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("dev", held)):
        lines = ["sentence\tlabel"]
        for i in range(count):
            words = draw.choices(WORDS, k=draw.randint(2, 7))
            words.insert(draw.randint(0, len(words)), draw.choice(GOOD if i % 2 else BAD))
            lines.append(f"{' '.join(words)} \t{i % 2}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


SHORT = FinetuningRecipe(epochs=1, batch_size=8, max_length=32, train_examples=16)


class Killed(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step + 1:  # when a checkpoint of `step` is on the disk
            raise KeyboardInterrupt

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:  # the last one
            raise KeyboardInterrupt
