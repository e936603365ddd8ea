"""Block-recurrent decoders: sliding attention everywhere, and state vectors carried from block to block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModel
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput

from ...ops.modes import autocast_dtype
from ...ops.norms import RMSNorm
from ..base import StatefulModel
from ..checking import checked_ids, checked_mask
from ..fingerprints import Origin, origin_of
from ..state import check_state
from .attention import SlidingAttention
from .cell import RecurrentCell
from .configuration_block_recurrent import BlockRecurrentConfig
from .gates import FixedGate, GateKernel, cut_normal
from .layer import BlockRecurrentLayer
from .layout import Layout, joined, pieces
from .state import BlockState, LayerState, Pairs, check_form


@dataclass
class BlockRecurrentOutput(ModelOutput):
    """`last_hidden_state` [B, N, d] from the bare model, `logits` [B, N, V] from the language model."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    state: BlockState | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class BlockRecurrentPreTrainedModel(StatefulModel):
    config_class = BlockRecurrentConfig
    config: BlockRecurrentConfig
    base_model_prefix = "model"
    not_supported: ClassVar = {
        "output_attentions": "attention is computed in tiles, which do not form one map",
        "past_key_values": "the output of every call holds a `state` to pass on instead",
    }
    _no_split_modules = ["BlockRecurrentLayer"]
    _can_compile_fullgraph = False

    def describe(self) -> str:
        count = sum(p.numel() for p in self.parameters())
        return f"A decoder that carries states from block to block: {self.state_name}. Parameters: {count:,}."

    def _init_weights(self, module: nn.Module) -> None:
        """Embeddings have variance 1 (their logits are divided by sqrt(d)), other kernels 1 / fan_in."""
        if isinstance(module, GateKernel):
            module.initialize()
        elif isinstance(module, FixedGate):
            init.normal_(module.forget, std=0.1)
        elif isinstance(module, nn.Linear):
            init.trunc_normal_(module.weight, **cut_normal(1 / module.in_features))
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=1.0)
        elif isinstance(module, nn.RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, SlidingAttention):
            init.copy_(module.buckets, module.make_buckets())  # not saved with the weights
            init.normal_(module.position_bias.weight, std=1 / math.sqrt(self.config.hidden_size))
            init.constant_(module.scale, self.config.initial_attention_scale)
            if module.reads_states:
                init.constant_(module.state_scale, self.config.initial_attention_scale)
            if module.remembers:
                init.zeros_(module.memory_gate)
        elif isinstance(module, RecurrentCell):
            init.normal_(module.ids, std=1.0)
            init.normal_(module.initial, std=0.1)
            init.constant_(module.self_scale, self.config.initial_attention_scale)
            init.constant_(module.token_scale, self.config.initial_attention_scale)


class BlockRecurrentModel(BlockRecurrentPreTrainedModel):
    """The bare decoder: takes documents of any length in any pieces, carrying a state."""

    auto_class = AutoModel

    def __init__(self, config: BlockRecurrentConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(BlockRecurrentLayer(config, index) for index in range(config.num_hidden_layers))
        self.dropout = nn.Dropout(config.dropout)
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_init()

    @property
    def state_name(self) -> str:
        c = self.config
        name = f"{c.num_hidden_layers} layers of {c.hidden_size}, {c.num_attention_heads} heads of {c.head_dim}"
        name += f", window {c.window}"
        if c.feedback:
            name += ", feedback"
        if not c.attends_to_itself:
            name += ", tokens not seeing themselves"
        if c.recurrent_layers:
            name += (
                f", {c.num_states} states at {','.join(map(str, c.recurrent_layers))} ({c.gate} {c.gate_configuration}"
                f"{', tanh as in the code' if c.gate_tanh == 'single' else ''})"
            )
        if c.memory_size:
            name += f", memory of {c.memory_size} at {c.memory_layer}"
        return name

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        state: BlockState | None = None,
        starts_document: Tensor | Sequence[bool] | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BlockRecurrentOutput | tuple:
        """Processes `input_ids` [B, N] of any length N, continuing from `state`; `starts_document` [B] marks rows that
        begin a new document. Padding, at either side, is marked by 0 in `attention_mask` and skipped."""
        self.refuse_arguments(kwargs)
        keep_layers = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        embedded = self._embedded(input_ids, inputs_embeds)
        layout, real, state = self._begin(embedded, attention_mask, state, starts_document)
        if not any(layout.lengths):  # only padding
            nothing = BlockRecurrentOutput(last_hidden_state=torch.zeros_like(embedded), state=state)
            return self.returned(nothing, return_dict)
        cut = pieces(layout, self._blocks_per_piece, real)
        parts = []  # for each piece its hidden states: the last ones, and those of all layers
        for piece in cut:
            part = Layout(layout.window, state.tokens, piece.lengths)
            given = (piece.of(embedded), part, state, bool(keep_layers))
            if self.bottleneck_checkpointing and self.training and len(cut) > 1:
                hidden, state = checkpoint(self._run_layers, *given, use_reentrant=False)
            else:
                hidden, state = self._run_layers(*given)
            parts.append(hidden)
        whole = [joined(list(each), cut, embedded.shape[1]) for each in zip(*parts, strict=True)]
        layers = tuple(whole[1:]) if keep_layers else None
        output = BlockRecurrentOutput(last_hidden_state=whole[0], state=state, hidden_states=layers)
        return self.returned(output, return_dict)

    @property
    def _blocks_per_piece(self) -> int:
        """How many blocks are processed at once; 0 for all."""
        if self.config.feedback:
            return 1  # the lowest layer of a block attends to states of the highest after the block before
        return self.config.blocks_per_checkpoint if self.bottleneck_checkpointing and self.training else 0

    def _embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds, and not both")
        if inputs_embeds is not None:
            width = self.config.hidden_size
            if not isinstance(inputs_embeds, Tensor):
                raise TypeError(f"inputs_embeds must be a tensor, got {type(inputs_embeds).__name__}")
            shape = tuple(inputs_embeds.shape)
            if len(shape) != 3 or shape[2] != width or 0 in shape:
                raise ValueError(f"inputs_embeds must have the shape [batch, length, {width}], not empty, got {shape}")
            return inputs_embeds
        return self.embed_tokens(checked_ids(input_ids, self.config.vocab_size))

    def _begin(
        self,
        embedded: Tensor,
        attention_mask: Tensor | None,
        state: BlockState | None,
        starts_document: Tensor | Sequence[bool] | None,
    ) -> tuple[Layout, Tensor, BlockState]:
        batch, count, _ = embedded.shape
        origin = origin_of(self, self)
        if state is None:
            state = self._fresh(embedded, origin)
        else:
            check_state(state, BlockState, self.state_name, batch)
            if state.weights is not origin:
                origin.check(state.weights)
                check_form(state, self.config)
                state = replace(state, weights=origin)
        if starts_document is not None:
            state = state.reset(starts_document)
        if autocast_dtype(embedded.device.type) is None and state.dtypes != {embedded.dtype}:
            state = state.to(embedded.dtype)  # from another dtype, or from autocast
        if attention_mask is None:
            real, lengths = torch.ones(batch, count, dtype=torch.bool, device=embedded.device), (count,) * batch
        else:
            real = checked_mask(attention_mask, (batch, count))
            lengths = tuple(real.sum(1).tolist())
        return Layout(self.config.window, state.tokens, lengths), real, state

    def _fresh(self, like: Tensor, origin: Origin) -> BlockState:
        """The state at the start of a document; the layers add their learned initial vectors."""
        c = self.config
        assert c.head_dim is not None
        empty = like.new_zeros(like.shape[0], c.num_attention_heads, 0, c.head_dim)
        nothing = Pairs(empty, empty)
        layers = tuple(
            LayerState(nothing, None, nothing if number == c.memory_layer else None)
            for number in range(1, c.num_hidden_layers + 1)
        )
        return BlockState(self.state_name, (0,) * like.shape[0], layers, origin)

    def _run_layers(
        self, x: Tensor, layout: Layout, state: BlockState, keep_layers: bool
    ) -> tuple[list[Tensor], BlockState]:
        """All layers over some tokens, which with feedback lie in one block of their row. Returns the last hidden
        states and, if they are kept, those of all layers, [B, n, d] each."""
        layers = cast(list[BlockRecurrentLayer], list(self.layers))
        opened, feedback = list(state.layers), None
        if self.config.feedback:
            opened = [layer.opened(before, layout) for layer, before in zip(layers, state.layers, strict=True)]
            source = opened[self.config.recurrent_layers[-1] - 1].cell
            assert source is not None
            feedback = source.opened
        after, collected = [], [x] if keep_layers else []
        x = self.dropout(x)
        for layer, before in zip(layers, opened, strict=True):
            x, new = layer(x, before, layout, feedback)
            after.append(new)
            if keep_layers:
                collected.append(x)
        x = self.norm(x)
        if keep_layers:
            collected[-1] = x
        return [x, *collected], replace(state, tokens=layout.after, layers=tuple(after))
