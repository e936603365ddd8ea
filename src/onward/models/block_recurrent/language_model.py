"""The block-recurrent language model: a loss in pieces, and generation without end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, GenerationMixin

from ...ops.language_loss import IGNORED, language_loss
from ..checking import check_labels, kept_columns
from ..generation import GeneratesOnward
from ..labels import next_labels
from ..losses import share
from .configuration_block_recurrent import BlockRecurrentConfig
from .inputs import refuse
from .modeling_block_recurrent import BlockRecurrentModel, BlockRecurrentOutput, BlockRecurrentPreTrainedModel
from .state import BlockState


class BlockRecurrentForCausalLM(BlockRecurrentPreTrainedModel, GeneratesOnward, GenerationMixin):
    """Trains, scores and generates over documents of any length."""

    auto_class = AutoModelForCausalLM
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    accepts_loss_kwargs = True  # Trainer tells how many labels an update has, and the loss is divided by that

    def __init__(self, config: BlockRecurrentConfig):
        super().__init__(config)
        self.model = BlockRecurrentModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def state_name(self) -> str:
        return self.model.state_name

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: BlockState | None = None,
        starts_document: Tensor | Sequence[bool] | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> BlockRecurrentOutput | tuple:
        """Reads `input_ids` [B, N] of any length N on from `state`; see `BlockRecurrentModel.forward`.

        `labels` are the input ids themselves, as everywhere in transformers: each token is predicted by the one
        before it. `shift_labels` [B, N] instead names for each token the one that follows, so that the last token
        of a call can have a label, too. While training (`model.train()`), no logits are returned beside the loss:
        they would be by far the largest thing in memory.
        """
        shift_labels = kwargs.pop("shift_labels", None)  # unnamed, or Trainer would take it for one of its labels
        refuse(kwargs, self)
        given = input_ids if inputs_embeds is None else inputs_embeds
        columns = kept_columns(logits_to_keep, given.shape[1] if isinstance(given, Tensor) and given.dim() > 1 else 0)
        read = self.model(
            input_ids,
            attention_mask,
            state=state,
            starts_document=starts_document,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = read.last_hidden_state
        wanted = labels_to_predict(labels, shift_labels, attention_mask, hidden.shape[:2], self.config.vocab_size)
        loss = None if wanted is None else self._loss(hidden, wanted, num_items_in_batch)
        logits = None
        if loss is None or not self.training:
            logits = self.lm_head(hidden[:, columns]) * self._logit_factor
        output = BlockRecurrentOutput(loss=loss, logits=logits, state=read.state, hidden_states=read.hidden_states)
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()

    @property
    def _logit_factor(self) -> float:
        return 1 / math.sqrt(self.config.hidden_size) if self.config.tie_word_embeddings else 1.0

    def _loss(self, hidden: Tensor, wanted: Tensor, count: Tensor | int | None) -> Tensor:
        total = language_loss(hidden.flatten(0, 1), self.lm_head.weight, wanted.flatten(), self._logit_factor)
        loss = share(total, (wanted != IGNORED).sum(), count)
        if self.training and torch.distributed.is_initialized():
            # Processes wait for a gradient of every parameter, and a call without a whole block never asks the cell.
            # Those that are in parts (FSDP) their layers have seen to.
            here = (p for p in self.parameters() if p.requires_grad and not isinstance(p, DTensor))
            loss = loss + 0 * sum(p.sum() for p in here)
        return loss


def labels_to_predict(
    labels: Tensor | None, shift_labels: Tensor | None, mask: Tensor | None, shape: torch.Size, vocab_size: int
) -> Tensor | None:
    """For each token the one it is to predict, [B, N]."""
    given = labels if shift_labels is None else shift_labels
    if given is None:
        return None
    check_labels(given, shape, vocab_size, "the input")
    if shift_labels is None:
        return next_labels(given, mask)
    return shift_labels.long() if mask is None else shift_labels.long().masked_fill(mask == 0, IGNORED)
