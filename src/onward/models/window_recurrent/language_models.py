"""Window-recurrent language models: a loss per window, and unlimited generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, GenerationMixin, PreTrainedModel

from ...ops.language_loss import IGNORED
from ..checking import check_labels, kept_columns
from ..generation import GeneratesOnward
from ..losses import CLASSES, exact, labels_to_predict, share
from .assembling import Output
from .disabling import unless_disabled
from .heads import as_from_base, head_on, refuse_router_loss
from .lesson import Lesson
from .modeling_window_recurrent import RecurrentOutput, WindowRecurrentModel
from .planning import Windows, pack, real_columns
from .reading import HiddenStates
from .request import Request
from .state import WindowState


class WindowRecurrentForCausalLM(WindowRecurrentModel, GeneratesOnward, GenerationMixin):
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
        request = Request(
            input_ids,
            attention_mask=attention_mask,
            state=state,
            starts_document=starts_document,
            prefix_length=prefix_length,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        output = _predicted(self, request, targets, num_items_in_batch, logits_to_keep, lesson)
        return self.returned(output, return_dict)

    # -- generation

    def generate(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """transformers' `generate` in constant memory, for any length.

        `state` continues from an earlier call; `input_ids` are then only the new tokens.
        """
        if self._disabled:
            return cast(Any, self.backbone).generate(*args, **kwargs)
        return GeneratesOnward.generate(cast(Any, self), *args, **kwargs)


class WindowRecurrentForMaskedLM(WindowRecurrentModel):
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
        request = Request(
            self._checked_ids(input_ids, kwargs),
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            state=state,
            starts_document=starts_document,
            prefix_length=prefix_length,
            output_hidden_states=output_hidden_states,
        )
        return self.returned(_predicted(self, request, labels, num_items_in_batch), return_dict)


# -- predictions and their loss, window by window: the logits of the whole length are never in memory for a loss


def _predicted(
    model: WindowRecurrentModel,
    request: Request,
    targets: Tensor | None,
    num_items_in_batch: Tensor | int | None,
    logits_to_keep: int | Tensor = 0,
    lesson: Lesson | None = None,
) -> RecurrentOutput:
    """targets: [B, N], what each token is to predict."""
    if lesson is not None:
        lesson.check(request.input_ids, targets)
    kept = kept_columns(logits_to_keep, request.input_ids.shape[1])
    if targets is not None:
        keeps_logits = isinstance(logits_to_keep, int) and logits_to_keep == 0
        losses = _losses(model, request, targets, num_items_in_batch, keeps_logits, lesson)
        reading = model.reader.read(request, losses)
        loss, logits = model._reaching_all_parameters(reading.kept["loss"]), reading.kept.get("logits")
    else:
        reading = model.reader.read(request, HiddenStates())
        hidden = as_from_base(reading.kind, last_hidden_state=reading.kept["last_hidden_state"][:, kept])
        loss, logits = None, head_on(model.backbone, hidden, input_ids=request.input_ids[:, kept]).logits
    return RecurrentOutput(loss=loss, logits=logits, state=reading.state, hidden_states=reading.hidden_states)


def _losses(
    model: WindowRecurrentModel,
    request: Request,
    targets: Tensor,
    num_items_in_batch: Tensor | int | None,
    keeps_logits: bool,
    lesson: Lesson | None,
) -> Losses:
    refuse_router_loss(model.backbone.config)
    check_labels(targets, request.input_ids.shape, model.config.vocab_size)
    columns = real_columns(request.attention_mask, request.input_ids.shape)
    if request.attention_mask is not None:
        targets = targets.masked_fill(request.attention_mask == 0, IGNORED)
    return Losses(
        model.backbone,
        targets=pack(targets, columns)[0],
        count=(targets != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch,
        keeps_logits=keeps_logits and not (model.bottleneck_checkpointing and model.training),
        lesson=None if lesson is None else lesson.packed(columns),
    )


@dataclass(frozen=True)
class Losses(HiddenStates):
    """What is kept of each run of a language model: its share of the loss."""

    backbone: PreTrainedModel
    targets: Tensor  # [B, N'], without padding
    count: Tensor | int  # of the labels by which the loss is divided
    keeps_logits: bool
    lesson: Lesson | None

    def of(self, output: Any, run: Windows) -> Output:
        logits = head_on(self.backbone, output, input_ids=run.ids).logits
        targets = run.of_new_tokens(self.targets, IGNORED).long()
        total = nn.functional.cross_entropy(exact(logits).flatten(0, 1), targets.flatten(), reduction="sum")
        if self.lesson is not None and self.lesson.share:
            taught = self.lesson.divergence(logits, targets, output, run)
            total = (1 - self.lesson.share) * total + self.lesson.share * taught
        loss = share(total, self.count, None)
        return {"loss": loss, "logits": logits} if self.keeps_logits else {"loss": loss}
