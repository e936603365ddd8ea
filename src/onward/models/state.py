"""The state that a model carries from call to call: a plain value, never changed in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor


def map_tensors(fn: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Applies `fn` to every tensor in nested tuples and dictionaries."""
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, tuple):
        items = (map_tensors(fn, item) for item in value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: map_tensors(fn, item) for key, item in value.items()}
    return value


def where_rows(rows: Tensor, yes: Any, no: Any) -> Any:
    """Row by row from one or the other of two equally shaped nests of tensors. rows: [B] bool."""
    if isinstance(yes, Tensor):
        return torch.where(rows.view(-1, *[1] * (yes.dim() - 1)), yes, no)
    items = (where_rows(rows, a, b) for a, b in zip(yes, no, strict=True))
    return type(yes)(*items) if hasattr(yes, "_fields") else tuple(items)


class CarriedState:
    """What the states of all models share. `_map` applies a function to every tensor."""

    model: str  # the `state_name` of the model that it belongs to

    @property
    def batch_size(self) -> int:
        raise NotImplementedError

    def _map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        raise NotImplementedError

    def detach(self) -> Self:
        """The same values without their graph: back-propagation ends here."""
        return self._map(Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Moved to a device, or floating-point values cast to a dtype."""
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        return self._map(lambda t: t.to(device, dtype if t.is_floating_point() else None, non_blocking))

    def _check_rows(self, rows: Sequence[int] | Tensor) -> list[int]:
        order = rows.tolist() if isinstance(rows, Tensor) else list(rows)
        if any(isinstance(row, (bool, np.bool_)) for row in order):
            raise TypeError(f"rows must be row numbers, got {order}: True and False are for reset(marks)")
        if order and not 0 <= min(order) <= max(order) < self.batch_size:
            raise IndexError(f"rows {order} of a state of {self.batch_size} rows")
        return order

    def _check_marks(self, rows: Sequence[bool] | Tensor) -> list[bool]:
        marks = rows.tolist() if hasattr(rows, "tolist") else rows
        if not isinstance(marks, Sequence) or not all(isinstance(mark, (bool, np.bool_)) for mark in marks):
            given = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else repr(rows)
            raise TypeError(f"starts_document, or marks to reset, must be one True or False per row, got {given}")
        marks = [bool(mark) for mark in marks]
        if len(marks) != self.batch_size:
            raise ValueError(f"starts_document, or marks to reset, has {len(marks)} values for {self.batch_size} rows")
        return marks


def check_state(state: Any, kind: type[CarriedState], model: str, rows: int) -> None:
    """Refuses what is no state of this model and batch."""
    if not isinstance(state, kind):
        raise TypeError(
            f"state must be a {kind.__name__} from the output of an earlier call, got {type(state).__name__}; "
            f"{kind.__name__}.load(path) loads a saved one"
        )
    if state.model != model:
        raise ValueError(
            f"this state comes from another model ({state.model}), this one is {model}: a state can only be continued "
            "by the model and configuration that made it"
        )
    if state.batch_size != rows:
        raise ValueError(f"the state has {state.batch_size} rows, and the input {rows}: use state.select(rows)")
