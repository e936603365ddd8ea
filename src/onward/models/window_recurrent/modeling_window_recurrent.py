"""Window-recurrent models: a backbone with any of transformers' heads, and a carrier between its windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions as BaseOutput
from transformers.modeling_outputs import ModelOutput

from ...utils.fields import FieldError
from ..checking import checked_ids
from ..fingerprints import origin_of
from ..losses import ANSWERS, CLASSES, DOCUMENTS
from .assembling import Output
from .carriers import Carrier, SlotCarrier, make_carrier
from .configuration_window_recurrent import WindowRecurrenceConfig
from .disabling import CanBeDisabled, unless_disabled
from .heads import as_from_base, head_on
from .planning import Windows
from .reading import HiddenStates, Reader, Reading
from .request import Request
from .seam import install
from .state import WindowState
from .turning import turnings_of
from .vector_step import hook_sites


@dataclass
class RecurrentOutput(ModelOutput):
    """What every window-recurrent model returns: the head's own outputs over the whole length, and the state."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    state: WindowState | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class Embeddings(ModelOutput):
    """Vectors of tokens [B, N, k], zero at padding, and of documents [B, k]."""

    tokens: Tensor | None = None
    documents: Tensor | None = None
    state: WindowState | None = None


class FirstTokens(HiddenStates):
    """What is kept of each run of an encoder that classifies documents: the first vectors of its windows, too."""

    def of(self, output: Any, run: Windows) -> Output:
        first, read = output.last_hidden_state[:, 0], run.keep.any(1)
        return {**super().of(output, run), "window_first": first, "window_read": read}


class WindowRecurrentModel(CanBeDisabled):
    """A bare encoder or decoder that processes any length window by window."""

    config_class = WindowRecurrenceConfig
    config: WindowRecurrenceConfig
    base_model_prefix = "backbone"
    _supports_sdpa = True
    auto_class: ClassVar[Any] = AutoModel
    head: ClassVar[str] = "model"
    not_supported: ClassVar = {
        "inputs_embeds": "windows are cut from token ids; pass input_ids",
        "output_attentions": "the attention maps of different windows do not form one",
    }

    def __init__(self, config: WindowRecurrenceConfig, backbone: PreTrainedModel | None = None):
        if config.backbone is None:
            raise ValueError(
                "this configuration names no backbone: use onward.add_recurrence(model, config) on a live model"
            )
        config.hand_on_token_ids()
        super().__init__(config)
        self.backbone = self.auto_class.from_config(config.backbone) if backbone is None else backbone
        self.carrier = make_carrier(config)
        base = cast(PreTrainedModel, self.backbone.base_model)
        install(base)
        if self.carrier.takes_vectors:
            hook_sites(base)
        self.bottleneck_checkpointing = self.backbone.is_gradient_checkpointing
        if self.bottleneck_checkpointing:
            self.backbone.gradient_checkpointing_disable()  # it would run layers again without the memory
        if self.can_generate():  # transformers does not look for them in the backbone
            for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
                setattr(self.generation_config, name, getattr(config, name))
        self.post_init()

    # -- required by transformers

    def initialize_weights(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the backbone comes with its weights, and a carrier initialises itself."""

    def _initialize_missing_keys(self, is_quantized: bool) -> None:
        # The backbone computes what is not saved: rotary frequencies, position ids.
        self.backbone._initialize_missing_keys(is_quantized)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.backbone.get_output_embeddings()

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_output_embeddings(value)

    # -- recurrence

    def set_slots(self, slots: int | None) -> None:
        """Changes how many keys and values each head has beside its window; None for the carrier's own number. What was
        learned serves any number, except a constant's, of whose slots the last are used. States that were made
        before do not fit any more."""
        config, carrier = self.config.with_slots(slots), cast(SlotCarrier, self.carrier)
        if (most := carrier.most) is not None and config.vector_count > most:
            raise FieldError("slots", slots, f"carrier={config.carrier!r} has learned {most}; choose at most {most}")
        carrier.resize(config.vector_count)
        self.config.slots = slots

    @property
    def reader(self) -> Reader:
        config, carrier = self.config, cast(Carrier, self.carrier)
        base = cast(PreTrainedModel, self.backbone.base_model)
        install(base)  # another attention may have been chosen since
        return Reader(
            base,
            carrier,
            config,
            name=self.state_name,
            origin=origin_of(self, base, carrier),
            turnings=turnings_of(base) if carrier.takes_slots else (),
            training=self.training,
            checkpointing=self.bottleneck_checkpointing and self.training,
            hidden_states=config.output_hidden_states or self.backbone.config.output_hidden_states,
        )

    @property
    def state_name(self) -> str:
        c = self.config
        carried = c.carrier
        if carried == "pooled":
            carried += f" ({c.pooling} of {c.pooled_layers} layers{', residual' if c.residual else ''})"
        elif carried == "spans" and len(c.spans_by_age) > 1:
            carried += f" ({', '.join(map(str, c.spans_by_age))} by age)"
        elif carried in ("selected", "matched"):
            carried += f" (by {c.score})"
        if c.takes_slots and c.sinks != 1:
            carried += f", {c.sinks} sinks"
        return (
            f"{c.backbone.model_type} {c.num_hidden_layers}x{c.hidden_size}, {carried}, window {c.window}, "
            f"overlap {c.overlap}, {c.vector_count} at {','.join(map(str, c.insertion_layers))}"
        )

    def _checked_ids(self, input_ids: Tensor | None, unknown: dict[str, Any]) -> Tensor:
        self.refuse_arguments(unknown)
        if input_ids is None:
            raise ValueError("input_ids is missing")
        return checked_ids(input_ids, self.config.vocab_size)

    @property
    def _wanted(self) -> HiddenStates:
        return HiddenStates()

    def _base_output(self, reading: Reading) -> tuple[BaseOutput, WindowState]:
        """The output of the whole length, and the state."""
        read, state = reading.kept, reading.state
        hidden = read["last_hidden_state"]
        summary: Any = hidden
        if "window_first" in read:
            # Every window begins with the first token, whose vectors are pooled over windows, as in the paper.
            unread = ~read["window_read"][..., None]  # [B, rounds, 1]
            first = read["window_first"].masked_fill(unread, -torch.inf).amax(1)
            if state.pooled is not None:
                first = torch.maximum(first, state.pooled)
            state = replace(state, pooled=first)
            first = first.masked_fill(first == -torch.inf, 0)  # rows without a window yet
            summary = torch.cat([first[:, None], hidden[:, 1:]], dim=1)
        pooler = getattr(self.backbone.base_model, "pooler", None)
        output = BaseOutput(
            last_hidden_state=summary,
            pooler_output=pooler(summary) if pooler is not None else None,
            hidden_states=reading.hidden_states,
        )
        return output, state

    @unless_disabled
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: WindowState | None = None,
        starts_document: Tensor | Sequence[bool] | None = None,
        prefix_length: int | Sequence[int] | Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> RecurrentOutput | tuple:
        """Processes `input_ids` [B, N] of any length N, continuing from `state`.

        `starts_document` [B] marks rows that begin a new document: their state is dropped. `prefix_length` (a number,
        or one per row): the first tokens of a document that begin every one of its windows, such as a question and
        its separator. Labels are those of the head.
        """
        input_ids = self._checked_ids(input_ids, kwargs)
        request = Request(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            state=state,
            starts_document=starts_document,
            prefix_length=self._default_prefix(prefix_length),
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        reading = self.reader.read(request, self._wanted)
        whole, state = self._base_output(reading)
        if self.backbone is self.backbone.base_model:
            output = RecurrentOutput(**whole, state=state)
        else:
            given = {} if attention_mask is None else {"attention_mask": attention_mask}
            output = self._apply_head(as_from_base(reading.kind, **whole), input_ids, given)
            output.state = state
            output.hidden_states = whole.hidden_states
        targets = {"labels": labels, "start_positions": start_positions, "end_positions": end_positions}
        return self.returned(self.with_loss(output, num_items_in_batch, **targets), return_dict)

    @property
    def _problem_type(self) -> str | None:
        return self.config.problem_type or self.backbone.config.problem_type

    def _default_prefix(self, prefix_length: Any) -> Any:
        return prefix_length

    def _reaching_all_parameters(self, loss: Any) -> Any:
        """A single window does not use the carrier, but distributed training waits for every gradient."""
        if loss is None or not self.training:
            return loss
        return loss + sum(0.0 * p.sum() for p in self.carrier.parameters() if p.requires_grad)

    def _apply_head(self, whole: ModelOutput, ids: Tensor, given: dict[str, Any]) -> RecurrentOutput:
        head = head_on(self.backbone, whole, input_ids=ids, **given)
        names = ("logits", "start_logits", "end_logits")
        return RecurrentOutput(**{name: getattr(head, name, None) for name in names})

    def embed(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        pooling: str = "mean",
        normalize: bool = False,
        state: WindowState | None = None,
    ) -> Embeddings:
        """Vectors of documents of any length: one per token, from the window where it has the best context, and one
        per document.

        In an encoder, a token in the overlap of two windows is taken from the one in which it is further from the
        edge. `pooling`: "mean" over a document's tokens, its "first" or its "last".
        """
        if pooling not in ("mean", "first", "last"):
            raise FieldError("pooling", pooling, "choose mean, first or last")
        input_ids = self._checked_ids(input_ids, {})
        request = Request(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            state=state,
            output_hidden_states=False,
            revise=0 if self.config.causal else self.config.overlap // 2,
        )
        reading = self.reader.read(request, HiddenStates())
        tokens = reading.kept["last_hidden_state"]
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        if pooling == "mean":
            weight = mask.to(tokens.dtype)
            documents = (tokens * weight[..., None]).sum(1) / weight.sum(1, keepdim=True).clamp(min=1)
        else:
            places = torch.arange(mask.shape[1], device=mask.device)
            at = (places * mask).argmax(1) if pooling == "last" else mask.argmax(1)
            documents = tokens[torch.arange(len(tokens), device=at.device), at]
        if normalize:
            documents = nn.functional.normalize(documents, dim=-1)
        return Embeddings(tokens=tokens, documents=documents, state=reading.state)


class WindowRecurrentForTokenClassification(WindowRecurrentModel):
    """Labels every token of a document of any length."""

    auto_class = AutoModelForTokenClassification
    head = "token-classification"
    head_loss = CLASSES


class WindowRecurrentForQuestionAnswering(WindowRecurrentModel):
    """Finds an answer's start and end in a document of any length; `prefix_length` repeats the question."""

    auto_class = AutoModelForQuestionAnswering
    head = "question-answering"
    head_loss = ANSWERS


class WindowRecurrentForSequenceClassification(WindowRecurrentModel):
    """Classifies documents of any length.

    An encoder's first token begins every window, and its vectors are pooled by their maximum over windows, as in the
    paper; a decoder classifies by its last token.
    """

    auto_class = AutoModelForSequenceClassification
    head = "sequence-classification"
    head_loss = DOCUMENTS

    @property
    def _wanted(self) -> HiddenStates:
        return HiddenStates() if self.config.causal else FirstTokens()

    def _default_prefix(self, prefix_length: Any) -> Any:
        return 1 if prefix_length is None and not self.config.causal else prefix_length

    def _apply_head(self, whole: ModelOutput, ids: Tensor, given: dict[str, Any]) -> RecurrentOutput:
        mask, padding = given.get("attention_mask"), self.backbone.config.get_text_config().pad_token_id
        if self.config.causal and mask is not None and padding is not None:
            # The head takes the last id that is not padding's for the last token, which the mask knows better.
            ids = torch.where(mask.bool(), int(padding == 0), padding)
        return super()._apply_head(whole, ids, given)
