"""Window recurrence in equations, for reading and for tests: loops, one document, no batch.

The fast model uses a seam, a cache and masks; here everything is a loop over windows, layers, heads and positions. It
covers three decoders (GPT-2, Llama, Mistral) and one encoder (BERT); vectors only GPT-2 and BERT.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..configuration_window_recurrent import WindowRecurrenceConfig as Config
from . import slots, vectors
from .backbones import BERT, GPT2, LLAMA, Backbone
from .slots import Kept

__all__ = ["BERT", "GPT2", "LLAMA", "Backbone", "Kept", "read_document"]


def read_document(
    backbone: Any, carrier: Any, config: Config, ids: Tensor, memory: Any = None
) -> tuple[Tensor, Tensor | None, Any]:
    """Hidden states [N, k] and logits [N, vocabulary] of every token of ids [N], each from the first window that holds
    it, and the memory after the last closed window. `memory` comes from before `ids`; without it a document starts,
    and its first window runs unmodified.
    """
    read_window: Any = slots.read_window if config.takes_slots else vectors.read_window
    hidden: list[Tensor] = []
    start = 0
    while len(hidden) < len(ids):
        window = ids[start : start + config.window]
        closes = len(window) == config.window or not backbone.causal  # a decoder's last one stays open until it is full
        states, memory = read_window(backbone, carrier, config, window, memory, closes)
        hidden.extend(states[len(hidden) - start :])
        start += config.window - config.overlap
    whole = torch.stack(hidden)
    return whole, backbone.logits(whole), memory
