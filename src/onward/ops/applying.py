"""Autograd functions, without autograd where nobody asks for gradients."""

from __future__ import annotations

from typing import Any

import torch


class _Forgetful:
    """In the place of autograd's context: nothing is kept."""

    needs_input_grad = (False,) * 8

    def save_for_backward(self, *tensors: Any) -> None:
        pass


def applied(function: type[torch.autograd.Function], *given: Any) -> Any:
    """`function.apply`, whose own cost is a part of a single token's that can be seen."""
    if torch.is_grad_enabled():
        return function.apply(*given)
    return function.forward(_Forgetful(), *given)
