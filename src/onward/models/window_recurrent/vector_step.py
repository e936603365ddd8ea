"""A run of one window of every row, with a memory of hidden vectors.

The keys and values of the vectors come from the backbone itself: a layer, or only its attention, is run on the vectors
alone, through its own norm, projections and rotary positions, until it calls attention.

Vectors live in one of two spaces: "layer" vectors enter a layer as its input does, and pass its norm first;
"attention" vectors enter its attention directly. (A mean of normalised vectors is shorter than they are and gets less
attention; a norm would undo that.)

Shapes: B rows, w columns of the window, V inserted vectors, H heads, D head width, k the backbone's width.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import Cache, PreTrainedModel

from ..state import where_rows
from .carriers import Tensors, VectorCarrier
from .seam import Call, backbone_layers, looked_at_once, running, signature_of
from .step import Front, WindowStep

ELSEWHERE = "from something other than its input, as layers that share them do; insert_at can name other layers"


class _Caught(Exception):  # noqa: N818 - not an error: it carries keys and values out of a layer
    def __init__(self, key: Tensor, value: Tensor):
        self.key, self.value = key, value


class VectorStep(WindowStep):
    carrier: VectorCarrier

    def __init__(self, *args: Any):
        super().__init__(*args)
        state, opened = self.state, self.state.open
        self.hidden: list[Tensor] = []  # each layer's (or attention's) input: [B, w, k]; in "layer" the last output too
        self.vectors: dict[int, Tensor] = {}  # by layer, from 1: [B or 1, V, k]
        self.visible: Tensor | None = None
        self._catching = False
        self._rotations: list[tuple[Any, Any, Any, list]] = []  # made for tokens, for vectors
        if not any(state.has_memory):
            return
        # Inside a window the memory's keys and values are known, unless a row has just begun another window.
        self.inserted = dict(opened.inserted) if opened.inserted and all(opened.cached) else {}
        if not self.inserted:
            rows = len(state.has_memory)
            self.vectors = {layer: v.expand(rows, -1, -1) for layer, v in self.carrier.vectors(self.before).items()}
        self.visible = self._visible()

    def _visible(self) -> Tensor | None:
        visible = self.carrier.visible(self.before)
        if not all(self.state.has_memory):
            rows = torch.tensor(self.state.has_memory, device=self.base.device)[:, None].expand(-1, self.carrier.count)
            return rows if visible is None else visible & rows
        return None if visible is None or bool(visible.all()) else visible

    def front(self, call: Call) -> Front | None:
        if self._catching:
            raise _Caught(call.key, call.value)
        pair = self.inserted.get(call.layer)
        if pair is None:
            return None
        key, value = (x.expand(call.key.shape[0], -1, -1, -1) for x in pair)
        return Front(key, value, self.visible)

    # -- the vectors' keys and values

    def at_site(self, site: nn.Module, layer: int, args: tuple, kwargs: dict[str, Any]) -> None:
        """Before a layer, or its attention, runs on the window."""
        if self._catching:
            return
        hidden = args[0] if args else kwargs[_first_argument(type(site).forward)]
        self.hidden.append(hidden)
        vectors = self.vectors.get(layer)
        if vectors is not None and layer not in self.inserted:
            call = signature_of(type(site).forward).bind(site, *args, **kwargs)
            self.inserted[layer] = self._keys_and_values(site, layer, vectors, hidden, call)

    def at_rotary(self, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if not self._catching and self.vectors:
            call = signature_of(type(module).forward).bind(module, *args, **kwargs)
            self._rotations.append((module.forward, call, output, []))

    def _keys_and_values(
        self, site: nn.Module, layer: int, vectors: Tensor, hidden: Tensor, call: inspect.BoundArguments
    ) -> tuple[Tensor, Tensor]:
        """Runs a layer or attention on the vectors alone until it calls attention, and takes their keys and values."""
        positions = torch.tensor([self.carrier.positions()], device=vectors.device)
        changes: dict[str, Any] = {"attention_mask": None, "use_cache": False, "position_ids": positions}
        vectors = vectors.contiguous()
        arguments = dict(call.arguments)
        kinds = call.signature.parameters.items()
        nested = [name for name, p in kinds if p.kind is p.VAR_KEYWORD and name in arguments]
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
                    given[name] = self._rotated(value, positions)
        alone = inspect.BoundArguments(call.signature, arguments)  # type: ignore[arg-type]
        self._catching = True
        try:
            site.forward(*alone.args[1:], **alone.kwargs)
        except _Caught as caught:
            if caught.key.shape[2] != vectors.shape[1]:
                raise RuntimeError(f"layer {layer} makes its keys and values {ELSEWHERE}") from None
            return caught.key, caught.value
        finally:
            self._catching = False
        raise RuntimeError(f"{type(site).__name__} did not call attention through the seam")

    def _rotated(self, rotation: Any, positions: Tensor) -> Any:
        """The rotary embedding of other positions, from the module that made `rotation`."""
        for forward, call, output, moved in self._rotations:
            parts = isinstance(output, (tuple, list)) and isinstance(rotation, (tuple, list))
            if output is rotation or (parts and output[0] is rotation[0]):
                if not moved:
                    call.arguments["position_ids"] = positions
                    moved.append(forward(*call.args[1:], **call.kwargs))
                return moved[0]
        raise RuntimeError("the backbone's rotary embedding comes from no module known to the seam")

    # -- what is left

    def finish(self) -> None:
        """Summarises the window, and carries it if it closes."""
        run, opened = self.run, self.state.open
        keep = run.keep & (run.index < self.reader.pooled)
        summary = self.carrier.summarise(self.hidden, keep, run.index.expand_as(keep))
        if opened.summary is not None:
            merged = self.carrier.merge(opened.summary, summary)
            goes_on = torch.tensor([c > 0 for c in opened.cached], device=self.base.device)
            summary = merged if bool(goes_on.all()) else where_rows(goes_on, merged, summary)
        self._summary, self._memory = summary, self.before
        if any(run.closes[0]):
            had = torch.tensor(self.state.has_memory, device=self.base.device)
            carried = self.carrier.carry(summary, self.before, had)
            # Autocast may have lowered it; a state keeps the model's precision.
            carried = tuple(new.to(old.dtype) for new, old in zip(carried, self.before, strict=True))
            self._memory = carried if all(run.closes[0]) else where_rows(self.closing(0), carried, self.before)

    def memory(self) -> Tensors:
        return self._memory

    def summary(self) -> Tensors | None:
        return self._summary


# -- hooks: they stay on the backbone, and do nothing without a step that takes vectors


def hook_sites(base: PreTrainedModel) -> list[RemovableHandle]:
    """Lets steps see the inputs of a backbone's layers and of their attention. Returns the hooks that are new."""
    layers = backbone_layers(base)
    if _at_layer in layers[0]._forward_pre_hooks.values():  # copied models have them already
        return []
    hooks = [layers[-1].register_forward_hook(_after_layer)]
    for layer in layers:
        hooks.append(layer.register_forward_pre_hook(_at_layer, with_kwargs=True))
        hooks.append(attention_of(layer).register_forward_pre_hook(_at_attention, with_kwargs=True))
    for module in base.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            hooks.append(module.register_forward_hook(_at_rotary, with_kwargs=True))
    return hooks


def _step_of(space: str | None = None) -> VectorStep | None:
    step = running()
    takes = isinstance(step, VectorStep) and (space is None or step.carrier.space == space)
    return step if takes else None


def _at_layer(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
    if (step := _step_of("layer")) is not None:
        step.at_site(layer, step.reader.numbers.get(layer, 0), args, kwargs)


def _at_attention(site: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
    if (step := _step_of("attention")) is not None:
        step.at_site(site, step.reader.numbers.get(site, 0), args, kwargs)


def _after_layer(layer: nn.Module, args: tuple, output: Any) -> None:
    if (step := _step_of("layer")) is not None:
        step.hidden.append(output[0] if isinstance(output, tuple) else output)


def _at_rotary(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
    if (step := _step_of()) is not None:
        step.at_rotary(module, args, kwargs, output)


@looked_at_once
def attention_of(layer: nn.Module) -> nn.Module:
    """The part of a layer that makes keys and values: the innermost module called attention."""
    named = [m for m in layer.modules() if "Attention" in type(m).__name__]
    for module in named:
        if not any("Attention" in type(inner).__name__ for inner in module.modules() if inner is not module):
            return module
    raise ValueError(f"{type(layer).__name__} has no attention of its own")


@cache
def _first_argument(forward: Any) -> str:
    """A family's name for the hidden states that a layer or attention takes."""
    return list(signature_of(forward).parameters)[1]
