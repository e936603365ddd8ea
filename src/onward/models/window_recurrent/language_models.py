"""Window-recurrent language models: a loss per window, and generation without end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions as BaseOutput

from ..checking import check_labels, kept_columns
from ..generation import GeneratesOnward
from ..labels import next_labels
from ..losses import exact, labelled_loss, share
from ..state import WindowState
from .fitting import ID_MASK
from .heads import answering, refuse_router_loss
from .modeling_window_recurrent import WindowRecurrentModel, collected_layers
from .outputs import RecurrentOutput
from .reading import Output, Round, pack, real_columns


class _LanguageModel(WindowRecurrentModel):
    """Language models: the loss is computed window by window, so that no one holds logits of the whole length."""

    def _finish_with_loss(self, targets: Tensor, count: Tensor | int, keep_logits: bool) -> Any:
        def finish(hidden: Tensor, current: Round) -> Output:
            logits = self._head_logits(hidden, current.ids & ID_MASK)
            wanted = current.of_new_tokens(targets, -100).long()
            total = nn.functional.cross_entropy(exact(logits).flatten(0, 1), wanted.flatten(), reduction="sum")
            loss = share(total, count, None)
            return {"loss": loss, "logits": logits} if keep_logits else {"loss": loss}

        return finish

    def _head_logits(self, hidden: Tensor, ids: Tensor, **given: Any) -> Tensor:
        whole = BaseOutput(last_hidden_state=cast(Any, hidden))
        with answering(self.backbone.base_model, whole):
            return self.backbone(input_ids=ids, return_dict=True, **given).logits

    def _language_forward(
        self,
        input_ids: Tensor,
        targets: Tensor | None,
        attention_mask: Tensor | None,
        num_items_in_batch: Tensor | int | None,
        logits_to_keep: int | Tensor,
        **reading: Any,
    ) -> RecurrentOutput:
        finish = None
        kept = kept_columns(logits_to_keep, input_ids.shape[1])
        if targets is not None:
            refuse_router_loss(self.backbone.config)
            check_labels(targets, input_ids.shape, self.config.vocab_size)
            columns = real_columns(attention_mask, input_ids.shape)
            if attention_mask is not None:
                targets = targets.masked_fill(attention_mask == 0, -100)
            packed, _ = pack(targets, columns)
            count = (targets != -100).sum() if num_items_in_batch is None else num_items_in_batch
            keeps_all = isinstance(logits_to_keep, int) and logits_to_keep == 0
            keep_logits = keeps_all and not (self.bottleneck_checkpointing and self.training)
            finish = self._finish_with_loss(packed, count, keep_logits)
        read, state = self._read(input_ids, attention_mask=attention_mask, finish=finish, **reading)
        logits, loss = read.get("logits"), read.get("loss")
        loss = self._with_every_parameter(loss)
        if targets is None:
            logits = self._head_logits(read["last_hidden_state"][:, kept], input_ids[:, kept])
        return RecurrentOutput(loss=loss, logits=logits, state=state, hidden_states=collected_layers(read))


class WindowRecurrentForCausalLM(_LanguageModel, GeneratesOnward, GenerationMixin):
    """A decoder with its language modelling head: trains, generates and scores without end."""

    auto_class = AutoModelForCausalLM
    head = "causal-lm"

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: WindowState | None = None,
        starts_document: Tensor | Sequence[bool] | None = None,
        prefix_length: int | Sequence[int] | Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> RecurrentOutput | tuple:
        """Reads `input_ids` [B, N] of any length N on from `state`; see `WindowRecurrentModel.forward`.

        `labels` are the input ids themselves, as everywhere in transformers: each token is predicted by the one
        before it. `shift_labels` [B, N] instead names for each token the one that follows, so that the last
        token of a call can have a label, too. Beside a loss no logits are returned with gradient checkpointing, or
        with `logits_to_keep=1`: nothing then grows with the length.
        """
        shift_labels = kwargs.pop("shift_labels", None)  # unnamed, or Trainer would take it for one of its labels
        if self._disabled:
            given = locals()
            wants_all = isinstance(logits_to_keep, int) and logits_to_keep == 0
            extra = {"shift_labels": shift_labels, "logits_to_keep": None if wants_all else logits_to_keep}
            extra["num_items_in_batch"] = num_items_in_batch
            return self._plain(
                input_ids, attention_mask, labels, given, {k: v for k, v in extra.items() if v is not None} | kwargs
            )
        input_ids = self._check_inputs(input_ids, kwargs)
        if labels is not None and shift_labels is None:
            check_labels(labels, input_ids.shape, self.config.vocab_size)
            # Padding may stand between a token and the next; the label is the next real one.
            shift_labels = next_labels(labels, attention_mask)
        output = self._language_forward(
            input_ids,
            shift_labels,
            attention_mask,
            num_items_in_batch,
            logits_to_keep,
            state=state,
            starts_document=starts_document,
            prefix_length=prefix_length,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        return self._returned(output, return_dict)

    # -- generation

    def generate(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """transformers' `generate`, without end: at a window's edge the state goes on, and memory stays flat.

        `state` continues from an earlier call's state: `input_ids` are then only the new tokens.
        """
        if self._disabled:
            return cast(Any, self.backbone).generate(*args, **kwargs)
        return GeneratesOnward.generate(cast(Any, self), *args, **kwargs)


class WindowRecurrentForMaskedLM(_LanguageModel):
    """An encoder with its masked language modelling head."""

    auto_class = AutoModelForMaskedLM
    head = "masked-lm"
    scored_by = ("labels",)

    def _loss(self, output: Any, num_items_in_batch: Any, **given: Tensor) -> Tensor:
        """Of the backbone alone; windows are scored one by one."""
        return labelled_loss(output.logits, given["labels"], num_items_in_batch)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: WindowState | None = None,
        starts_document: Tensor | Sequence[bool] | None = None,
        prefix_length: int | Sequence[int] | Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> RecurrentOutput | tuple:
        """Reads `input_ids` [B, N] of any length; see `WindowRecurrentModel.forward`."""
        if self._disabled:
            return self._plain(input_ids, attention_mask, labels, locals(), kwargs)
        input_ids = self._check_inputs(input_ids, kwargs)
        output = self._language_forward(
            input_ids,
            labels,
            attention_mask,
            num_items_in_batch,
            logits_to_keep=0,
            state=state,
            starts_document=starts_document,
            prefix_length=prefix_length,
            token_type_ids=token_type_ids,
            output_hidden_states=output_hidden_states,
        )
        return self._returned(output, return_dict)
