"""What a teacher with its full context makes of a text, for a model that has a window and a memory to learn from.

Shapes: B rows, N tokens, k the teacher's width; M windows of w tokens in a run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...ops.divergence import divergence
from ...ops.language_loss import IGNORED
from ...utils.fields import FieldError
from .heads import as_from_base, head_on
from .planning import Windows, pack


@dataclass(frozen=True)
class Lesson:
    """What a teacher made of the tokens of a call, and how much that counts.

    Its predictions of a whole text would be of the size of its vocabulary for each token. Hidden states are kept
    instead, and its head is applied to those of a few windows at a time.
    """

    teacher: PreTrainedModel  # a causal language model, whose head is applied
    hidden: Tensor  # [B, N, k]: the last hidden states of its base
    share: float = 0.5  # of the divergence in the loss; the rest is that of the next token

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise FieldError("share", self.share, "it must be a number from 0 to 1")

    def check(self, input_ids: Tensor, targets: Tensor | None) -> None:
        if targets is None:
            raise ValueError("a lesson is part of a loss: pass labels with it, which say what is to be predicted")
        if self.hidden.shape[:2] != input_ids.shape:
            given, wanted = tuple(self.hidden.shape), tuple(input_ids.shape)
            raise ValueError(f"the lesson's hidden states have the shape {given}, the input {wanted}: they must agree")

    def packed(self, columns: list[list[int]] | None) -> Lesson:
        """Without padding, every row aligned at the left."""
        return replace(self, hidden=pack(self.hidden, columns)[0])

    def divergence(self, logits: Tensor, wanted: Tensor, output: Any, run: Windows) -> Tensor:
        """How far what a run predicts, `logits` [M, w, V], is from what the teacher does, summed over the tokens that
        have a label in `wanted` [M, w]. output: of the base, for its kind."""
        with torch.no_grad():
            hidden = run.of_new_tokens(self.hidden, 0)
            theirs = head_on(self.teacher, as_from_base(type(output), last_hidden_state=hidden), input_ids=run.ids)
        return divergence(theirs.logits.flatten(0, 1), logits.flatten(0, 1), (wanted != IGNORED).flatten())
