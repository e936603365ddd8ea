"""The attention of tokens: to the window before them, and in parallel to states and remembered tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops.nearest_memory import read_nearest
from ...ops.norms import unit_heads
from ...ops.sliding_attention import attention_of_one, full_attention, position_buckets, sliding_attention
from .configuration_block_recurrent import BlockRecurrentConfig
from .layout import Layout
from .state import Opened, Pairs


class SlidingAttention(nn.Module):
    def __init__(self, config: BlockRecurrentConfig, index: int):
        super().__init__()
        assert config.head_dim is not None
        self.config = config
        self.heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.reads_states = config.reads_states[index]
        self.remembers = config.memory_layer == index + 1
        width, inner = config.hidden_size, config.attention_width
        self.projection = nn.Linear(width, (4 if self.reads_states else 3) * inner, bias=False)
        self.scale = nn.Parameter(torch.empty(self.heads))
        self.position_bias = nn.Embedding(config.relative_attention_num_buckets, self.heads)
        self.buckets: Tensor
        self.register_buffer("buckets", self.make_buckets(), persistent=False)
        self.output = nn.Linear((2 if self.reads_states else 1) * inner, width, bias=False)
        if self.reads_states:
            self.state_scale = nn.Parameter(torch.empty(self.heads))
        if self.remembers:
            self.memory_gate = nn.Parameter(torch.empty(self.heads))

    def make_buckets(self) -> Tensor:
        """[W + 1]: the row of the position bias for each distance."""
        config = self.config
        return position_buckets(
            config.window + 1, config.relative_attention_num_buckets, config.relative_attention_max_distance
        )

    def project(self, x: Tensor) -> list[Tensor]:
        """x: [B, N, d] -> queries, keys, values and, if states are attended to, queries to them. [B, H, N, D] each."""
        # The gradient of split is one copy; slices would each make a copy of the whole.
        inner = self.heads * self.head_dim
        near, *rest = self.projection(x).split([2 * inner, inner, inner][: 3 if self.reads_states else 2], -1)
        scales = F.pad(self.scale, (0, self.heads), value=1.0).to(near.dtype)  # keys have no scale
        query, key = unit_heads(near.unflatten(-1, (2 * self.heads, -1)), scales).chunk(2, 2)
        split = [query, key, *(part.unflatten(-1, (self.heads, -1)) for part in rest)]
        if self.reads_states:
            split[3] = unit_heads(split[3], self.state_scale.to(near.dtype))
        return [part.transpose(1, 2) for part in split]

    def attend(self, query: Tensor, new: Pairs, recent: Pairs, after: Pairs, layout: Layout) -> Tensor:
        """Attention to the window. [B, H, N, D]. recent, after: the last tokens before and after the call."""
        config = self.config
        if layout.is_one_token and config.attends_to_itself and not (self.training and config.dropout):
            count = after.keys.shape[2]
            by_place = self.position_bias(self.buckets[:count].flip(0)).to(query.dtype)
            seen = [min(n, count) for n in layout.after]
            return attention_of_one(query.to(after.values.dtype), *after, by_place, seen)
        bias = self.position_bias.weight[self.buckets].mT.to(query.dtype)  # [H, W + 1]
        return sliding_attention(
            query,
            *new,
            *recent,
            bias,
            layout.seen(recent.keys.shape[2]),
            window=config.window,
            sees_itself=config.attends_to_itself,
            dropout=config.dropout if self.training else 0.0,
        )

    def read_states(self, query: Tensor, opened: Sequence[Opened], layout: Layout) -> Tensor:
        """Attention of each token to the states of its block, `opened[block]`; all blocks at once. [B, H, N, D]"""
        if layout.blocks == 1:
            return full_attention(query, opened[0].keys, opened[0].values)
        asked = layout.in_blocks(query)
        keys = torch.stack([block.keys for block in opened])
        values = torch.stack([block.values for block in opened])
        read = full_attention(asked.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1))
        return layout.out_of_blocks(read.view(asked.shape), query.shape[2])

    def read_memory(
        self, query: Tensor, local: Tensor, memory: Pairs, blocks: Pairs, layout: Layout
    ) -> tuple[Tensor, Pairs]:
        """Mixes attention to remembered tokens into `local`, and remembers the blocks that are complete now.

        blocks: the call's keys and values in blocks, [blocks, B, H, W, D]. A block is remembered after its own tokens
        have attended to the memory. Block by block, because the scores of one block are W x memory_size.
        """
        window, limit = self.config.window, self.config.memory_size
        if not any(layout.completed(0)):
            blocks = Pairs(*(x[:0] for x in blocks))  # nothing to remember, so the memory need not be copied
        held = [min(n // window * window, limit) for n in layout.tokens]
        size = memory.keys.shape[2]
        both = memory
        if len(blocks.keys):
            rows = (torch.cat([old, _in_a_row(new)], 2).detach() for old, new in zip(memory, blocks, strict=True))
            both = Pairs(*rows)
        gate = self.memory_gate.sigmoid().to(local.dtype)[:, None, None]
        asked, mixed = layout.each_block(query), []
        for block, (tokens, near) in enumerate(zip(asked, layout.each_block(local), strict=True)):
            end = size + block * window
            counts = [min(n + block * window, limit) for n in held]
            if not any(counts):
                mixed.append(near)
                continue
            reach = slice(max(0, end - limit), end)
            far = read_nearest(
                tokens, both.keys[:, :, reach], both.values[:, :, reach], counts, self.config.memory_top_k
            )
            knows = torch.tensor([n > 0 for n in counts], device=local.device)[:, None, None, None]
            mixed.append(torch.lerp(near, far, gate * knows))
        after = layout.remembered(both, size, limit) if len(blocks.keys) else memory
        return layout.from_each_block(mixed, query.shape[2]), after


def _in_a_row(blocks: Tensor) -> Tensor:
    """[blocks, B, H, W, D] -> [B, H, blocks * W, D]"""
    return blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)
