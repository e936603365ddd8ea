"""Everything about a model that a call could change and must not."""

from __future__ import annotations

from typing import Any

from torch import nn


def anatomy(model: nn.Module) -> dict[tuple[str, str], Any]:
    """By module and attribute: what is there, by identity; of dictionaries (hooks, parameters, submodules) each
    entry. And every field of every configuration."""
    parts: dict[tuple[str, str], Any] = {}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            entries = list(value.items()) if isinstance(value, dict) else [("", value)]
            parts[name, attribute] = [(key, id(entry)) for key, entry in entries]
        config = getattr(module, "config", None)
        if config is not None:
            parts[name, "config fields"] = {key: repr(value) for key, value in vars(config).items()}
    return parts
