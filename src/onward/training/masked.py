"""Masked language models are trained on rows of packed text, some of whose tokens are hidden; nothing is carried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertForMaskedLM, PreTrainedTokenizerBase

from ..data.masked_rows import Hiding, PackedTexts, collate_rows
from ..data.tokens import TokenizedDocument
from ..models.losses import share
from ..ops.language_loss import IGNORED
from ..utils.fields import FieldError
from .feed import WINDOW_FIELDS, Feed


def mean_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """The mean over all hidden tokens of an update; BERT's own loss would be the mean of its batches' means."""
    wanted = labels[labels != IGNORED]
    total = cross_entropies(outputs.logits, wanted).sum()
    return share(total, len(wanted), num_items_in_batch)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """logits: [M, V], labels: [M] -> [M], in float32 at least."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    return nn.functional.cross_entropy(logits.to(exact), labels, reduction="none")


class MaskedFeed(Feed):
    kind = "masked"
    unused_fields = WINDOW_FIELDS
    sampling = "sequential"  # PackedTexts shuffles its rows
    every_gradient = True
    loss = staticmethod(mean_loss)
    model: BertForMaskedLM
    tokenizer: PreTrainedTokenizerBase

    def check(self) -> None:
        needed = ("mask", "cls", "sep", "pad")
        missing = [name for name in needed if getattr(self.tokenizer, f"{name}_token_id") is None]
        if missing:
            raise ValueError(
                f"the tokenizer has no {missing[0]} token, which masked language models need: use BERT's, or make one "
                "with train_vocabulary(documents, size, 'wordpiece')"
            )
        positions = self.model.config.max_position_embeddings
        if self.length > positions:
            problem = f"it is more than the model's max_position_embeddings={positions}; choose a smaller one"
            raise FieldError("sequence_length", self.length, problem)
        self.hiding = Hiding.with_tokenizer(
            self.tokenizer, self.model.config.vocab_size, self.recipe.masked_share, self.recipe.whole_words
        )

    # -- data

    @property
    def length(self) -> int:
        return self.recipe.sequence_length or self.model.config.max_position_embeddings

    def data(self, documents: Sequence[TokenizedDocument]) -> tuple[Dataset, int]:
        epochs = math.ceil(self.recipe.epochs)
        options = {"seed": self.recipe.seed, "rows_per_step": self.rows}
        packed = PackedTexts(documents, self.length, self.tokenizer, self.hiding, **options)
        if self.recipe.max_tokens is not None:
            # A step more, to make up for the rows that fill no whole step.
            epochs = min(epochs, math.ceil((self.recipe.max_tokens + self.rows * self.length) / packed.tokens))
        return packed.repeated(epochs), epochs

    def validation_data(self, documents: Sequence[TokenizedDocument]) -> Dataset:
        """The same tokens are hidden at every validation of every run."""
        return PackedTexts(documents, self.length, self.tokenizer, self.hiding, seed=None)

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = collate_rows(rows, self.tokenizer.pad_token_id)
        # Trainer takes the labels out for the loss, so the model is told separately where logits are needed.
        return batch | {"hidden": batch["labels"] != IGNORED}

    def tokens_per_step(self, dataset: Any, documents: Sequence[TokenizedDocument], epochs: int) -> float:
        return self.rows * dataset.tokens / dataset.rows

    def tokens(self, dataset: Any, documents: Sequence[TokenizedDocument]) -> int:
        return dataset.tokens

    # -- the model

    @contextmanager
    def trainable(self) -> Iterator[None]:
        with only_hidden_logits(self.model):
            yield

    def losses(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        each = losses_of_hidden(model, batch).double()
        rows, _ = (batch["labels"] != IGNORED).nonzero(as_tuple=True)
        totals = each.new_zeros(len(batch["labels"]), 2)
        return totals.index_add(0, rows, torch.stack([each, torch.ones_like(each)], 1))


def losses_of_hidden(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """[M], of the hidden tokens of all rows; used inside `only_hidden_logits`."""
    hidden = batch["labels"] != IGNORED
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], hidden=hidden).logits
    return cross_entropies(logits, batch["labels"][hidden])


@contextmanager
def only_hidden_logits(model: BertForMaskedLM) -> Iterator[None]:
    """Inside this context `model(..., hidden=mask)` returns logits [M, V] of the M tokens in the mask [B, N]. Logits at
    unmasked positions are never used; skipping them saves about 85 % of the head's work."""
    mask: list[Tensor | None] = [None]

    def take_mask(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        mask[0] = kwargs.pop("hidden", None)
        return args, kwargs

    def select(head: nn.Module, args: tuple) -> tuple | None:
        return args if mask[0] is None else (args[0][mask[0]],)

    hooks = [model.register_forward_pre_hook(take_mask, with_kwargs=True), model.cls.register_forward_pre_hook(select)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
