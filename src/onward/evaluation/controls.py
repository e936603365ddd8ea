"""How each kind of model is run over a document piece by piece, and how the controls change what it carries.

To evaluate another kind of model, write another subclass of `Controls` and add it to `CONTROLS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models.block_recurrent import BlockRecurrentForCausalLM, BlockState
from ..models.block_recurrent.state import CellState, LayerState, Pairs
from ..models.window_recurrent import WindowRecurrentForCausalLM


class Controls(ABC):
    """Pieces have `window` tokens, and the last `overlap` tokens of each are repeated in the next."""

    memories: ClassVar[tuple[str, ...]]  # "true" is what the document itself has carried; the others are controls

    def __init__(self, model: Any):
        self.model = model
        self.window: int = model.config.window
        self.overlap: int = getattr(model.config, "overlap", 0)

    @abstractmethod
    def lent(self, state: Any, slot: int) -> Any:
        """What one row of the batch carries, to be used by another document."""

    @abstractmethod
    def swapped(self, state: Any, lent: Sequence[Any]) -> Any:
        """Each row with what another row has lent it."""

    def ablated(self, state: Any) -> Any:
        """Each row with what it carries at the start of a document."""
        raise NotImplementedError


class WindowControls(Controls):
    memories = ("true", "swapped")

    def lent(self, state: Any, slot: int) -> tuple[Tensor, ...]:
        return tuple(part[slot : slot + 1] for part in state.memory)

    def swapped(self, state: Any, lent: Sequence[tuple[Tensor, ...]]) -> Any:
        return replace(state, memory=tuple(torch.cat(parts) for parts in zip(*lent, strict=True)))


class BlockControls(Controls):
    """Pieces are blocks, so that the controls take effect in every block.

    The keys and values of the window before are always the document's own. The controls change everything from
    further back: the states, and the tokens that a memory layer remembers.
    """

    memories = ("true", "swapped", "ablated")

    def lent(self, state: BlockState, slot: int) -> BlockState:
        """What a row carries beyond its window, as of its last complete block."""
        layers = []
        for layer in state.layers:
            cell = None if layer.cell is None else CellState(layer.cell.vectors)
            layers.append(LayerState(Pairs(*(part[:, :, :0] for part in layer.recent)), cell, layer.memory))
        row = replace(state, layers=tuple(layers)).select([slot])
        return replace(row, tokens=(row.tokens[0] // self.window * self.window,))

    def swapped(self, state: BlockState, lent: Sequence[BlockState]) -> BlockState:
        others = BlockState.join(lent)
        layers = (other._replace(recent=own.recent) for own, other in zip(state.layers, others.layers, strict=True))
        # The number of remembered tokens follows from `tokens`: a document that has ended remembers fewer.
        return replace(state, tokens=others.tokens, layers=tuple(layers))

    def ablated(self, state: BlockState) -> BlockState:
        """As if the document had begun with the block before, and that block had not changed the states."""
        layers = []
        for module, layer in zip(self.model.model.layers, state.layers, strict=True):
            if layer.cell is not None:
                initial = module.cell.initial.to(layer.cell.vectors.dtype)
                layer = layer._replace(cell=CellState(initial.expand(state.batch_size, -1, -1)))
            layers.append(layer)
        # Only the tokens of one window count as seen, so nothing before them is looked up in a memory.
        return replace(state, tokens=(self.window,) * state.batch_size, layers=tuple(layers))


CONTROLS: dict[type[PreTrainedModel], type[Controls]] = {
    WindowRecurrentForCausalLM: WindowControls,
    BlockRecurrentForCausalLM: BlockControls,
}


def controls_of(model: Any) -> Controls:
    for kind, controls in CONTROLS.items():
        if isinstance(model, kind):
            return controls(model)
    raise TypeError(
        f"a {type(model).__name__} has no windows: use add_recurrence(model, ...), or plain(model, window, overlap) "
        "for the backbone alone"
    )
