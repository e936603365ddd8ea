"""A backbone's own head on hidden states that were computed in windows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from .insertion import forward_replaced, lock_of

_answer: ContextVar[tuple[nn.Module, ModelOutput] | None] = ContextVar("answer", default=None)
_kinds: WeakKeyDictionary[nn.Module, type[ModelOutput]] = WeakKeyDictionary()


def remember_kind(base: nn.Module, output: ModelOutput) -> None:
    """Notes the kind of output of a base, whose fields its heads use: a router's logits, shared keys and values."""
    if base not in _kinds:
        _kinds[base] = type(output)


def _as_from_base(base: nn.Module, collected: ModelOutput) -> ModelOutput:
    """What was collected over windows as an output of the base's own kind, other fields being None."""
    kind = _kinds.get(base, type(collected))
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(**{name: value for name, value in collected.items() if name in known})


@contextmanager
def answering(base: Any, collected: ModelOutput) -> Iterator[None]:
    """Inside of this context `base` returns what was `collected`, whatever its input, so that a head uses it.

    Some heads call a part of the base (OPT's decoder) instead of the base itself.
    """

    def answer(module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
        given = _answer.get()
        return given[1] if given is not None and given[0] is base else forward(*args, **kwargs)

    with lock_of(base), ExitStack() as undo:
        for module in (base, *(child for child in base.children() if isinstance(child, PreTrainedModel))):
            undo.enter_context(forward_replaced(module, answer))
        undo.callback(_answer.reset, _answer.set((base, _as_from_base(base, collected))))
        yield


def refuse_router_loss(config: PreTrainedConfig) -> None:
    """A router's loss balances experts over all tokens of a batch, and no window has them all."""
    if getattr(config.get_text_config(), "output_router_logits", False):
        raise ValueError(
            "the backbone's configuration asks for the auxiliary loss of its router (output_router_logits=True), which "
            "is not supported over windows: set model.config.output_router_logits = False before adding recurrence, or "
            "model.backbone.config.output_router_logits = False"
        )
