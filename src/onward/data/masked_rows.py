"""Documents -> rows of equal length with some of their tokens hidden, for masked language models."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ..ops.language_loss import IGNORED
from ..utils.fields import FieldError
from .segments import mask_of, order, padded, refuse_no_epochs
from .tokens import TokenizedDocument


@dataclass(frozen=True, eq=False)
class Hiding:
    """BERT's way: a share of the tokens is chosen, for the model to predict. Of ten chosen ones, eight become [MASK],
    one becomes a random token, and one stays as it is."""

    mask: int
    known: int  # ids that the tokenizer has; the model may have more
    special: Tensor  # [V] bool: ids that are never hidden
    continues: Tensor  # [V] bool: ids of pieces that continue a word; all False if words are not hidden whole
    share: float = 0.15

    @classmethod
    def with_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, ids: int, share: float, whole_words: bool) -> Hiding:
        """`ids` is the size of the model's vocabulary, which may be larger than the tokenizer's."""
        known = max(tokenizer.get_vocab().values()) + 1
        if known > ids:
            raise ValueError(
                f"the tokenizer has {known} ids, and the model's vocabulary only {ids}: use the tokenizer that the "
                "model was made for, or a config with a larger vocab_size"
            )
        special = torch.zeros(ids, dtype=torch.bool)
        special[tokenizer.all_special_ids] = True
        continues = torch.zeros(ids, dtype=torch.bool)
        if whole_words:
            continues[continuing_pieces(tokenizer)] = True
        assert tokenizer.mask_token_id is not None
        return cls(tokenizer.mask_token_id, known, special, continues, share)

    def __call__(self, ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """ids: [n] -> the model's inputs [n], and labels [n], IGNORED where nothing is predicted."""
        hidden = self._choose(ids, generator)
        labels = torch.where(hidden, ids, IGNORED)
        dice = torch.rand(len(ids), generator=generator)
        anything = torch.randint(self.known, (len(ids),), generator=generator)
        masked = torch.where(hidden & (dice < 0.8), self.mask, ids)
        return torch.where(hidden & (dice >= 0.9), anything, masked), labels

    def _choose(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        """Words in random order that fit into the share; at least one word, if there is any."""
        hidden = torch.zeros(len(ids), dtype=torch.bool)
        places = (~self.special[ids]).nonzero()[:, 0]
        if not len(places):
            return hidden
        begins = ~self.continues[ids[places]]
        begins[1:] |= places[1:] != places[:-1] + 1  # a special token also ends a word
        begins[0] = True
        starts = begins.nonzero()[:, 0].tolist()
        stops = [*starts[1:], len(places)]
        left = max(1, round(self.share * len(places)))
        shuffled = torch.randperm(len(starts), generator=generator)
        if len(starts) == len(places):  # all words have one token
            hidden[places[shuffled[:left]]] = True
            return hidden
        for word in shuffled.tolist():
            size = stops[word] - starts[word]
            if size <= left:
                hidden[places[starts[word] : stops[word]]] = True
                left -= size
            if not left:
                break
        if not hidden.any():  # the words of a short text are all longer than its share
            hidden[places[starts[shuffled[0]] : stops[shuffled[0]]]] = True
        return hidden


def continuing_pieces(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of pieces that do not begin a word: those marked by ##, or those not marked by Ġ or ▁."""
    vocabulary = tokenizer.get_vocab()
    ordinary = {piece: i for piece, i in vocabulary.items() if i not in set(tokenizer.all_special_ids)}
    if any(piece.startswith("##") for piece in ordinary):
        return [i for piece, i in ordinary.items() if piece.startswith("##")]
    for sign in ("Ġ", "▁"):
        if any(piece.startswith(sign) for piece in ordinary):
            return [i for piece, i in ordinary.items() if not piece.startswith(sign)]
    problem = "the tokenizer does not show where words begin (by ##, Ġ or ▁); leave it False, or use a WordPiece one"
    raise FieldError("whole_words", True, problem)


class PackedTexts(Dataset[dict[str, Tensor]]):
    """All documents in a row, each with [SEP] at its end, cut into rows of `length` tokens: [CLS], text, [SEP].

    Only the last row is shorter. Items are `epochs` times all rows, each epoch in another order and with other tokens
    hidden, both decided by `seed` alone; if it is None, rows keep the order of the text. The number of an item is the
    whole position: a resumed run continues from there. The last epoch ends with the last whole step of
    `rows_per_step`.

    An item has `input_ids` [n] and `labels` [n].
    """

    def __init__(
        self,
        documents: Sequence[TokenizedDocument],
        length: int,
        tokenizer: PreTrainedTokenizerBase,
        hiding: Hiding,
        *,
        epochs: int = 1,
        seed: int | None = 0,
        rows_per_step: int = 1,
    ):
        if length < 3:
            raise FieldError("sequence_length", length, "[CLS], a token and [SEP] are 3; choose at least that many")
        refuse_no_epochs(epochs)
        self.documents, self.length, self.seed, self.hiding = documents, length, seed, hiding
        self._first, self._last = torch.tensor([tokenizer.cls_token_id]), torch.tensor([tokenizer.sep_token_id])
        numbers = order(len(documents), seed, -1)
        parts = [part for number in numbers for part in (documents[number].ids, self._last.int())]
        self._text = torch.cat(parts)[:-1]  # the last row adds its own [SEP]
        self.rows = math.ceil(len(self._text) / (length - 2))
        self._rows_per_step = rows_per_step
        self._latest: tuple[int, list[int]] = (-1, [])
        self._repeat(epochs)
        if bool(hiding.special[self._text].all()):
            raise ValueError("the documents have nothing that could be hidden, only special or unknown tokens")

    def _repeat(self, epochs: int) -> None:
        rows, step = self.rows * epochs, self._rows_per_step
        self._items = rows // step * step or rows

    def _order(self, epoch: int) -> list[int]:
        """Kept for one epoch only: those of all would fill the memory."""
        if self._latest[0] != epoch:
            self._latest = epoch, order(self.rows, self.seed, epoch)
        return self._latest[1]

    def repeated(self, epochs: int) -> PackedTexts:
        """The same rows with another number of epochs; the text is not packed again."""
        other = copy(self)
        other._repeat(epochs)
        return other

    def __len__(self) -> int:
        return self._items

    @property
    def tokens(self) -> int:
        """In one epoch, including special ones."""
        return len(self._text) + 2 * self.rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        index = range(len(self))[index]
        epoch, place = divmod(index, self.rows)
        row, size = self._order(epoch)[place], self.length - 2
        text = self._text[row * size : (row + 1) * size].long()
        # Python guarantees these numbers in all versions, and torch for a seed.
        generator = torch.Generator().manual_seed(random.Random(f"{self.seed} {index}").getrandbits(63))
        ids, labels = self.hiding(torch.cat([self._first, text, self._last]), generator)
        return {"input_ids": ids, "labels": labels}


def collate_rows(rows: Sequence[Mapping[str, Any]], pad: int) -> dict[str, Tensor]:
    """Rows -> a batch, padded on the right; always with a mask, by which Trainer counts tokens. [B, n] each."""
    return {
        "input_ids": padded(rows, "input_ids", pad),
        "attention_mask": mask_of(rows),
        "labels": padded(rows, "labels", IGNORED),
    }
