"""One layer: sliding attention, an MLP and, in recurrent layers, state vectors carried from block to block."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers.activations import ACT2FN

from ...ops.norms import RMSNorm
from ..state import where_rows
from .attention import SlidingAttention
from .cell import RecurrentCell
from .configuration_block_recurrent import BlockRecurrentConfig
from .layout import Layout
from .state import CellState, LayerState, Opened, Pairs


class MLP(nn.Module):
    def __init__(self, config: BlockRecurrentConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class BlockRecurrentLayer(nn.Module):
    """A decoder layer with sliding attention, which also updates its state vectors if it is recurrent."""

    def __init__(self, config: BlockRecurrentConfig, index: int):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = SlidingAttention(config, index)
        self.mlp_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)
        self.cell = RecurrentCell(config) if index + 1 in config.recurrent_layers else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, state: LayerState, layout: Layout, feedback: Opened | None = None
    ) -> tuple[Tensor, LayerState]:
        """x: [B, N, d]. `feedback`: the open block that all layers attend to; `state` then has its block opened."""
        if self.attention.scale.is_meta and not x.is_meta:
            raise RuntimeError(
                "a layer's weights are not in memory: offloading is not supported for block-recurrent models; load the "
                "whole model, or use a smaller dtype"
            )
        if feedback is None:  # inside of forward, where FSDP has gathered the parameters
            state = self.opened(state, layout)
        drop = self.dropout if self.dropout.training else _unchanged  # saves calls when tokens are generated
        query, key, value, *to_states = self.attention.project(drop(self.attention_norm(x)))
        new = Pairs(key, value)
        recent = Pairs(*(past.to(key.dtype) for past in state.recent))  # autocast computes in another dtype
        after = layout.recent(recent, new)
        attended = self.attention.attend(query, new, recent, after, layout)
        blocks = None
        if state.memory is not None or self.cell is not None and any(layout.completed(0)):
            blocks = Pairs(*(layout.in_blocks(now, past) for now, past in zip(new, recent, strict=True)))
        cell, memory = state.cell, state.memory
        if memory is not None and blocks is not None:
            attended, memory = self.attention.read_memory(query, attended, memory, blocks, layout)
        opened = [] if feedback is None else [feedback]
        if self.cell is not None and cell is not None:
            cell, opened = self.carry(cell, blocks, layout)
        parts = [attended]
        if to_states:
            parts.append(self.attention.read_states(to_states[0], opened, layout))
        side_by_side = [part.transpose(1, 2).flatten(2) for part in parts]
        joined = side_by_side[0] if len(parts) == 1 else torch.cat(side_by_side, -1)  # [B, N, (2) H D]
        x = x + drop(self.attention.output(joined))
        x = x + drop(self.mlp(self.mlp_norm(x)))
        if self.training and isinstance(self, FSDPModule):  # FSDP waits for a gradient of every parameter
            x = x + 0 * sum(p.sum() for p in self.parameters() if p.requires_grad)
        return x, LayerState(after, cell, memory)

    def opened(self, state: LayerState, layout: Layout) -> LayerState:
        """The state with its block opened, also if the last call ended between two blocks."""
        if self.cell is None:
            return state
        return state._replace(cell=self.cell.started(state.cell, layout.tokens, layout.window, state.recent))

    def carry(self, state: CellState, blocks: Pairs | None, layout: Layout) -> tuple[CellState, list[Opened]]:
        """The only sequential part: each block's states come from the block before.

        Returns the state after the call, and for each block what its tokens attend to.
        """
        assert self.cell is not None and state.opened is not None
        vectors, opened = state.vectors, state.opened
        each, before = [opened], None
        for number, block in enumerate(_one_by_one(blocks)):
            complete = layout.completed(number)
            if not any(complete):
                break
            closed = self.cell.close(vectors, opened, block if before is None else _both(before, block))
            if not all(complete):
                rows = torch.tensor(complete, device=closed.device)
                closed = where_rows(rows, closed, vectors)
            vectors = closed
            if number + 1 < layout.blocks:
                # If all rows complete the next block as well, states attend to both blocks at once; otherwise the
                # carried state must have attended to this block, whose tokens are not kept.
                before = block if all(complete) and all(layout.completed(number + 1)) else None
                following = self.cell.open(vectors, block if before is None else None, complete)
                if not all(complete):
                    following = where_rows(rows, following, opened)
                opened = following
                each.append(opened)
        between = not any(n % layout.window for n in layout.after)
        return CellState(vectors, None if between else opened), each


def _unchanged(x: Tensor) -> Tensor:
    return x


def _both(before: Pairs, block: Pairs) -> Pairs:
    return Pairs(*(torch.cat(pair, 2) for pair in zip(before, block, strict=True)))


def _one_by_one(blocks: Pairs | None) -> list[Pairs]:
    return [] if blocks is None else [Pairs(*pair) for pair in zip(*(x.unbind() for x in blocks), strict=True)]
