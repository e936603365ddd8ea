"""The seam: extra keys and values in the attention of any backbone, without code per family.

transformers selects a backbone's attention function by name. Ours prepends the memory's keys and values and widens
the mask, then calls the function that the backbone would have called. The keys and values come from the backbone
itself: a layer, or only its attention, is run on the memory's vectors alone, through its own norm, projections and
rotary positions, until it calls attention. Outside of `inserting` the backbone is untouched.

Vectors live in one of two spaces: "layer" vectors enter a layer as its input does, and pass its norm first;
"attention" vectors enter its attention directly. (A mean of normalised vectors is shorter than they are and gets less
attention; a norm would undo that.)

All threads that call a backbone share it, and one window runs in it at a time. A thread that calls the backbone
itself meanwhile has no insertion and gets the backbone's usual output.

Shapes: B rows, t positions, V inserted vectors, H heads, D head width, k the backbone's width.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from threading import Lock, RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

T = TypeVar("T")
SUPPORTED = ("sdpa", "eager")  # the attention implementations that the seam can replace
ELSEWHERE = "from something other than its input, as layers that share them do; insert_at can name other layers"


@dataclass(frozen=True)
class Call:
    """What attention received in one call."""

    layer: int
    key: Tensor  # [B, H, V + t, D]
    value: Tensor
    visible: Tensor  # [B or 1, 1, t, V + t] bool


@dataclass
class Insertion:
    """The vectors inserted into one run of the backbone, and what is recorded during it."""

    vectors: dict[int, Tensor] = field(default_factory=dict)  # by layer, from 1: [B or 1, V, k]
    positions: list[float] = field(default_factory=list)  # of the V vectors, for rotary models
    visible: Tensor | None = None  # [B, V] bool; None if every row sees every vector
    space: str = "layer"  # what the vectors are: inputs of a "layer", or of its "attention"
    inserted: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # keys and values: [B, H, V, D]
    hidden: list[Tensor] = field(default_factory=list)  # each layer's (or attention's) input: [B, t, k];
    # in the space "layer" also the output of the last layer
    weights: dict[int, Tensor] | None = None  # by layer, attention weights [B, H, t, V + t], if requested
    calls: list[Call] | None = None  # of attention, if requested
    layer: int = 0  # the layer that runs now, counted from 1
    rotations: list[tuple[Any, Any, Any, list]] = field(default_factory=list)  # made for tokens, for vectors
    masks: dict[Any, tuple[Any, Tensor | None]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.positions)


class _Caught(Exception):  # noqa: N818 - not an error: it carries keys and values out of a layer
    def __init__(self, key: Tensor, value: Tensor):
        self.key, self.value = key, value


_insertion: ContextVar[Insertion | None] = ContextVar("insertion", default=None)
_catching: ContextVar[bool] = ContextVar("catching", default=False)


def backbone_layers(base: nn.Module, count: int) -> nn.ModuleList:
    """The list of a backbone's transformer layers."""
    for module in base.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"{type(base).__name__} keeps no list of {count} layers: its family is not supported")


def _searched_once(look: Callable[[Any], T]) -> Callable[[Any], T]:
    """Searches a module once: what is needed for every token must not search the backbone each time."""
    found: WeakKeyDictionary[nn.Module, T] = WeakKeyDictionary()

    @wraps(look)
    def searched(module: nn.Module) -> T:
        if module not in found:
            found[module] = look(module)
        return found[module]

    return searched


@_searched_once
def attention_of(layer: nn.Module) -> nn.Module:
    """The part of a layer that makes keys and values: the innermost module called attention."""
    named = [m for m in layer.modules() if "Attention" in type(m).__name__]
    for module in named:
        if not any("Attention" in type(inner).__name__ for inner in module.modules() if inner is not module):
            return module
    raise ValueError(f"{type(layer).__name__} has no attention of its own")


_locks: dict[int, tuple[ref[Any], RLock]] = {}  # not in the model, which could not be copied then
_making = Lock()


def lock_of(base: PreTrainedModel) -> RLock:
    """Held while anything in the backbone is replaced. Its configuration is changed as well, so backbones that share a
    configuration share the lock."""
    config, name = base.config, id(base.config)
    with _making:
        if name not in _locks or _locks[name][0]() is not config:
            _locks[name] = (ref(config, lambda gone: _forget(name, gone)), RLock())
        return _locks[name][1]


def _forget(name: int, gone: ref[Any]) -> None:
    if name in _locks and _locks[name][0] is gone:
        del _locks[name]


@contextmanager
def inserting(base: PreTrainedModel, layers: nn.ModuleList, insertion: Insertion) -> Iterator[Insertion]:
    """Inside of this context `base` attends to the inserted vectors, and its hidden states are collected."""
    config = base.config
    sites = list(layers) if insertion.space == "layer" else [attention_of(layer) for layer in layers]
    with lock_of(base), ExitStack() as undo:
        implementation = config._attn_implementation
        for site in sites:
            undo.enter_context(forward_replaced(site, _at_site))
        for layer in layers:
            undo.enter_context(forward_replaced(layer, _at_layer))
        if insertion.space == "layer":
            undo.enter_context(forward_replaced(layers[-1], _at_last_layer))
        if insertion.vectors and not insertion.inserted:
            for module in _rotary_modules(base):
                undo.enter_context(forward_replaced(module, _at_rotary))
        undo.callback(_insertion.reset, _insertion.set(insertion))
        undo.callback(setattr, config, "_attn_implementation", implementation)
        config._attn_implementation = f"onward_{implementation}"
        yield insertion


@contextmanager
def attending_eagerly(base: Any) -> Iterator[None]:
    """Attention in plain matrix products, whose weights are visible and whose FLOPs are counted."""
    with lock_of(base):
        before = base.config._attn_implementation
        base.config._attn_implementation = "eager"
        try:
            yield
        finally:
            base.config._attn_implementation = before


@contextmanager
def forward_replaced(module: nn.Module, replacement: Callable[..., Any]) -> Iterator[None]:
    """Inside of this context a call of `module` is a call of `replacement(module, forward, *args, **kwargs)`.

    Safe while other threads call the module, where a hook would change a dictionary that they iterate over.
    """
    before = module.__dict__.get("forward")  # accelerate puts its own there
    module.__dict__["forward"] = partial(replacement, module, module.forward)
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


@_searched_once
def _rotary_modules(base: nn.Module) -> list[nn.Module]:
    return [m for m in base.modules() if type(m).__name__.endswith("RotaryEmbedding")]


def _at_layer(layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if (insertion := _insertion.get()) is not None:
        insertion.layer += 1
    return forward(*args, **kwargs)


def _at_site(site: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    insertion = _insertion.get()
    if insertion is not None:
        hidden = args[0] if args else kwargs[_first_argument(type(site).forward)]
        insertion.hidden.append(hidden)
        vectors = insertion.vectors.get(insertion.layer)
        if vectors is not None and insertion.layer not in insertion.inserted:
            call = _signature(type(site)).bind(site, *args, **kwargs)
            insertion.inserted[insertion.layer] = _keys_and_values(site, forward, vectors, hidden, call, insertion)
    return forward(*args, **kwargs)


def _at_last_layer(layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    output = forward(*args, **kwargs)
    if (insertion := _insertion.get()) is not None:
        insertion.hidden.append(output[0] if isinstance(output, tuple) else output)
    return output


def _at_rotary(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    output = forward(*args, **kwargs)
    if (insertion := _insertion.get()) is not None:
        call = _signature(type(module)).bind(module, *args, **kwargs)
        insertion.rotations.append((forward, call, output, []))
    return output


@cache
def signature_of(forward: Any) -> inspect.Signature:
    return inspect.signature(forward)


def _signature(cls: type[nn.Module]) -> inspect.Signature:
    return signature_of(cls.forward)


@cache
def _first_argument(forward: Any) -> str:
    """A family's name for the hidden states that a layer or attention takes."""
    return list(signature_of(forward).parameters)[1]


@_searched_once
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


def _keys_and_values(
    site: nn.Module,
    forward: Callable[..., Any],
    vectors: Tensor,
    hidden: Tensor,
    call: inspect.BoundArguments,
    insertion: Insertion,
) -> tuple[Tensor, Tensor]:
    """Runs a layer or attention on the vectors alone until it calls attention, and takes their keys and values."""
    positions = torch.tensor([insertion.positions], device=vectors.device)
    changes: dict[str, Any] = {"attention_mask": None, "use_cache": False, "position_ids": positions}
    vectors = vectors.contiguous()
    arguments = dict(call.arguments)
    nested = [name for name, p in call.signature.parameters.items() if p.kind is p.VAR_KEYWORD and name in arguments]
    for name in nested:
        arguments[name] = dict(arguments[name])
    for given in (arguments, *(arguments[name] for name in nested)):
        for name, value in given.items():
            if value is hidden:  # some families pass it three times, as query, key and value
                given[name] = vectors
            elif isinstance(value, Cache):  # the memory must not enter the window's cache
                given[name] = None
            elif name in changes:
                given[name] = changes[name]
            elif name == "position_embeddings" and value is not None:
                given[name] = _rotate(value, positions, insertion)
    alone = inspect.BoundArguments(call.signature, arguments)  # type: ignore[arg-type]
    token = _catching.set(True)
    try:
        forward(*alone.args[1:], **alone.kwargs)
    except _Caught as caught:
        if caught.key.shape[2] != vectors.shape[1]:
            raise RuntimeError(f"layer {insertion.layer} makes its keys and values {ELSEWHERE}") from None
        return caught.key, caught.value
    finally:
        _catching.reset(token)
    raise RuntimeError(f"{type(site).__name__} did not call attention through the seam")


def _rotate(rotation: Any, positions: Tensor, insertion: Insertion) -> Any:
    """The rotary embedding of other positions, from the module that made `rotation`."""
    for forward, call, output, moved in insertion.rotations:
        parts = isinstance(output, (tuple, list)) and isinstance(rotation, (tuple, list))
        if output is rotation or (parts and output[0] is rotation[0]):
            if not moved:
                call.arguments["position_ids"] = positions
                moved.append(forward(*call.args[1:], **call.kwargs))
            return moved[0]
    raise RuntimeError("the backbone's rotary embedding comes from no module known to the seam")


def _attend(implementation: str):
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        if _catching.get():
            raise _Caught(key, value)
        insertion = _insertion.get()
        # Without a mask, sdpa is causal if told so; eager attention is not.
        causal = kwargs.get("is_causal")
        causal = implementation == "sdpa" and (getattr(module, "is_causal", True) if causal is None else causal)
        if insertion is not None and (pair := insertion.inserted.get(insertion.layer)) is not None:
            spread = (key.shape[0], -1, -1, -1)
            key = torch.cat([pair[0].to(key.dtype).expand(spread), key], dim=2)
            value = torch.cat([pair[1].to(value.dtype).expand(spread), value], dim=2)
            square = key.shape[2] == insertion.count + query.shape[2]
            whole = attention_mask is None and insertion.visible is None
            if whole and causal and square and query.shape[2] > 1:
                _note(insertion, query, key, value, None, causal)
                return _attend_without_mask(module, query, key, value, insertion.count, kwargs)
            attention_mask = _widen(attention_mask, query, key, causal, insertion)
        _note(insertion, query, key, value, attention_mask, causal)
        if implementation == "sdpa":
            return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        if attention_mask is not None and attention_mask.dtype == torch.bool:  # eager attention adds its mask
            attention_mask = torch.zeros_like(attention_mask, dtype=query.dtype).masked_fill(
                ~attention_mask, torch.finfo(query.dtype).min
            )
        eager = sys.modules[type(module).__module__].eager_attention_forward  # type: ignore[attr-defined]
        output, weights = eager(module, query, key, value, attention_mask, **kwargs)
        if insertion is not None and insertion.weights is not None:
            insertion.weights[insertion.layer] = weights
        return output, weights

    return attention


def _note(
    insertion: Insertion | None, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> None:
    if insertion is None or insertion.calls is None:
        return
    rows, columns = query.shape[2], key.shape[2]
    if mask is None:
        visible = torch.ones(1, 1, rows, columns, dtype=torch.bool, device=query.device)
        visible = visible.tril(columns - rows) if causal and rows > 1 else visible
    else:
        visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        visible = visible.expand(-1, -1, rows, columns)
    insertion.calls.append(Call(insertion.layer, key, value, visible))


def _attend_without_mask(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, count: int, kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Causal attention with a memory in front, by the fast kernel without a mask: empty queries for the memory make
    the causal triangle fit, and their output is dropped."""
    front = query.new_zeros(*query.shape[:2], count, query.shape[3])
    output, weights = sdpa_attention_forward(module, torch.cat([front, query], dim=2), key, value, None, **kwargs)
    return output[:, count:], weights


def _widen(mask: Tensor | None, query: Tensor, key: Tensor, causal: bool, insertion: Insertion) -> Tensor | None:
    """The mask with V columns in front. Layers share a mask, which is widened once for each kind of layer."""
    name = id(mask) if mask is not None else (causal, query.shape[2], key.shape[2])
    if name not in insertion.masks:
        insertion.masks[name] = (mask, _widened(mask, query, key, causal, insertion))  # keeps the id in use
    return insertion.masks[name][1]


def _widened(mask: Tensor | None, query: Tensor, key: Tensor, causal: bool, insertion: Insertion) -> Tensor | None:
    batch, _, rows, _ = query.shape
    columns, count, visible = key.shape[2], insertion.count, insertion.visible
    if mask is None:
        if visible is None and (rows == 1 or not causal):
            return None
        # No mask means "all", or "causal" aligned at the last token.
        mask = torch.ones(1, 1, rows, columns - count, dtype=torch.bool, device=query.device)
        if causal and rows > 1:
            mask = mask.tril(columns - count - rows)
    if visible is None:
        front = torch.ones(1, 1, 1, count, dtype=torch.bool, device=query.device)
    else:
        front = visible[:, None, None, :]
        mask = mask.expand(batch, -1, -1, -1)
    front = front.expand(*mask.shape[:3], count)
    if mask.dtype != torch.bool:
        front = torch.zeros(front.shape, dtype=mask.dtype, device=mask.device).masked_fill(
            ~front, torch.finfo(mask.dtype).min
        )
    return torch.cat([front, mask], dim=-1)


for _name, _mask in (("sdpa", sdpa_mask), ("eager", eager_mask)):
    AttentionInterface.register(f"onward_{_name}", _attend(_name))
    AttentionMaskInterface.register(f"onward_{_name}", _mask)
