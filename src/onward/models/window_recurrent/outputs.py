"""What window-recurrent models return."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from ..state import WindowState


@dataclass
class RecurrentOutput(ModelOutput):
    """What every window-recurrent model returns: the head's own outputs over the whole length, and the state."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    state: WindowState | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class Embeddings(ModelOutput):
    """Vectors of tokens [B, N, k], zero at padding, and of documents [B, k]."""

    tokens: Tensor | None = None
    documents: Tensor | None = None
    state: WindowState | None = None
