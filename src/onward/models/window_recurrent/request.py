"""What a call asks of a window-recurrent model: the options that the forwards of all heads share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checking import refuse_ids_outside
from .configuration_window_recurrent import WindowRecurrenceConfig
from .state import WindowState


@dataclass(frozen=True)
class Request:
    """Options are what `WindowRecurrentModel.forward` says; None leaves the choice to the model."""

    input_ids: Tensor  # [B, N], checked
    attention_mask: Tensor | None = None
    token_type_ids: Tensor | None = None
    state: WindowState | None = None
    starts_document: Tensor | Sequence[bool] | None = None
    prefix_length: int | Sequence[int] | Tensor | None = None
    use_cache: bool | None = None
    output_hidden_states: bool | None = None
    revise: int = 0  # outputs of this many tokens are replaced by those of the next window, which sees what follows

    def tokens(self, config: WindowRecurrenceConfig) -> Tensor:
        """Ids [B, N], or [B, N, 2] with each token's type behind its id."""
        types = self.token_type_ids
        if types is None:
            return self.input_ids
        if types.shape != self.input_ids.shape:
            given, wanted = tuple(types.shape), tuple(self.input_ids.shape)
            raise ValueError(f"token_type_ids have the shape {given}, the input {wanted}: they must agree")
        count = getattr(config.backbone.get_text_config(), "type_vocab_size", None) or config.vocab_size
        refuse_ids_outside(types, count, "token_type_ids", "the backbone {} types")
        return torch.stack([self.input_ids, types.long()], -1)

    @property
    def prefixes(self) -> list[int] | None:
        """How many tokens begin every window, by row."""
        rows, length = len(self.input_ids), self.prefix_length
        if length is None:
            return None
        if isinstance(length, int):
            return [length] * rows
        lengths = length.tolist() if isinstance(length, Tensor) else list(length)
        if len(lengths) != rows:
            raise ValueError(f"prefix_length has {len(lengths)} entries for {rows} rows")
        return lengths
