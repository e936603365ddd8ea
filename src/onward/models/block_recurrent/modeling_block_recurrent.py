"""Block-recurrent decoders: sliding attention everywhere, and state vectors carried from block to block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import ModelOutput

from ...ops.rms_norm import RMSNorm
from ...state import where_rows
from .attention import SlidingAttention
from .cell import RecurrentCell
from .configuration_block_recurrent import BlockRecurrentConfig
from .gates import FixedGate, LSTMGate, initialize_gate
from .layout import Layout, pieces, put_together
from .state import BlockState, CellState, LayerState, Opened, Pairs


@dataclass
class BlockRecurrentOutput(ModelOutput):
    """`last_hidden_state` [B, N, d] from the bare model, `logits` [B, N, V] from the language model."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    state: BlockState | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class MLP(nn.Module):
    def __init__(self, config: BlockRecurrentConfig):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class BlockRecurrentLayer(nn.Module):
    """An ordinary decoder layer with sliding attention; as a recurrent one it also changes its state vectors."""

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
        """x: [B, N, d]. `feedback`: the open block that all layers read; the state then comes with its block opened."""
        if feedback is None:  # in here, where FSDP has the layer's parameters whole
            state = self.opened(state, layout)
        query, key, value, *to_states = self.attention.project(self.dropout(self.attention_norm(x)))
        new = Pairs(key, value)
        recent = Pairs(*(past.to(key.dtype) for past in state.recent))  # autocast works in another dtype
        attended = self.attention.attend(query, new, recent, layout)
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
        joined = torch.stack(parts, 1).permute(0, 3, 1, 2, 4).flatten(2)  # [B, N, (2) H D]
        x = x + self.dropout(self.attention.output(joined))
        x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        if self.training and isinstance(self, FSDPModule):  # processes wait for a gradient of every parameter
            x = x + 0 * sum(p.sum() for p in self.parameters() if p.requires_grad)
        return x, LayerState(layout.recent(recent, new), cell, memory)

    def opened(self, state: LayerState, layout: Layout) -> LayerState:
        """The state with its block open to be read, also where the last call ended at a block's edge."""
        if self.cell is None:
            return state
        return state._replace(cell=self.cell.started(state.cell, layout.tokens, layout.window, state.recent))

    def carry(self, state: CellState, blocks: Pairs | None, layout: Layout) -> tuple[CellState, list[Opened]]:
        """The one thing that cannot be done for all blocks at once: each block's states come from the block before.

        Returns the state after the call, and what each block's tokens read.
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
                # Where all rows complete the next block, too, both are looked at together; otherwise what is carried
                # on must have looked at this one, whose tokens will not be there any more.
                before = block if all(complete) and all(layout.completed(number + 1)) else None
                following = self.cell.open(vectors, block if before is None else None, complete)
                if not all(complete):
                    following = Opened(*where_rows(rows, following, opened))
                opened = following
                each.append(opened)
        between = not any(n % layout.window for n in layout.after)
        return CellState(vectors, None if between else opened), each


def _both(before: Pairs, block: Pairs) -> Pairs:
    return Pairs(*(torch.cat(pair, 2) for pair in zip(before, block, strict=True)))


def _one_by_one(blocks: Pairs | None) -> list[Pairs]:
    return [] if blocks is None else [Pairs(*pair) for pair in zip(*(x.unbind() for x in blocks), strict=True)]


class BlockRecurrentPreTrainedModel(PreTrainedModel):
    config_class = BlockRecurrentConfig
    config: BlockRecurrentConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["BlockRecurrentLayer"]
    _can_compile_fullgraph = False

    def _init_weights(self, module: nn.Module) -> None:
        """Embeddings of variance 1, whose logits are divided by sqrt(d); other kernels of variance 1 / fan_in.

        Modules come after those they hold, so that a gate has the last word on its kernel.
        """
        if isinstance(module, (FixedGate, LSTMGate)):
            initialize_gate(module)
        elif isinstance(module, nn.Linear):
            deviation = 1 / math.sqrt(module.in_features)
            init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
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

    # -- gradient checkpointing over blocks, where transformers' own would be over layers

    bottleneck_checkpointing = False

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """Keeps only the state between blocks, and runs each block again for its gradients."""
        self._set_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        self._set_checkpointing(False)

    def _set_checkpointing(self, on: bool) -> None:
        for module in self.modules():
            if isinstance(module, BlockRecurrentPreTrainedModel):
                module.bottleneck_checkpointing = on

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.bottleneck_checkpointing


class BlockRecurrentModel(BlockRecurrentPreTrainedModel):
    """The bare decoder: reads documents of any length in any pieces, carrying a state."""

    def __init__(self, config: BlockRecurrentConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(BlockRecurrentLayer(config, index) for index in range(config.num_hidden_layers))
        self.dropout = nn.Dropout(config.dropout)
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_init()

    @property
    def state_name(self) -> str:
        """What two models must have in common for one to read on from the other's state."""
        c = self.config
        name = f"{c.num_hidden_layers} layers of {c.hidden_size}, {c.num_attention_heads} heads of {c.head_dim}"
        name += f", window {c.window}"
        if c.feedback:
            name += ", feedback"
        if not c.attends_to_itself:
            name += ", tokens not seeing themselves"
        if c.recurrent_layers:
            name += (
                f", {c.num_states} states at {','.join(map(str, c.recurrent_layers))} ({c.gate} {c.gate_configuration})"
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
        """Reads `input_ids` [B, N] of any length N on from `state`; `starts_document` [B] marks rows that begin a
        new document. Padding, at either side, is marked by 0 in `attention_mask` and never read."""
        refuse(kwargs, self)
        embedded = self._embedded(input_ids, inputs_embeds)
        layout, columns, state = self._begin(embedded, attention_mask, state, starts_document)
        if not any(layout.lengths):  # nothing but padding
            nothing = BlockRecurrentOutput(last_hidden_state=torch.zeros_like(embedded), state=state)
            return nothing if return_dict is not False else nothing.to_tuple()
        packed = embedded if columns is None else _gathered(embedded, columns)
        collected: list[list[Tensor]] = []
        parts = []
        cut = pieces(layout, self._blocks_per_piece) if self._blocks_per_piece else None
        if cut is None or len(cut) <= 1:
            hidden, state, layers = self._read(packed, layout, state, bool(output_hidden_states))
            collected.append(layers)
        else:
            for piece in cut:
                part = Layout(layout.window, state.tokens, piece.lengths)
                given = (piece.of(packed), part, state, bool(output_hidden_states))
                if self.bottleneck_checkpointing and self.training:
                    hidden, state, layers = checkpoint(self._read, *given, use_reentrant=False)
                else:
                    hidden, state, layers = self._read(*given)
                parts.append(hidden)
                collected.append(layers)
            hidden = put_together(parts, cut, packed.shape[1])
        whole = [hidden, *(self._whole(list(each), cut, packed.shape[1]) for each in zip(*collected, strict=True))]
        if columns is not None:
            whole = [_scattered(x, columns, embedded.shape[1]) for x in whole]
        output = BlockRecurrentOutput(
            last_hidden_state=whole[0], state=state, hidden_states=tuple(whole[1:]) if output_hidden_states else None
        )
        return output if return_dict is not False else output.to_tuple()

    @staticmethod
    def _whole(parts: list[Tensor], cut: Any, count: int) -> Tensor:
        return parts[0] if len(parts) == 1 else put_together(parts, cut, count)

    @property
    def _blocks_per_piece(self) -> int:
        """How much is read at once; 0 for everything."""
        if self.config.feedback:
            return 1  # the lowest layer of a block reads what the highest made of the block before
        return self.config.blocks_per_checkpoint if self.bottleneck_checkpointing and self.training else 0

    def _embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds, and not both")
        if inputs_embeds is not None:
            if inputs_embeds.dim() != 3 or inputs_embeds.shape[2] != self.config.hidden_size:
                raise ValueError(
                    f"inputs_embeds must have the shape [batch, length, {self.config.hidden_size}], got "
                    f"{tuple(inputs_embeds.shape)}"
                )
            return inputs_embeds
        ids = check_ids(input_ids, self.config.vocab_size)
        return self.embed_tokens(ids)

    def _begin(
        self,
        embedded: Tensor,
        attention_mask: Tensor | None,
        state: BlockState | None,
        starts_document: Tensor | Sequence[bool] | None,
    ) -> tuple[Layout, Tensor | None, BlockState]:
        batch, count, _ = embedded.shape
        if state is None:
            state = self._fresh(embedded)
        elif state.model != self.state_name:
            raise ValueError(
                f"this state belongs to another model ({state.model}), not to this one ({self.state_name})"
            )
        elif state.batch_size != batch:
            raise ValueError(f"the state has {state.batch_size} rows, and the input {batch}: use state.select(rows)")
        if starts_document is not None:
            state = state.reset(starts_document)
        columns, lengths = None, (count,) * batch
        if attention_mask is not None:
            if attention_mask.shape != (batch, count):
                raise ValueError(
                    f"attention_mask has the shape {tuple(attention_mask.shape)}, the input {(batch, count)}: they "
                    "must agree"
                )
            real = attention_mask.bool()
            lengths = tuple(real.sum(1).tolist())
            if min(lengths) < count:
                columns = _packing(real, max(lengths))
        return Layout(self.config.window, state.tokens, lengths), columns, state

    def _fresh(self, like: Tensor) -> BlockState:
        """The state before any document: nothing in it is looked at but the learned initial vectors."""
        c = self.config
        assert c.head_dim is not None
        empty = like.new_zeros(like.shape[0], c.num_attention_heads, 0, c.head_dim)
        nothing = Pairs(empty, empty)
        layers = tuple(
            LayerState(nothing, None, nothing if number == c.memory_layer else None)
            for number in range(1, c.num_hidden_layers + 1)
        )
        return BlockState(self.state_name, (0,) * like.shape[0], layers)

    def _read(
        self, x: Tensor, layout: Layout, state: BlockState, keep_layers: bool
    ) -> tuple[Tensor, BlockState, list[Tensor]]:
        """All layers over tokens that, with feedback, lie in one block of their row."""
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
        return x, BlockState(state.model, layout.after, tuple(after)), collected


# -- what comes in


def refuse(given: dict[str, Any], model: PreTrainedModel) -> None:
    """Arguments that would be ignored: none must pass in silence."""
    for name, value in given.items():
        if value is None or value is False or name == "cache_position":
            continue
        if name == "output_attentions":
            raise ValueError("attention is computed in tiles that do not form one map: output_attentions is not there")
        if name == "past_key_values":
            raise ValueError("past_key_values is not there: what is carried is `state`, in the output of every call")
        raise TypeError(f"{type(model).__name__} takes no argument {name!r}")


def check_ids(input_ids: Tensor | None, vocab_size: int) -> Tensor:
    if not isinstance(input_ids, Tensor):
        raise TypeError(f"input_ids must be a tensor of token ids, got {type(input_ids).__name__}")
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must have the shape [batch, length], got {tuple(input_ids.shape)}")
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"input_ids must be whole numbers (torch.long), got {input_ids.dtype}")
    if input_ids.numel() == 0:
        raise ValueError(f"there is nothing to read: input_ids has the shape {tuple(input_ids.shape)}")
    if input_ids.device.type == "cpu":  # elsewhere looking would stop the queue, and the device itself complains
        low, high = torch.aminmax(input_ids)
        if low < 0 or high >= vocab_size:
            wrong = int(low) if low < 0 else int(high)
            raise ValueError(
                f"input_ids has the id {wrong}, and the vocabulary {vocab_size} ids, from 0: use the tokenizer that "
                "the model was made for, or a config with a larger vocab_size"
            )
    return input_ids.long()


def _packing(real: Tensor, width: int) -> Tensor:
    """[B, width]: the columns of each row's tokens, first to last; padding follows."""
    return (~real).int().argsort(dim=1, stable=True)[:, :width]


def _gathered(x: Tensor, columns: Tensor) -> Tensor:
    return x.gather(1, columns[..., None].expand(-1, -1, x.shape[2]))


def _scattered(x: Tensor, columns: Tensor, count: int) -> Tensor:
    """Back where the tokens came from; what stands at padding means nothing."""
    whole = x.new_zeros(x.shape[0], count, x.shape[2])
    return whole.scatter(1, columns[..., None].expand(-1, -1, x.shape[2]), x)
