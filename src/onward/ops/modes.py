"""How torch runs an operation right now: with or without autograd, under autocast, while compiling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _NoContext:
    """Takes the place of an autograd context and keeps nothing."""

    needs_input_grad = (False,) * 8

    def save_for_backward(self, *tensors: Any) -> None:
        pass


def applied(function: type[torch.autograd.Function], *given: Any) -> Any:
    """`function.apply`, skipped without autograd: its overhead is noticeable when a single token is processed."""
    if torch.is_grad_enabled():
        return function.apply(*given)
    return function.forward(_NoContext(), *given)


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype that autocast lowers products to on devices of this type; None while it is off."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def full_precision(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, the dtype itself otherwise."""
    return torch.promote_types(dtype, torch.float32)


def may_look(x: Tensor) -> bool:
    """Whether looking at values costs nothing. On other devices it stops the queue; while a program is compiled or
    exported there are no values."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()
