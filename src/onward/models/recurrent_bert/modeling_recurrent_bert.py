"""BERT with a light recurrence in place of its feed-forward blocks; everything else is transformers' own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.bert import modeling_bert as bert

from ...ops.recurrence import gated_recurrence
from ..base import OnwardModel
from ..checking import checked_mask, refuse_ids_outside
from ..losses import ANSWERS, CLASSES, DOCUMENTS
from .configuration_recurrent_bert import RecurrentBertConfig


class LightRecurrence(nn.Module):
    """((c + b) * sigmoid(X W2 + b2)) W3 + b3, where c is the soft running maximum of X W1.

    W1 and W2 are stored as one matrix, b and b2 as one bias: c + b is the soft running maximum of X W1 + b, started
    from b.
    """

    def __init__(self, config: RecurrentBertConfig, layer: int):
        super().__init__()
        assert config.recurrence_size is not None
        width, size = config.hidden_size, config.recurrence_size
        # Values, then gates; with two directions, those of the forward channels before those of the backward ones.
        self.input = nn.Linear(width, 2 * size)
        self.output = nn.Linear(size, width)
        self.stride, self.activation = config.stride, config.activation
        self.runs_back = config.direction == "alternating" and layer % 2 == 1
        self.sizes = (size - size // 2, size // 2) if config.direction == "bidirectional" else (size,)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """x: [B, n, d]; padding: [B, n], True where there is no token."""
        if padding is not None:  # values of zeros are the bias, at which states start and stay
            x = x.masked_fill(padding[..., None], 0)
        x = x.transpose(0, 1)  # time first
        x = x.flip(0) if self.runs_back else x.contiguous()
        out = self.output(self._recur(self.input(x)))
        return (out.flip(0) if self.runs_back else out).transpose(0, 1)

    def _recur(self, x: Tensor) -> Tensor:
        if self.input.bias.is_meta and not x.is_meta:
            raise RuntimeError(
                "a layer's weights are not in memory: offloading is not supported for recurrent BERT; load the whole "
                "model, or use a smaller dtype"
            )
        if len(self.sizes) == 1:  # x may be overwritten unless a hook has seen it
            return self._run(x, self.input.bias, overwrite=not self.input._forward_hooks)
        doubled = [2 * size for size in self.sizes]
        (ahead, back), (start, end) = x.split(doubled, -1), self.input.bias.split(doubled)
        return torch.cat([self._run(ahead, start), self._run(back.flip(0), end).flip(0)], -1)

    def _run(self, x: Tensor, bias: Tensor, overwrite: bool = False) -> Tensor:
        return gated_recurrence(x, bias.chunk(2)[0], self.stride, self.activation, overwrite=overwrite)


class RecurrentBertOutput(nn.Module):
    """What BERT does after a feed-forward block, with BERT's parameter names."""

    def __init__(self, config: RecurrentBertConfig):
        super().__init__()
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(x) + residual)


class RecurrentBertLayer(bert.BertLayer):
    def __init__(self, config: RecurrentBertConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        del self.intermediate
        self.recurrence = LightRecurrence(config, layer_idx)
        self.output = RecurrentBertOutput(config)  # type: ignore[assignment]

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: None = None,
        encoder_attention_mask: None = None,
        past_key_values: None = None,
        padding: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        attended, _ = self.attention(hidden_states, attention_mask, **kwargs)
        return self.output(self.recurrence(attended, padding), attended)


class _Recurrent(OnwardModel, bert.BertPreTrainedModel):
    config_class = RecurrentBertConfig
    config: RecurrentBertConfig
    _supports_flex_attn = False
    _no_split_modules = ["BertEmbeddings", "RecurrentBertLayer"]

    def describe(self) -> str:
        c, count = self.config, sum(p.numel() for p in self.parameters())
        return (
            f"BERT with a light recurrence in place of its feed-forward blocks: {c.num_hidden_layers} layers of "
            f"{c.hidden_size}, {c.direction}, stride {c.stride}. Parameters: {count:,}."
        )


@contextmanager
def _without_layers(config: RecurrentBertConfig) -> Iterator[None]:
    """For BERT's own constructors: the layers that they make are replaced, and drawing their weights takes seconds."""
    layers, config.num_hidden_layers = config.num_hidden_layers, 0
    try:
        yield
    finally:
        config.num_hidden_layers = layers


class RecurrentBertModel(_Recurrent, bert.BertModel):
    """The bare encoder."""

    auto_class = AutoModel

    def __init__(self, config: RecurrentBertConfig, add_pooling_layer: bool = True):
        with _without_layers(config):
            super().__init__(config, add_pooling_layer)
        self.encoder.layer = nn.ModuleList(RecurrentBertLayer(config, i) for i in range(config.num_hidden_layers))
        self.post_init()

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """BERT's forward. Padding, marked by 0 in `attention_mask` [B, n], never reaches a row's states."""
        padding = None
        if attention_mask is not None:
            if isinstance(attention_mask, Tensor) and attention_mask.dim() != 2:
                raise ValueError(
                    f"attention_mask has the shape {tuple(attention_mask.shape)}: a recurrent BERT needs [batch, "
                    "length], to know the padding"
                )
            tokens = input_ids if inputs_embeds is None else inputs_embeds
            real = checked_mask(attention_mask, attention_mask.shape if tokens is None else tokens.shape[:2])
            if torch.compiler.is_compiling() or not bool(real.all()):
                padding = ~real
        if input_ids is not None:
            refuse_ids_outside(input_ids, self.config.vocab_size)
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return super().forward(*given, padding=padding, **kwargs)


class _WithHead(_Recurrent):
    """BERT's head of the same name, over a recurrent encoder."""

    bert: Any

    def __init__(self, config: RecurrentBertConfig):
        with _without_layers(config):
            super().__init__(config)
        self.bert = RecurrentBertModel(config, add_pooling_layer=self.bert.pooler is not None)
        self.post_init()


def _with_onwards_loss(forward: Any) -> Any:
    """BERT's own forward, except that the loss is ours."""
    signature = inspect.signature(forward)

    @functools.wraps(forward)  # Trainer inspects the signature
    def scored(self: Any, *args: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        labels = {name: given.arguments.pop(name, None) for name in self.head_loss.labels}
        output = forward(*given.args, **{**given.kwargs, "return_dict": True})
        return self.returned(self.with_loss(output, num_items_in_batch, **labels), kwargs.get("return_dict"))

    return scored


class RecurrentBertForMaskedLM(_WithHead, bert.BertForMaskedLM):
    auto_class = AutoModelForMaskedLM
    head_loss = CLASSES
    forward = _with_onwards_loss(bert.BertForMaskedLM.forward)


class RecurrentBertForSequenceClassification(_WithHead, bert.BertForSequenceClassification):
    auto_class = AutoModelForSequenceClassification
    head_loss = DOCUMENTS
    forward = _with_onwards_loss(bert.BertForSequenceClassification.forward)


class RecurrentBertForTokenClassification(_WithHead, bert.BertForTokenClassification):
    auto_class = AutoModelForTokenClassification
    head_loss = CLASSES
    forward = _with_onwards_loss(bert.BertForTokenClassification.forward)


class RecurrentBertForQuestionAnswering(_WithHead, bert.BertForQuestionAnswering):
    auto_class = AutoModelForQuestionAnswering
    head_loss = ANSWERS
    forward = _with_onwards_loss(bert.BertForQuestionAnswering.forward)


class RecurrentBertForMultipleChoice(_WithHead, bert.BertForMultipleChoice):
    auto_class = AutoModelForMultipleChoice
    head_loss = CLASSES
    forward = _with_onwards_loss(bert.BertForMultipleChoice.forward)


MODELS = (
    RecurrentBertModel,
    RecurrentBertForMaskedLM,
    RecurrentBertForSequenceClassification,
    RecurrentBertForTokenClassification,
    RecurrentBertForQuestionAnswering,
    RecurrentBertForMultipleChoice,
)
