"""Which model made a state: a few values of every weight tell models of one shape apart.

A state can always be continued by the live model that made it, however its weights have changed: training over
segments relies on that. Any other model must have the same weights. Fingerprints are only taken when needed: when a
model makes a state and its weights have changed since the last one, when it loads other weights, when a state is
saved, and when a state meets a model that did not make it.
"""

from __future__ import annotations

import base64
import hashlib
import weakref
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_EACH = 16
"""How many values are taken of each parameter, spread from its first to its last: models may differ in a few words of
their vocabulary only."""


@dataclass(frozen=True, eq=False)
class Fingerprint:
    shapes: str  # digest of the parameters' names and shapes
    dtype: str  # the coarsest of the parameters
    values: Tensor  # a few of each parameter, in single precision

    @staticmethod
    def of(*modules: nn.Module) -> Fingerprint | None:
        """None if the parameters are not whole in this process: on the meta device, or sharded."""
        named = [(name, p.detach()) for module in modules for name, p in module.named_parameters()]
        if not named or any(p.is_meta or isinstance(p, DTensor) or not p.numel() for _, p in named):
            return None
        shapes = "\n".join(f"{name} {tuple(p.shape)}" for name, p in named)
        kept = {p.dtype for _, p in named if p.is_floating_point()} or {torch.float32}
        coarsest = max(kept, key=lambda dtype: torch.finfo(dtype).eps)
        device = named[0][1].device  # kept there until compared, since looking stops the device's queue
        values = torch.cat([_some(p.flatten()).float().to(device) for _, p in named])
        return Fingerprint(hashlib.sha256(shapes.encode()).hexdigest(), str(coarsest).removeprefix("torch."), values)

    def agrees(self, other: Fingerprint) -> bool:
        """Whether the values are the same, up to the coarser of two precisions."""
        if self.shapes != other.shapes or self.values.shape != other.values.shape:
            return False
        ours, theirs = self.values.cpu(), other.values.cpu()
        if self.dtype == other.dtype:
            return torch.equal(ours.nan_to_num(), theirs.nan_to_num())
        eps = max(torch.finfo(getattr(torch, dtype)).eps for dtype in (self.dtype, other.dtype))
        return torch.allclose(ours, theirs, rtol=eps, atol=1e-6, equal_nan=True)

    def as_json(self) -> dict[str, str]:
        values = base64.b64encode(self.values.cpu().numpy().astype("<f4").tobytes()).decode()
        return {"shapes": self.shapes, "dtype": self.dtype, "values": values}

    @staticmethod
    def from_json(content: Any) -> Fingerprint:
        """The inverse of `as_json`; a ValueError says what is wrong."""
        if not isinstance(content, dict) or not all(
            isinstance(content.get(name), str) for name in ("shapes", "dtype", "values")
        ):
            raise ValueError("the fingerprint of its weights lacks shapes, dtype or values")
        dtype = getattr(torch, content["dtype"], None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"the fingerprint of its weights has the dtype {content['dtype']!r}")
        values = np.frombuffer(base64.b64decode(content["values"], validate=True), "<f4")
        return Fingerprint(content["shapes"], content["dtype"], torch.from_numpy(values.astype(np.float32)))


def _some(values: Tensor) -> Tensor:
    apart = max(1, len(values) // (_EACH - 1))
    return torch.cat([values[::apart][: _EACH - 1], values[-1:]])


def _changes(parameter: Tensor) -> int:
    """How often it was changed in place; torch does not count for inference tensors."""
    return 0 if parameter.is_inference() else parameter._version


class Origin:
    """Where a state comes from: a live model, or the fingerprint of its weights."""

    def __init__(self, known: Fingerprint | None, *parts: weakref.ref[nn.Module]):
        self._known, self._parts = known, parts
        self._versions = self._count_changes()

    def _count_changes(self) -> list[tuple[weakref.ref[Tensor], int]]:
        parts = [part() for part in self._parts]
        return [(weakref.ref(p), _changes(p)) for part in parts if part is not None for p in part.parameters()]

    def renew(self) -> None:
        """Notes the present weights, which make the next state."""
        if any((p := known()) is None or _changes(p) != version for known, version in self._versions):
            self._known = self.fingerprint
            self._versions = self._count_changes()

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Of the live model as it is now; the last one known if it is gone or has loaded other weights."""
        parts = [part() for part in self._parts]
        if parts and all(part is not None for part in parts):
            return Fingerprint.of(*cast(list[nn.Module], parts))
        return self._known

    def is_of(self, part: nn.Module) -> bool:
        return any(each() is part for each in self._parts)

    def forget_model(self) -> None:
        self._known, self._parts, self._versions = self.fingerprint, (), []

    def check(self, other: Origin | None) -> None:
        """Refuses a state that comes from other weights."""
        if other is None or other is self:
            return
        ours, theirs = self.fingerprint, other.fingerprint
        if ours is not None and theirs is not None and not ours.agrees(theirs):
            raise ValueError(
                "this state was made by a model of the same form, but with other weights or another vocabulary: a "
                "state can only be continued by the model that made it, so process its text again with this one"
            )

    def __deepcopy__(self, memo: dict) -> Origin:  # copied states share their origin
        return self

    def __reduce__(self) -> tuple:  # the model is not in other processes
        return Origin, (self.fingerprint,)


_ORIGINS: weakref.WeakKeyDictionary[nn.Module, Origin] = weakref.WeakKeyDictionary()
_WATCHED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def origin_of(model: nn.Module, *parts: nn.Module) -> Origin:
    """The origin of the states that a model makes, given the modules that they depend on."""
    origin = _ORIGINS.get(model)
    if origin is None:
        origin = _ORIGINS[model] = Origin(Fingerprint.of(*parts), *map(weakref.ref, parts))
        for part in parts:
            if part not in _WATCHED:
                part.register_load_state_dict_pre_hook(_others_are_loaded)
                _WATCHED.add(part)
    else:
        origin.renew()
    return origin


def _others_are_loaded(part: nn.Module, *loading: Any) -> None:
    """Loading other weights makes another model: earlier states no longer belong to it."""
    for model, origin in list(_ORIGINS.items()):
        if origin.is_of(part):
            origin.forget_model()
            del _ORIGINS[model]
