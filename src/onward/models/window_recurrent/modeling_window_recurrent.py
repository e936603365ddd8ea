"""Window-recurrent models: a backbone with any of transformers' heads, and a carrier between its windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
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

from ..checking import checked_ids, refuse_export, refuse_ids_outside
from ..fingerprints import origin_of
from ..losses import answer_loss, document_loss, labelled_loss
from ..state import WindowState
from .carriers import CARRIERS, Carrier
from .configuration_window_recurrent import WindowRecurrenceConfig
from .fitting import ID_MASK, TYPE_SHIFT
from .heads import answering, remember_kind
from .insertion import SUPPORTED, backbone_layers, signature_of
from .outputs import Embeddings, RecurrentOutput
from .reading import Output, Reader, Round
from .saving import SavesWhatWasAdded
from .threads import lock_of


def check_shape(name: str, value: Tensor, input_ids: Tensor) -> None:
    if value.shape != input_ids.shape:
        raise ValueError(
            f"{name} have the shape {tuple(value.shape)}, input_ids {tuple(input_ids.shape)}: they must agree"
        )


def collected_layers(read: Output) -> Any:
    """The hidden states of all layers, if they were asked for."""
    return tuple(read[name] for name in read if name.startswith("hidden.")) or None


# The models in which this thread, or task, has switched recurrence off.
_without_recurrence: ContextVar[frozenset[int]] = ContextVar("without_recurrence", default=frozenset())


class WindowRecurrentModel(SavesWhatWasAdded):
    """A bare encoder or decoder that reads any length window by window."""

    config_class = WindowRecurrenceConfig
    config: WindowRecurrenceConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    auto_class: ClassVar[Any] = AutoModel
    head: ClassVar[str] = "model"
    scored_by: ClassVar[tuple[str, ...]] = ()
    accepts_loss_kwargs = True  # Trainer tells how many labels an update has, and the loss is divided by that

    def __init__(self, config: WindowRecurrenceConfig, backbone: PreTrainedModel | None = None):
        if config.backbone is None:
            raise ValueError(
                "this configuration names no backbone: use onward.add_recurrence(model, config) on a live model"
            )
        config.hand_on_token_ids()
        super().__init__(config)
        self.backbone = self.auto_class.from_config(config.backbone) if backbone is None else backbone
        self.carrier = CARRIERS[config.carrier](config)
        self.bottleneck_checkpointing = self.backbone.is_gradient_checkpointing
        if self.bottleneck_checkpointing:
            self.backbone.gradient_checkpointing_disable()  # its layers would run again without the memory
        if self.can_generate():  # transformers looks for them beside the backbone, not in it
            for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
                setattr(self.generation_config, name, getattr(config, name))
        self.post_init()

    # -- what transformers asks of a model

    def initialize_weights(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the backbone comes with its weights, and a carrier starts itself."""

    def _initialize_missing_keys(self, is_quantized: bool) -> None:
        # A loaded backbone makes what is not saved: rotary frequencies, position ids.
        self.backbone._initialize_missing_keys(is_quantized)

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.backbone.get_output_embeddings()

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_output_embeddings(value)

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """Keeps only the state between windows, and runs each window again for its gradients."""
        self.bottleneck_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        self.bottleneck_checkpointing = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.bottleneck_checkpointing

    # -- recurrence

    @contextmanager
    def recurrence_disabled(self) -> Iterator[None]:
        """Gives the backbone back, bit for bit: calls go straight to it. Of this thread alone; others go on reading."""
        before = _without_recurrence.get()
        _without_recurrence.set(before | {id(self)})
        try:
            yield
        finally:
            _without_recurrence.set(before)

    @property
    def _disabled(self) -> bool:
        return id(self) in _without_recurrence.get()

    @property
    def reader(self) -> Reader:
        config = self.config
        base = cast(PreTrainedModel, self.backbone.base_model)
        with lock_of(base):  # or another thread's window may be running
            implementation = base.config._attn_implementation
        if implementation not in SUPPORTED:
            raise ValueError(
                f"the backbone's attention is {implementation!r}; recurrence works with {' or '.join(SUPPORTED)}"
            )
        return Reader(
            base,
            backbone_layers(base, config.num_hidden_layers),
            cast(Carrier, self.carrier),
            window=config.window,
            overlap=config.overlap,
            causal=bool(config.causal),
            pool_all=config.pooled_positions == "all",
            truncate_after=config.truncate_after,
            takes_positions="position_ids" in signature_of(type(base).forward).parameters,
            name=self.state_name,
            origin=origin_of(self, base, self.carrier),
        )

    @property
    def state_name(self) -> str:
        c = self.config
        carried = c.carrier
        if carried == "pooled":
            carried += f" ({c.pooling} of {c.pooled_layers} layers{', residual' if c.residual else ''})"
        elif carried == "spans" and len(c.spans_by_age) > 1:
            carried += f" ({', '.join(map(str, c.spans_by_age))} by age)"
        return (
            f"{c.backbone.model_type} {c.num_hidden_layers}x{c.hidden_size}, {carried}, window {c.window}, "
            f"overlap {c.overlap}, {c.vector_count} at {','.join(map(str, c.insertion_layers))}"
        )

    def _check_inputs(self, input_ids: Tensor | None, unknown: dict[str, Any]) -> Tensor:
        refuse_export(self)
        given = {name: value for name, value in unknown.items() if value is not None and value is not False}
        if "inputs_embeds" in given:
            raise ValueError("windows are cut from token ids: pass input_ids instead of inputs_embeds")
        if "output_attentions" in given:
            raise ValueError("attention maps of different windows do not form one: output_attentions is not there")
        if given:
            raise TypeError(f"{type(self).__name__} takes no argument {', '.join(map(repr, given))}")
        if input_ids is None:
            raise ValueError("input_ids is missing")
        return checked_ids(input_ids, self.config.vocab_size)

    def _prefix(self, prefix_length: int | Sequence[int] | Tensor | None, batch: int) -> list[int] | None:
        if prefix_length is None:
            return None
        if isinstance(prefix_length, int):
            return [prefix_length] * batch
        lengths = prefix_length.tolist() if isinstance(prefix_length, Tensor) else list(prefix_length)
        if len(lengths) != batch:
            raise ValueError(f"prefix_length has {len(lengths)} entries for {batch} rows")
        return lengths

    def _read(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        state: WindowState | None = None,
        starts_document: Tensor | Sequence[bool] | None = None,
        prefix_length: int | Sequence[int] | Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = False,
        finish: Any = None,
        revise: int = 0,
    ) -> tuple[Output, WindowState]:
        """Hidden states of every token, or what `finish(hidden, round)` makes of each window's."""
        base = self.backbone.base_model
        if output_hidden_states is None:  # on whichever of the two configurations it was set
            output_hidden_states = self.config.output_hidden_states or self.backbone.config.output_hidden_states
        ids = input_ids
        if token_type_ids is not None:
            check_shape("token_type_ids", token_type_ids, ids)
            types = getattr(self.config.backbone.get_text_config(), "type_vocab_size", None) or self.config.vocab_size
            refuse_ids_outside(token_type_ids, types, "token_type_ids", "the backbone {} types")
            ids = ids + (token_type_ids.long() << TYPE_SHIFT)

        def run(kwargs: dict[str, Any], current: Round) -> Output:
            if token_type_ids is not None:
                kwargs = {**kwargs, "token_type_ids": current.ids >> TYPE_SHIFT}
            if not self.config.causal:
                # An encoder keeps no cache; some of them do not know the word.
                kwargs = {name: value for name, value in kwargs.items() if name != "use_cache"}
            output = base(
                input_ids=current.ids & ID_MASK,
                output_hidden_states=output_hidden_states,
                return_dict=True,
                **kwargs,
            )
            remember_kind(base, output)
            last = output.last_hidden_state
            result = {"last_hidden_state": last} if finish is None else finish(last, current)
            for i, hidden in enumerate(output.hidden_states or ()):
                result[f"hidden.{i}"] = hidden
            if self._pools_first_tokens:
                result["window_first"] = output.last_hidden_state[:, 0]
                result["window_read"] = torch.tensor([n > 0 for n in current.lengths], device=ids.device)
            return result

        if use_cache is None:
            use_cache = not (self.training or torch.is_grad_enabled())
        return self.reader.read(
            ids,
            run,
            attention_mask=attention_mask,
            state=state,
            starts_document=starts_document,
            prefix=self._prefix(prefix_length, ids.shape[0]),
            use_cache=use_cache and bool(self.config.causal),
            checkpointing=self.bottleneck_checkpointing and self.training,
            revise=revise,
        )

    @property
    def _pools_first_tokens(self) -> bool:
        return False

    def _base_output(self, read: Output, state: WindowState) -> tuple[BaseOutput, WindowState]:
        """The backbone's own kind of output for the whole length."""
        hidden = read["last_hidden_state"]
        summary: Any = hidden
        if "window_first" in read:
            # Every window begins with the first token: its vectors are pooled over windows, as in the paper.
            unread = ~read["window_read"][..., None]  # [B, rounds, 1]
            first = read["window_first"].masked_fill(unread, -torch.inf).amax(1)
            if state.pooled is not None:
                first = torch.maximum(first, state.pooled)
            state = replace(state, pooled=first)
            first = first.masked_fill(first == -torch.inf, 0)  # rows that have read nothing yet
            summary = torch.cat([first[:, None], hidden[:, 1:]], dim=1)
        pooler = getattr(self.backbone.base_model, "pooler", None)
        output = BaseOutput(
            last_hidden_state=summary,
            pooler_output=pooler(summary) if pooler is not None else None,
            hidden_states=collected_layers(read),
        )
        return output, state

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
        """Reads `input_ids` [B, N] of any length N on from `state`.

        `starts_document` [B] marks rows that begin a new document: their state is dropped. `prefix_length`
        (a number, or one per row): the first tokens of a document that begin every one of its windows, such as
        a question and its separator. Labels are the head's own.
        """
        if self._disabled:
            return self._plain(input_ids, attention_mask, labels, locals(), kwargs)
        input_ids = self._check_inputs(input_ids, kwargs)
        read, state = self._read(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            state=state,
            starts_document=starts_document,
            prefix_length=self._default_prefix(prefix_length),
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        whole, state = self._base_output(read, state)
        if self.backbone is self.backbone.base_model:
            output = RecurrentOutput(**whole, state=state)
        else:
            given = {} if attention_mask is None else {"attention_mask": attention_mask}
            output = self._apply_head(whole, input_ids, given)
            output.state = state
            output.hidden_states = whole.hidden_states
        output = self._scored(output, labels, start_positions, end_positions, num_items_in_batch)
        return self._returned(output, return_dict)

    def _returned(self, output: Any, return_dict: bool | None) -> Any:
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()

    def _scored(
        self, output: Any, labels: Any, start_positions: Any, end_positions: Any, num_items_in_batch: Any
    ) -> Any:
        """The output with its loss. Heads of transformers make means, even where they are told of a larger batch."""
        given = {"labels": labels, "start_positions": start_positions, "end_positions": end_positions}
        given = {name: value for name, value in given.items() if value is not None}
        if not given:
            return output
        if set(given) != set(self.scored_by):
            wanted = " and ".join(self.scored_by) or "no labels"
            raise ValueError(f"{type(self).__name__} is scored by {wanted}, got {' and '.join(given)}")
        loss = self._with_every_parameter(self._loss(output, num_items_in_batch, **given))
        return type(output)(**{**output, "loss": loss})

    def _loss(self, output: Any, num_items_in_batch: Any, **given: Tensor) -> Tensor:
        raise NotImplementedError

    def _default_prefix(self, prefix_length: Any) -> Any:
        return prefix_length

    def _with_every_parameter(self, loss: Any) -> Any:
        """Text of one window never meets the carrier, but distributed training waits for every gradient."""
        if loss is None or not self.training:
            return loss
        return loss + sum(0.0 * p.sum() for p in self.carrier.parameters() if p.requires_grad)

    def _apply_head(self, whole: BaseOutput, ids: Tensor, given: dict[str, Any]) -> RecurrentOutput:
        with answering(self.backbone.base_model, whole):
            head = self.backbone(input_ids=ids, return_dict=True, **given)
        names = ("logits", "start_logits", "end_logits")
        return RecurrentOutput(**{name: getattr(head, name, None) for name in names})

    def _plain(self, input_ids: Any, attention_mask: Any, labels: Any, given: dict, kwargs: dict) -> Any:
        """A call that goes straight to the backbone."""
        names = ("token_type_ids", "start_positions", "end_positions", "use_cache", "output_hidden_states")
        passed = {name: given.get(name) for name in (*names, "return_dict")} | {"labels": labels} | kwargs
        count = given.get("num_items_in_batch")
        if count is not None and self.scored_by:
            passed |= {**dict.fromkeys(self.scored_by), "return_dict": True}
        passed = {name: value for name, value in passed.items() if value is not None}
        if given.get("state") is not None:
            raise ValueError("a state means nothing while recurrence is disabled")
        output = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **passed)
        if count is None or not self.scored_by:
            return output
        scored = self._scored(output, labels, given.get("start_positions"), given.get("end_positions"), count)
        return self._returned(scored, given.get("return_dict"))

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
        """Vectors of documents of any length: one per token, each from the window where it has the best
        context, and one per document.

        In an encoder, a token in the overlap of two windows is taken from the one in which it is further from
        the edge. `pooling`: "mean" over a document's tokens, its "first" or its "last".
        """
        if pooling not in ("mean", "first", "last"):
            raise ValueError(f"pooling={pooling!r} is not known: choose mean, first or last")
        input_ids = self._check_inputs(input_ids, {})
        revise = 0 if self.config.causal else self.config.overlap // 2
        read, state = self._read(
            input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, state=state, revise=revise
        )
        tokens = read["last_hidden_state"]
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
        return Embeddings(tokens=tokens, documents=documents, state=state)


class WindowRecurrentForTokenClassification(WindowRecurrentModel):
    """Labels every token of a document of any length."""

    auto_class = AutoModelForTokenClassification
    head = "token-classification"
    scored_by = ("labels",)

    def _loss(self, output: Any, num_items_in_batch: Any, **given: Tensor) -> Tensor:
        return labelled_loss(output.logits, given["labels"], num_items_in_batch)


class WindowRecurrentForQuestionAnswering(WindowRecurrentModel):
    """Finds an answer's start and end in a document of any length; `prefix_length` repeats the question."""

    auto_class = AutoModelForQuestionAnswering
    head = "question-answering"
    scored_by = ("start_positions", "end_positions")

    def _loss(self, output: Any, num_items_in_batch: Any, **given: Tensor) -> Tensor:
        return answer_loss(output.start_logits, output.end_logits, num_items_in_batch=num_items_in_batch, **given)


class WindowRecurrentForSequenceClassification(WindowRecurrentModel):
    """Classifies documents of any length.

    An encoder's first token begins every window, and its vectors are pooled by their maximum over windows, as
    in the paper; a decoder classifies by its last token.
    """

    auto_class = AutoModelForSequenceClassification
    head = "sequence-classification"
    scored_by = ("labels",)

    def _loss(self, output: Any, num_items_in_batch: Any, **given: Tensor) -> Tensor:
        problem_type = self.config.problem_type or self.backbone.config.problem_type
        return document_loss(output.logits, given["labels"], problem_type, num_items_in_batch)

    @property
    def _pools_first_tokens(self) -> bool:
        return not self.config.causal

    def _default_prefix(self, prefix_length: Any) -> Any:
        return 1 if prefix_length is None and self._pools_first_tokens else prefix_length

    def _apply_head(self, whole: BaseOutput, ids: Tensor, given: dict[str, Any]) -> RecurrentOutput:
        mask, padding = given.get("attention_mask"), self.backbone.config.get_text_config().pad_token_id
        if self.config.causal and mask is not None and padding is not None:
            # The head finds the last token as the last id that is not the padding's; the mask knows better.
            ids = torch.where(mask.bool(), int(padding == 0), padding)
        return super()._apply_head(whole, ids, given)
