"""What a trained block-recurrent model does with a text: its gates, its states, and who uses them."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.tokens import TokenizedDocument
from ..evaluation import Measures, measure_memories
from ..models.block_recurrent import BlockRecurrentForCausalLM, BlockState


@dataclass(frozen=True)
class Spread:
    mean: float
    deviation: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Likeness:
    """How alike the state vectors of a layer are: before the first block, and after every complete one."""

    cosine: tuple[float, ...]  # the mean over all pairs of different states: 1 when all have become the same
    effective_rank: tuple[float, ...]  # from 1, when all point the same way, up to the number of states


@dataclass(frozen=True)
class StateUse:
    """How much the tokens of a layer take from the states, from the second block on."""

    size: float  # norm of the states' part of attention, after the output projection, relative to self-attention's
    spread: float  # entropy of the attention over states: 1 when it is even, 0 when one state gets all


@dataclass(frozen=True)
class Diagnostics:
    """Layers are counted from 1."""

    gates: dict[tuple[int, str, str], Spread]  # by layer, gate, and "kept" (of the old state) or "taken in"
    states: dict[int, Likeness]
    state_use: dict[int, StateUse]
    losses: dict[str, Measures]  # "true", and "ablated" where something is carried


def diagnose(model: BlockRecurrentForCausalLM, document: TokenizedDocument) -> Diagnostics:
    """Runs a model over a document block by block, and records gates, states and attention."""
    config = model.config
    if len(document) < config.window + 2:
        raise ValueError(
            f"{len(document)} tokens have no second block in which states are used: give at least "
            f"{config.window + 2}, a window of {config.window} and two more"
        )
    carries = bool(config.recurrent_layers or config.memory_size)
    losses = measure_memories(model, [document], memories=("true", "ablated") if carries else ("true",))
    found = _Recording(model)
    if config.recurrent_layers:
        found.run(document.ids.long()[None].to(model.device))
    return Diagnostics(
        gates={name: spread(moments) for name, moments in found.gates.items()},
        states={layer: Likeness(*zip(*both, strict=True)) for layer, both in found.likeness.items()},
        state_use={
            layer: StateUse(states / window, entropy / tokens)
            for layer, (states, window, entropy, tokens) in found.use.items()
        },
        losses=losses,
    )


class _Recording:
    """Runs the model with hooks on its modules, which see the inputs of each."""

    def __init__(self, model: BlockRecurrentForCausalLM):
        self.model, self.window = model, model.config.window
        layers: dict[int, Any] = dict(enumerate(model.model.layers, start=1))
        self.cells = {number: layer.cell for number, layer in layers.items() if layer.cell is not None}
        self.users = {number: layer.attention for number, layer in layers.items() if layer.attention.reads_states}
        self.gates: dict[tuple[int, str, str], list[Tensor]] = {}  # moments of every block
        self.likeness = {number: [alike(cell.initial)] for number, cell in self.cells.items()}
        self.use = {number: [0.0] * 4 for number in self.users}  # sums: from states, from window, entropy, tokens
        self.normed: dict[int, Tensor] = {}  # the input of each layer's projection, [1, N, d]
        self.joined: dict[int, Tensor] = {}  # what its tokens took from the window and from the states, [1, N, 2 H D]

    @torch.no_grad()
    def run(self, ids: Tensor) -> None:
        training, state = self.model.training, None
        self.model.eval()
        try:
            with ExitStack() as hooks:
                self._add_hooks(hooks)
                for piece in ids.split(self.window, dim=1):
                    before = state
                    state = self.model(piece, state=state, logits_to_keep=1).state
                    if before is not None:  # in the first block states know nothing of the text
                        self._record_use(before)
                    if piece.shape[1] == self.window:
                        for number, both in self.likeness.items():
                            both.append(alike(state.layers[number - 1].cell.vectors[0]))
        finally:
            self.model.train(training)

    def _add_hooks(self, hooks: ExitStack) -> None:
        def keep(module: Any, kept: dict[int, Tensor], number: int) -> None:
            hook = module.register_forward_pre_hook(lambda _, given: kept.__setitem__(number, given[0]))
            hooks.callback(hook.remove)

        def record_gate(number: int, name: str, gate: Any) -> None:
            def record(_: Any, given: tuple[Tensor, Tensor]) -> None:
                for part, values in gate.values(given[1]).items():
                    values = values.double()
                    moments = torch.stack([values.mean(), values.square().mean(), values.min(), values.max()])
                    self.gates.setdefault((number, name, part), []).append(moments)

            hooks.callback(gate.register_forward_pre_hook(record).remove)

        for number, attention in self.users.items():
            keep(attention.projection, self.normed, number)
            keep(attention.output, self.joined, number)
        for number, cell in self.cells.items():
            for name, gate in (("attention gate", cell.attention_gate), ("mlp gate", cell.mlp_gate)):
                if gate is not None:
                    record_gate(number, name, gate)

    def _record_use(self, before: BlockState) -> None:
        """before: the state that the block started from."""
        keys = {}
        for number, cell in self.cells.items():
            layer = before.layers[number - 1]
            keys[number] = cell.started(layer.cell, before.tokens, self.window, layer.recent).opened.keys
        last = max(keys)
        normed = dict(self.normed)  # projecting again overwrites it
        for number, attention in self.users.items():
            queries = attention.project(normed[number])[3]
            shares = (queries @ keys.get(number, keys[last]).mT).softmax(-1)  # [1, H, N, S]
            parts = zip(self.joined[number].chunk(2, -1), attention.output.weight.chunk(2, -1), strict=True)
            from_window, from_states = (float((part @ weight.mT).norm(dim=-1).sum()) for part, weight in parts)
            even = math.log(shares.shape[-1]) or math.nan  # the entropy of one state means nothing
            entropy = torch.special.entr(shares).sum(-1).mean(1)  # [1, N]
            new = (from_states, from_window, float(entropy.sum()) / even, entropy.numel())
            self.use[number] = [old + more for old, more in zip(self.use[number], new, strict=True)]


def spread(moments: list[Tensor]) -> Spread:
    """moments: mean, mean square, lowest and highest value of equally many values each."""
    means, squares, lowest, highest = torch.stack(moments).unbind(1)
    mean = float(means.mean())
    variance = max(0.0, float(squares.mean()) - mean**2)
    return Spread(mean, math.sqrt(variance), float(lowest.min()), float(highest.max()))


def alike(vectors: Tensor) -> tuple[float, float]:
    """The mean cosine between different vectors [S, d], and their effective rank: the exponential of the entropy of
    the singular values' shares (Roy and Vetterli, 2007)."""
    vectors = vectors.detach().double()
    count = len(vectors)
    units = torch.nn.functional.normalize(vectors, dim=-1)
    cosine = float(units.sum(0).square().sum() - count) / (count * (count - 1)) if count > 1 else math.nan
    values = torch.linalg.svdvals(vectors)
    rank = float(torch.special.entr(values / values.sum()).sum().exp())
    return cosine, rank
