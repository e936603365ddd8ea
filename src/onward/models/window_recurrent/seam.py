"""The seam: what the attention of a backbone receives, and what it attends to, without code per family.

transformers selects a backbone's attention by name. Ours calls the function that the backbone would have called, and
while a step of a window-recurrent model runs, in this thread or task, the step decides what is attended to. Nothing
about the backbone changes during a call, so threads, models that share a backbone and calls inside of calls cannot see
each other's steps.

Shapes: B rows, H heads, t queries, n keys, D head width.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

SUPPORTED = ("sdpa", "eager")
"""The implementations of attention that a backbone may be loaded with."""
PREFIX = "onward_"


@dataclass(frozen=True)
class Call:
    """One call of attention by a layer of the backbone."""

    layer: int  # counted from 1
    module: nn.Module
    query: Tensor  # [B, H, t, D]
    key: Tensor  # [B, H or fewer, n, D]
    value: Tensor
    mask: Tensor | None  # what the backbone wants masked: bool, or added to scores; None for nothing, or the future
    options: dict[str, Any]
    eager: bool

    @property
    def causal(self) -> bool:
        """Whether no mask means that the future is hidden. Eager attention always has a mask where it hides it."""
        told = self.options.get("is_causal")
        return not self.eager and bool(getattr(self.module, "is_causal", True) if told is None else told)

    @property
    def scaling(self) -> float:
        given = self.options.get("scaling")
        return self.query.shape[-1] ** -0.5 if given is None else given

    @property
    def watched(self) -> bool:
        return _watched.get() is not None

    @property
    def local(self) -> int | None:
        """How many tokens back a layer with local attention sees."""
        return self.options.get("sliding_window") or None

    def visible(self) -> Tensor:
        """[B or 1, H or 1, t, n] bool: what each query may attend to."""
        rows, columns = self.query.shape[2], self.key.shape[2]
        if self.mask is None:
            if self.causal and rows > 1:
                return _before(rows, columns, self.query.device)
            return torch.ones(1, 1, rows, columns, dtype=torch.bool, device=self.query.device)
        if self.mask.dtype == torch.bool:
            return self.mask
        return self.mask > torch.finfo(self.mask.dtype).min / 2

    def own(self) -> tuple[Tensor, Tensor | None]:
        """What the backbone's own attention returns, bit for bit."""
        if self.eager:
            return self._eagerly(self.query, self.key, self.value, self.mask)
        return sdpa_attention_forward(self.module, self.query, self.key, self.value, self.mask, **self.options)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Attention with other queries, keys and values, in the backbone's own way."""
        watched = _watched.get()
        if self.eager or watched is not None:
            if mask is None and self.causal and query.shape[2] > 1:
                mask = _before(query.shape[2], key.shape[2], query.device)
            output, weights = self._eagerly(query, key, value, mask)
            if watched is not None:
                watched[self.layer] = weights
            return output, weights
        if mask is None or query.device.type != "cpu" or self._unusual:
            options = {**self.options, "scaling": self.scaling}  # the width of keys may have changed
            return sdpa_attention_forward(self.module, query, key, value, mask, **options)
        # As sdpa_attention_forward, but keys and values are not copied for each head of a group.
        dropout = self.options.get("dropout", 0.0)
        grouped = query.shape[1] != key.shape[1]
        output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=self.scaling, enable_gqa=grouped
        )
        return output.transpose(1, 2).contiguous(), None

    def _eagerly(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        eager = sys.modules[type(self.module).__module__].eager_attention_forward  # type: ignore[attr-defined]
        options = {"scaling": self.scaling, **self.options}
        return eager(self.module, query, key, value, None if mask is None else added(mask, query), **options)

    @property
    def plain(self) -> bool:
        """Whether attention is a softmax of products, and nothing watches its weights."""
        return not (self.eager or self.watched or self._unusual)

    @property
    def _unusual(self) -> bool:
        names = ("softcap", "position_bias", "s_aux", "cache")
        return any(self.options.get(name) is not None for name in names)


def _before(rows: int, columns: int, device: torch.device) -> Tensor:
    """[1, 1, t, n] bool: each of the last t columns sees itself and those before it."""
    return torch.ones(1, 1, rows, columns, dtype=torch.bool, device=device).tril(columns - rows)


def added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask that is added to scores, as eager attention does."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, torch.finfo(like.dtype).min)


class Step(Protocol):
    """A run of a backbone that decides what its attention attends to."""

    base: PreTrainedModel

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]: ...


_step: ContextVar[Step | None] = ContextVar("step", default=None)
_watched: ContextVar[dict[int, Any] | None] = ContextVar("watched", default=None)


def running() -> Any:
    """The step that runs in this thread or task."""
    return _step.get()


@contextmanager
def taking(step: Any) -> Iterator[None]:
    """Inside of this context the attention of `step.base` is the step's."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


@contextmanager
def watching_attention() -> Iterator[dict[int, Any]]:
    """Inside of this context steps attend in plain matrix products, whose FLOPs are counted. Yields the weights of each
    layer's last call, [B, H, t, n]."""
    token = _watched.set({})
    try:
        yield _watched.get()  # type: ignore[misc]
    finally:
        _watched.reset(token)


def _attention(implementation: str) -> Callable[..., Any]:
    @torch.compiler.disable  # a compiled graph would remember the step for which it was made
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        step = _step.get()
        layer = 0 if step is None else layer_numbers(step.base).get(module, 0)
        call = Call(layer, module, query, key, value, attention_mask, options, eager=implementation == "eager")
        return call.own() if step is None else step.attend(call)

    return attention


for _name, _mask in (("sdpa", sdpa_mask), ("eager", eager_mask)):
    AttentionInterface.register(PREFIX + _name, _attention(_name))
    AttentionMaskInterface.register(PREFIX + _name, _mask)


# -- a backbone, looked at once


def install(base: PreTrainedModel) -> None:
    """Lets the attention of a backbone go through the seam from now on; without a step it is what it was."""
    implementation = base.config._attn_implementation
    if implementation in SUPPORTED:
        base.config._attn_implementation = PREFIX + implementation
    elif implementation not in _INSTALLED:
        loading = " or ".join(map(repr, SUPPORTED))
        raise ValueError(
            f"the backbone's attention is {implementation!r}, and recurrence works with {loading}: choose one with "
            "model.backbone.set_attn_implementation(...)"
        )


def remove(base: PreTrainedModel) -> None:
    """The inverse of `install`."""
    base.config._attn_implementation = base.config._attn_implementation.removeprefix(PREFIX)


_INSTALLED = tuple(PREFIX + name for name in SUPPORTED)


def looked_at_once(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What is needed for every token must not search the backbone each time."""
    found: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()

    def looked(module: nn.Module) -> Any:
        if module not in found:
            found[module] = look(module)
        return found[module]

    return looked


@looked_at_once
def backbone_layers(base: PreTrainedModel) -> nn.ModuleList:
    """The list of a backbone's transformer layers."""
    count = base.config.get_text_config().num_hidden_layers
    for module in base.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"{type(base).__name__} keeps no list of {count} layers: its family is not supported")


@looked_at_once
def layer_numbers(base: PreTrainedModel) -> dict[nn.Module, int]:
    """The layer, counted from 1, that each module of a backbone is a part of."""
    return {part: n for n, layer in enumerate(backbone_layers(base), 1) for part in layer.modules()}


@looked_at_once
def first_position(base: PreTrainedModel) -> int:
    """The number of the first position: models like RoBERTa count from the padding id."""
    longest = getattr(base.config.get_text_config(), "max_position_embeddings", None)
    try:
        of_tokens = base.get_input_embeddings()
    except NotImplementedError:  # a decoder in a wrapper that does not define it
        of_tokens = None
    for module in base.modules():
        if isinstance(module, nn.Embedding) and module is not of_tokens:  # noqa: SIM102
            if module.num_embeddings == longest and module.padding_idx is not None:
                return module.padding_idx + 1
    return 0


@cache
def signature_of(forward: Any) -> inspect.Signature:
    return inspect.signature(forward)


def takes_positions(base: PreTrainedModel) -> bool:
    base = getattr(base, "_orig_mod", base)  # of torch.compile's wrapper
    return "position_ids" in signature_of(type(base).forward).parameters
