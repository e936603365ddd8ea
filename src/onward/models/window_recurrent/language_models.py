"""Window-recurrent language models: a loss per window, and unlimited generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, GenerationMixin

from ...ops.language_loss import IGNORED
from ..checking import check_labels, kept_columns
from ..generation import GeneratesOnward
from ..losses import CLASSES, exact, labels_to_predict, share
from .heads import as_from_base, head_on, refuse_router_loss
from .lesson import Lesson
from .modeling_window_recurrent import RecurrentOutput, WindowRecurrentModel, collected_layers, unless_disabled
from .reading import Output, pack, real_columns
from .state import WindowState
from .step import Windows


class _LanguageModel(WindowRecurrentModel):
    """Language models: the loss is computed window by window, without the logits of the whole length in memory."""

    def _finish_with_loss(
        self, targets: Tensor, count: Tensor | int, keep_logits: bool, lesson: Lesson | None = None
    ) -> Any:
        def finish(output: Any, current: Windows) -> Output:
            logits = head_on(self.backbone, output, input_ids=current.ids).logits
            wanted = current.of_new_tokens(targets, IGNORED).long()
            total = nn.functional.cross_entropy(exact(logits).flatten(0, 1), wanted.flatten(), reduction="sum")
            if lesson is not None and lesson.share:
                total = (1 - lesson.share) * total + lesson.share * lesson.divergence(logits, wanted, output, current)
            loss = share(total, count, None)
            return {"loss": loss, "logits": logits} if keep_logits else {"loss": loss}

        return finish

    def _language_forward(
        self,
        input_ids: Tensor,
        targets: Tensor | None,
        attention_mask: Tensor | None,
        num_items_in_batch: Tensor | int | None,
        logits_to_keep: int | Tensor,
        lesson: Lesson | None = None,
        **reading: Any,
    ) -> RecurrentOutput:
        finish = None
        if lesson is not None:
            lesson.check(input_ids, targets)
        kept = kept_columns(logits_to_keep, input_ids.shape[1])
        if targets is not None:
            refuse_router_loss(self.backbone.config)
            check_labels(targets, input_ids.shape, self.config.vocab_size)
            columns = real_columns(attention_mask, input_ids.shape)
            if attention_mask is not None:
                targets = targets.masked_fill(attention_mask == 0, IGNORED)
            packed, _ = pack(targets, columns)
            count = (targets != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
            keeps_all = isinstance(logits_to_keep, int) and logits_to_keep == 0
            keep_logits = keeps_all and not (self.bottleneck_checkpointing and self.training)
            lesson = None if lesson is None else lesson.packed(columns)
            finish = self._finish_with_loss(packed, count, keep_logits, lesson)
        read, state, kind = self._read(input_ids, attention_mask=attention_mask, finish=finish, **reading)
        logits, loss = read.get("logits"), self._reaching_all_parameters(read.get("loss"))
        if targets is None:
            hidden = as_from_base(kind, last_hidden_state=read["last_hidden_state"][:, kept])
            logits = head_on(self.backbone, hidden, input_ids=input_ids[:, kept]).logits
        return RecurrentOutput(loss=loss, logits=logits, state=state, hidden_states=collected_layers(read))


class WindowRecurrentForCausalLM(_LanguageModel, GeneratesOnward, GenerationMixin):
    """A decoder with its language modelling head: trains, generates and scores at any length."""

    auto_class = AutoModelForCausalLM
    head = "causal-lm"

    @unless_disabled
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
        lesson: Lesson | None = None,
        **kwargs: Any,
    ) -> RecurrentOutput | tuple:
        """Processes `input_ids` [B, N] of any length N, continuing from `state`; see `WindowRecurrentModel.forward`.

        `labels` are the input ids themselves, as everywhere in transformers: each token is predicted by the one
        before it. `shift_labels` [B, N] hold the next token of each instead, so that the last token of a call can
        have a label. With gradient checkpointing or `logits_to_keep=1`, no logits are returned with a loss: nothing
        then grows with the length.

        `lesson`: what a teacher made of the same tokens. The loss is then in part the divergence from what it
        predicts where there are labels; see `Lesson`.
        """
        shift_labels = kwargs.pop("shift_labels", None)  # not a parameter: Trainer would count it among its labels
        input_ids = self._checked_ids(input_ids, kwargs)
        targets = labels_to_predict(labels, shift_labels, attention_mask, input_ids.shape, self.config.vocab_size)
        output = self._language_forward(
            input_ids,
            targets,
            attention_mask,
            num_items_in_batch,
            logits_to_keep,
            lesson,
            state=state,
            starts_document=starts_document,
            prefix_length=prefix_length,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        return self.returned(output, return_dict)

    # -- generation

    def generate(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """transformers' `generate` in constant memory, for any length.

        `state` continues from an earlier call; `input_ids` are then only the new tokens.
        """
        if self._disabled:
            return cast(Any, self.backbone).generate(*args, **kwargs)
        return GeneratesOnward.generate(cast(Any, self), *args, **kwargs)


class WindowRecurrentForMaskedLM(_LanguageModel):
    """An encoder with its masked language modelling head."""

    auto_class = AutoModelForMaskedLM
    head = "masked-lm"
    head_loss = CLASSES  # of the backbone alone; over windows the loss is computed window by window

    @unless_disabled
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
        """Processes `input_ids` [B, N] of any length; see `WindowRecurrentModel.forward`."""
        input_ids = self._checked_ids(input_ids, kwargs)
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
        return self.returned(output, return_dict)
