"""The recurrent cell: how tokens attend to states, and how a block of tokens updates them.

Everything that depends on the states alone is computed when a block is opened: the keys and values for the block's
tokens, the states' attention to each other, and their attention to the block before, whose tokens need not be kept
afterwards. When the block is complete, the states attend to its tokens, and the gate makes the next states from both
results. So never more than one block's keys and values are carried.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from ...ops.norms import RMSNorm, unit_heads
from ...ops.sliding_attention import full_attention
from ..state import where_rows
from .configuration_block_recurrent import BlockRecurrentConfig
from .gates import make_gate
from .state import CellState, Opened, Pairs


class RecurrentCell(nn.Module):
    def __init__(self, config: BlockRecurrentConfig):
        super().__init__()
        assert config.num_states is not None and config.head_dim is not None
        width, heads, form = config.hidden_size, config.num_attention_heads, config.gate_configuration
        self.heads, self.head_dim = heads, config.head_dim
        both = 2 * config.attention_width
        self.norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.ids = nn.Parameter(torch.empty(config.num_states, width))
        self.initial = nn.Parameter(torch.empty(config.num_states, width))
        self.projection = nn.Linear(width, 4 * config.attention_width, bias=False)
        self.self_scale = nn.Parameter(torch.empty(heads))
        self.token_scale = nn.Parameter(torch.empty(heads))
        self.attention_gate = self.mlp_norm = self.mlp_up = self.mlp_gate = None
        if form in ("dual", "skip"):
            self.attention_gate = make_gate(config.gate, form, config.gate_tanh, width, both)
        if form == "dual":
            self.mlp_norm = RMSNorm(width, eps=config.rms_norm_eps)
        if form in ("dual", "single"):
            self.mlp_up = nn.Linear(width if form == "dual" else both, config.intermediate_size, bias=False)
            self.mlp_gate = make_gate(config.gate, form, config.gate_tanh, width, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def open(self, vectors: Tensor, before: Pairs | None, has_before: list[bool]) -> Opened:
        """vectors: [B, S, d]; before: keys and values of the block before, for the rows that have one.

        With `before` None, `close` gets the keys and values of the block before and attends to them.
        """
        projected = self.projection(self.norm(vectors) + self.ids)
        keys, values, own, queries = (x.unflatten(-1, (self.heads, -1)) for x in projected.chunk(4, -1))
        scales = torch.cat([torch.ones_like(self.self_scale), self.self_scale, self.token_scale]).to(projected.dtype)
        normed = unit_heads(torch.cat([keys, own, queries], 2), scales)
        keys, own, queries = (x.transpose(1, 2) for x in normed.chunk(3, 2))
        values = values.transpose(1, 2)
        read_states = full_attention(own, keys, values)
        opened = Opened(keys, values, queries, read_states)
        if before is None:
            return opened
        if not any(has_before):
            nothing = torch.full_like(queries[..., 0], -torch.inf)
            return opened._replace(read_before=torch.zeros_like(queries), weight_before=nothing)
        read, weight = weighed_attention(queries, *before)
        if not all(has_before):
            none = torch.tensor([not has for has in has_before], device=weight.device)
            weight = weight.masked_fill(none[:, None, None], -torch.inf)
        return opened._replace(read_before=read, weight_before=weight)

    def close(self, vectors: Tensor, opened: Opened, tokens: Pairs) -> Tensor:
        """The states after a block. tokens: the keys and values of the block, [B, H, W, D], or of the block before and
        this one, [B, H, 2W, D], if `opened` has not attended to the block before."""
        return self.gated(vectors, self.attended(opened, tokens))

    def attended(self, opened: Opened, tokens: Pairs) -> Tensor:
        """[B, S, 2 H D]: attention of the states to each other, and to the tokens of two blocks."""
        if opened.read_before is None or opened.weight_before is None:
            read = full_attention(opened.queries, *tokens)
        else:
            now, weight = weighed_attention(opened.queries, *tokens)
            share = (opened.weight_before - weight).sigmoid()[..., None].to(now.dtype)
            read = torch.lerp(now, opened.read_before.to(now.dtype), share)
        return torch.stack([opened.read_states, read], 1).permute(0, 3, 1, 2, 4).flatten(2)

    def gated(self, vectors: Tensor, attended: Tensor) -> Tensor:
        if self.attention_gate is not None:
            vectors = self.attention_gate(vectors, attended)
        if self.mlp_up is not None and self.mlp_gate is not None:
            given = attended if self.mlp_norm is None else self.mlp_norm(vectors)
            vectors = self.mlp_gate(vectors, self.activation(self.mlp_up(given)))
        return vectors

    def started(self, state: CellState | None, tokens: tuple[int, ...], window: int, recent: Pairs) -> CellState:
        """The state with every row's block opened; rows at a document's start get the learned initial state."""
        starting = [n == 0 for n in tokens]
        initial = self.initial.repeat(len(tokens), 1, 1)  # a copy, so that a state does not change with the parameter
        if state is None or all(starting):
            vectors = initial
        elif any(starting):
            rows = torch.tensor(starting, device=initial.device)
            vectors = where_rows(rows, initial, state.vectors)
        else:
            vectors = state.vectors
        at_edge = [n % window == 0 for n in tokens]
        if not any(at_edge):
            assert state is not None
            return CellState(vectors, state.opened)
        has_before = [edge and n > 0 for edge, n in zip(at_edge, tokens, strict=True)]
        opened = self.open(vectors, recent, has_before)
        if state is not None and state.opened is not None and not all(at_edge):
            rows = torch.tensor(at_edge, device=vectors.device)
            opened = where_rows(rows, opened, state.opened)
        return CellState(vectors, opened)


def weighed_attention(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attention, and the log of its summed scores, with which attention over other keys can be joined."""
    scores = queries @ keys.mT  # [B, H, S, W]
    weight = scores.logsumexp(-1)
    return (scores - weight[..., None]).exp() @ values, weight
