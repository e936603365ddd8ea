"""Whether autocast is at work, for what it does not reach by itself."""

from __future__ import annotations

import torch


def autocast_dtype(device: str) -> torch.dtype | None:
    """What it lowers products to on devices of this type; None where it is off."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None
