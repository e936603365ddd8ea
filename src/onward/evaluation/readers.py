"""How each kind of model reads on from its state, and what its controls exchange or leave out of it.

To measure a further kind of model, write another reader, and name it in `READERS`.
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


class Reader(ABC):
    """Reads documents in pieces of `window` tokens, the last `overlap` of which the next piece has again."""

    memories: ClassVar[tuple[str, ...]]  # with what can be read: "true", what the document has left, and controls
    model: Any

    def __init__(self, model: Any):
        self.model = model
        self.window: int = model.config.window
        self.overlap: int = getattr(model.config, "overlap", 0)

    def read(self, ids: Tensor, mask: Tensor, state: Any, *, wants_logits: bool) -> tuple[Tensor, Any]:
        keep = 0 if wants_logits else 1
        output = self.model(ids, attention_mask=mask, state=state, use_cache=False, logits_to_keep=keep)
        return output.logits, output.state

    @abstractmethod
    def lent(self, state: Any, slot: int) -> Any:
        """What one row of the batch carries, for another document to read with."""

    @abstractmethod
    def swapped(self, state: Any, lent: Sequence[Any]) -> Any:
        """Each row with what another has lent it."""

    def ablated(self, state: Any) -> Any:
        """Each row with what it would carry at its document's start."""
        raise NotImplementedError


class WindowReader(Reader):
    memories = ("true", "swapped")

    def lent(self, state: Any, slot: int) -> tuple[Tensor, ...]:
        return tuple(part[slot : slot + 1] for part in state.memory)

    def swapped(self, state: Any, lent: Sequence[tuple[Tensor, ...]]) -> Any:
        return replace(state, memory=tuple(torch.cat(parts) for parts in zip(*lent, strict=True)))


class BlockReader(Reader):
    """Pieces are blocks, so that the controls take effect in every one of them.

    The keys and values of the window before stay those of the same reading. What controls change is all that
    comes from further back: the states, and the tokens that a memory layer remembers.
    """

    memories = ("true", "swapped", "ablated")

    def lent(self, state: BlockState, slot: int) -> BlockState:
        """What a row carries beyond its window, from its last complete block on."""
        layers = tuple(LayerState(_none_of(layer.recent), _closed(layer.cell), layer.memory) for layer in state.layers)
        row = replace(state, layers=layers).select([slot])
        return replace(row, tokens=(row.tokens[0] // self.window * self.window,))

    def swapped(self, state: BlockState, lent: Sequence[BlockState]) -> BlockState:
        others = BlockState.join(lent)
        layers = (
            LayerState(own.recent, other.cell, other.memory)
            for own, other in zip(state.layers, others.layers, strict=True)
        )
        # How much a row remembers follows from its tokens, and a document that has ended remembers less.
        return replace(state, tokens=others.tokens, layers=tuple(layers))

    def ablated(self, state: BlockState) -> BlockState:
        """As if the document had begun with the block before, and that block had not changed the states."""
        layers = []
        for module, layer in zip(self.model.model.layers, state.layers, strict=True):
            if layer.cell is not None:
                initial = module.cell.initial.to(layer.cell.vectors.dtype)
                layer = layer._replace(cell=CellState(initial.expand(state.batch_size, -1, -1)))
            layers.append(layer)
        # So many tokens are in the window, and of a memory no more are looked at.
        return replace(state, tokens=(self.window,) * state.batch_size, layers=tuple(layers))


def _none_of(pairs: Pairs) -> Pairs:
    return Pairs(*(part[:, :, :0] for part in pairs))


def _closed(cell: CellState | None) -> CellState | None:
    return None if cell is None else CellState(cell.vectors)


READERS: dict[type[PreTrainedModel], type[Reader]] = {
    WindowRecurrentForCausalLM: WindowReader,
    BlockRecurrentForCausalLM: BlockReader,
}


def reader_of(model: Any) -> Reader:
    for kind, reader in READERS.items():
        if isinstance(model, kind):
            return reader(model)
    raise TypeError(
        f"a {type(model).__name__} is not read in windows: use add_recurrence(model, ...), or "
        "plain(model, window, overlap) for the backbone alone"
    )
