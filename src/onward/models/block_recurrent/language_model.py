"""The block-recurrent language model: a loss without the logits of the whole length, and unlimited generation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, GenerationMixin

from ...ops.language_loss import IGNORED, language_loss
from ..checking import kept_columns
from ..generation import GeneratesOnward
from ..losses import labels_to_predict, share
from .configuration_block_recurrent import BlockRecurrentConfig
from .modeling_block_recurrent import BlockRecurrentModel, BlockRecurrentOutput, BlockRecurrentPreTrainedModel
from .state import BlockState


class BlockRecurrentForCausalLM(BlockRecurrentPreTrainedModel, GeneratesOnward, GenerationMixin):
    """Trains, scores and generates over documents of any length."""

    auto_class = AutoModelForCausalLM
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

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
        """Processes `input_ids` [B, N] of any length N, continuing from `state`; see `BlockRecurrentModel.forward`.

        `labels` are the input ids themselves, as everywhere in transformers: each token is predicted by the one
        before it. `shift_labels` [B, N] hold the next token of each instead, so that the last token of a call can
        have a label. During training (`model.train()`) no logits are returned with the loss: they would be by far
        the largest tensor in memory.
        """
        shift_labels = kwargs.pop("shift_labels", None)  # not a parameter: Trainer would count it among its labels
        self.refuse_arguments(kwargs)
        given = input_ids if inputs_embeds is None else inputs_embeds
        columns = kept_columns(logits_to_keep, given.shape[1] if isinstance(given, Tensor) and given.dim() > 1 else 0)
        base = self.model(
            input_ids,
            attention_mask,
            state=state,
            starts_document=starts_document,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden = base.last_hidden_state
        wanted = labels_to_predict(labels, shift_labels, attention_mask, hidden.shape[:2], self.config.vocab_size)
        loss = None if wanted is None else self._loss(hidden, wanted, num_items_in_batch)
        logits = None
        if loss is None or not self.training:
            logits = self.lm_head(hidden[:, columns]) * self._logit_factor
        output = BlockRecurrentOutput(loss=loss, logits=logits, state=base.state, hidden_states=base.hidden_states)
        return self.returned(output, return_dict)

    @property
    def _logit_factor(self) -> float:
        return 1 / math.sqrt(self.config.hidden_size) if self.config.tie_word_embeddings else 1.0

    def _loss(self, hidden: Tensor, wanted: Tensor, count: Tensor | int | None) -> Tensor:
        total = language_loss(hidden.flatten(0, 1), self.lm_head.weight, wanted.flatten(), self._logit_factor)
        loss = share(total, (wanted != IGNORED).sum(), count)
        if self.training and torch.distributed.is_initialized():
            # Distributed training waits for a gradient of every parameter, and a call without a complete block does
            # not use the cell. Layers take care of sharded parameters (FSDP).
            here = (p for p in self.parameters() if p.requires_grad and not isinstance(p, DTensor))
            loss = loss + 0 * sum(p.sum() for p in here)
        return loss
