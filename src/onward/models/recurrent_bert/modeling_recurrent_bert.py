"""BERT with a light recurrence in the place of its feed-forward blocks; all else is transformers' own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
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
from ...utils.damage import TellsDamage
from ..cards import WritesCard
from ..checking import checked_mask, refuse_ids_outside
from ..losses import answer_loss, document_loss, labelled_loss
from .configuration_recurrent_bert import RecurrentBertConfig


class LightRecurrence(nn.Module):
    """((c + b) * sigmoid(X W2 + b2)) W3 + b3, where c is the soft running maximum of X W1.

    W1 and W2 are one matrix, and b and b2 one bias: c + b is the soft running maximum of X W1 + b, started from b.
    """

    def __init__(self, config: RecurrentBertConfig, layer: int):
        super().__init__()
        assert config.recurrence_size is not None
        width, size = config.hidden_size, config.recurrence_size
        # Values, then gates; with two directions, first those of the channels ahead and then those of the ones back.
        self.input = nn.Linear(width, 2 * size)
        self.output = nn.Linear(size, width)
        self.stride, self.activation = config.stride, config.activation
        self.runs_back = config.direction == "alternating" and layer % 2 == 1
        self.sizes = (size - size // 2, size // 2) if config.direction == "bidirectional" else (size,)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """x: [B, n, d]; padding: [B, n], where there is no token."""
        if padding is not None:  # of zeros the values are the bias, which is the start: states stay there
            x = x.masked_fill(padding[..., None], 0)
        x = x.transpose(0, 1)  # time first
        x = x.flip(0) if self.runs_back else x.contiguous()
        out = self.output(self._read(self.input(x)))
        return (out.flip(0) if self.runs_back else out).transpose(0, 1)

    def _read(self, x: Tensor) -> Tensor:
        if self.input.bias.is_meta and not x.is_meta:
            raise RuntimeError(
                "a layer's weights are not in memory: offloading is not there for recurrent BERT; load the model "
                "whole, or in a smaller dtype"
            )
        if len(self.sizes) == 1:  # what only we look at may be written over
            return self._run(x, self.input.bias, overwrite=not self.input._forward_hooks)
        doubled = [2 * size for size in self.sizes]
        (ahead, back), (start, end) = x.split(doubled, -1), self.input.bias.split(doubled)
        return torch.cat([self._run(ahead, start), self._run(back.flip(0), end).flip(0)], -1)

    def _run(self, x: Tensor, bias: Tensor, overwrite: bool = False) -> Tensor:
        return gated_recurrence(x, bias.chunk(2)[0], self.stride, self.activation, overwrite=overwrite)


class RecurrentBertOutput(nn.Module):
    """What BERT does after a feed-forward block, under BERT's names."""

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


class _Recurrent(TellsDamage, WritesCard, bert.BertPreTrainedModel):
    config_class = RecurrentBertConfig
    config: RecurrentBertConfig
    _supports_flex_attn = False
    accepts_loss_kwargs = True  # Trainer tells how many labels an update has, and the loss is divided by that
    _no_split_modules = ["BertEmbeddings", "RecurrentBertLayer"]

    def describe(self) -> str:
        c, count = self.config, sum(p.numel() for p in self.parameters())
        return (
            f"BERT with a light recurrence in the place of its feed-forward blocks: {c.num_hidden_layers} layers of "
            f"{c.hidden_size}, {c.direction}, stride {c.stride}. Parameters: {count:,}."
        )


@contextmanager
def _without_layers(config: RecurrentBertConfig) -> Iterator[None]:
    """Around BERT's own constructors: the layers they make are not wanted, and drawing their weights takes seconds."""
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
        """As BERT's. Padding, which `attention_mask` [B, n] marks by 0, never reaches a row's states."""
        padding = None
        if attention_mask is not None:
            if isinstance(attention_mask, Tensor) and attention_mask.dim() != 2:
                raise ValueError(
                    f"attention_mask has the shape {tuple(attention_mask.shape)}: a recurrent BERT needs [batch, "
                    "length], which tells it where there is padding"
                )
            read = input_ids if inputs_embeds is None else inputs_embeds
            real = checked_mask(attention_mask, attention_mask.shape if read is None else read.shape[:2])
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


def _scored(forward: Any, loss: Callable[..., Tensor], *names: str) -> Any:
    """BERT's own forward but for the loss: BERT makes means, even where it is told of a larger batch."""
    arguments = inspect.signature(forward)

    @functools.wraps(forward)  # Trainer reads its signature
    def scored(self: Any, *args: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        given = arguments.bind(self, *args, **kwargs)
        labels = [given.arguments.pop(name, None) for name in names]
        return_dict = kwargs.get("return_dict", self.config.return_dict)
        output = forward(*given.args, **{**given.kwargs, "return_dict": True})
        if any(each is not None for each in labels):
            for name, each in zip(names, labels, strict=True):
                if each is None:
                    raise ValueError(f"{type(self).__name__} is scored by {' and '.join(names)}, and {name} is missing")
            output = type(output)(**{**output, "loss": loss(self.config, output, num_items_in_batch, *labels)})
        return output if return_dict is not False else output.to_tuple()

    return scored


def _labelled(config: RecurrentBertConfig, output: Any, count: Any, labels: Tensor) -> Tensor:
    return labelled_loss(output.logits, labels, count)


def _of_documents(config: RecurrentBertConfig, output: Any, count: Any, labels: Tensor) -> Tensor:
    return document_loss(output.logits, labels, config.problem_type, count)


def _of_answers(config: RecurrentBertConfig, output: Any, count: Any, starts: Tensor, ends: Tensor) -> Tensor:
    return answer_loss(output.start_logits, output.end_logits, starts, ends, count)


class RecurrentBertForMaskedLM(_WithHead, bert.BertForMaskedLM):
    auto_class = AutoModelForMaskedLM
    forward = _scored(bert.BertForMaskedLM.forward, _labelled, "labels")


class RecurrentBertForSequenceClassification(_WithHead, bert.BertForSequenceClassification):
    auto_class = AutoModelForSequenceClassification
    forward = _scored(bert.BertForSequenceClassification.forward, _of_documents, "labels")


class RecurrentBertForTokenClassification(_WithHead, bert.BertForTokenClassification):
    auto_class = AutoModelForTokenClassification
    forward = _scored(bert.BertForTokenClassification.forward, _labelled, "labels")


class RecurrentBertForQuestionAnswering(_WithHead, bert.BertForQuestionAnswering):
    auto_class = AutoModelForQuestionAnswering
    forward = _scored(bert.BertForQuestionAnswering.forward, _of_answers, "start_positions", "end_positions")


class RecurrentBertForMultipleChoice(_WithHead, bert.BertForMultipleChoice):
    auto_class = AutoModelForMultipleChoice
    forward = _scored(bert.BertForMultipleChoice.forward, _labelled, "labels")


MODELS = (
    RecurrentBertModel,
    RecurrentBertForMaskedLM,
    RecurrentBertForSequenceClassification,
    RecurrentBertForTokenClassification,
    RecurrentBertForQuestionAnswering,
    RecurrentBertForMultipleChoice,
)
