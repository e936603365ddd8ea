"""What a trained block-recurrent model does with a text: its gates, its states, who reads them, what they are worth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
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
class Reading:
    """How the tokens of a layer read states, from the second block on."""

    size: float  # of what comes from the states, after the output projection, against what self-attention gives
    spread: float  # of the attention over states: 1 when all get the same, 0 when one gets all (its entropy)


@dataclass(frozen=True)
class Diagnostics:
    """Layers are counted from 1."""

    gates: dict[tuple[int, str, str], Spread]  # by layer, gate, and "kept" (of the old state) or "taken in"
    states: dict[int, Likeness]
    readings: dict[int, Reading]
    losses: dict[str, Measures]  # "true", and "ablated" where something is carried


def diagnose(model: BlockRecurrentForCausalLM, document: TokenizedDocument) -> Diagnostics:
    """Reads a document block by block, and looks on."""
    config = model.config
    if len(document) < config.window + 2:
        raise ValueError(
            f"{len(document)} tokens have no second block in which states are read: give at least "
            f"{config.window + 2}, a window of {config.window} and two more"
        )
    carries = bool(config.recurrent_layers or config.memory_size)
    losses = measure_memories(model, [document], memories=("true", "ablated") if carries else ("true",))
    watch = _Watch(model)
    if config.recurrent_layers:
        watch.read(document.ids.long()[None].to(model.device))
    return Diagnostics(
        gates={name: numbers.spread for name, numbers in watch.gates.items()},
        states={layer: Likeness(*zip(*both, strict=True)) for layer, both in watch.likeness.items()},
        readings={layer: tally.reading for layer, tally in watch.readings.items()},
        losses=losses,
    )


class _Watch:
    """Reads with hooks on the model's modules, which see what these are given."""

    def __init__(self, model: BlockRecurrentForCausalLM):
        self.model, self.window = model, model.config.window
        layers: dict[int, Any] = dict(enumerate(model.model.layers, start=1))
        self.cells = {number: layer.cell for number, layer in layers.items() if layer.cell is not None}
        self.readers = {number: layer.attention for number, layer in layers.items() if layer.attention.reads_states}
        self.gates: dict[tuple[int, str, str], _Numbers] = {}
        self.likeness = {number: [alike(cell.initial)] for number, cell in self.cells.items()}
        self.readings = {number: _Readings() for number in self.readers}
        self.normed: dict[int, Tensor] = {}  # what the tokens of each layer are projected from, [1, N, d]
        self.joined: dict[int, Tensor] = {}  # what they attend to: the window, then the states, [1, N, 2 H D]

    @torch.no_grad()
    def read(self, ids: Tensor) -> None:
        training, state = self.model.training, None
        self.model.eval()
        try:
            with self._hooks():
                for piece in ids.split(self.window, dim=1):
                    before = state
                    state = self.model(piece, state=state, logits_to_keep=1).state
                    if before is not None:  # in the first block states know nothing of the text
                        self._look_at_readers(before)
                    if piece.shape[1] == self.window:
                        self._look_at_states(state)
        finally:
            self.model.train(training)

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        def keep(kept: dict[int, Tensor], number: int) -> Any:
            return lambda module, given: kept.__setitem__(number, given[0])

        hooks = []
        for number, attention in self.readers.items():
            hooks.append(attention.projection.register_forward_pre_hook(keep(self.normed, number)))
            hooks.append(attention.output.register_forward_pre_hook(keep(self.joined, number)))
        for number, cell in self.cells.items():
            for name in ("attention_gate", "mlp_gate"):
                gate = getattr(cell, name)
                if gate is not None:
                    hooks.append(gate.register_forward_pre_hook(self._gate_hook(number, name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _gate_hook(self, number: int, name: str) -> Any:
        def look(gate: Any, given: tuple[Tensor, Tensor]) -> None:
            for part, values in gate.values(given[1]).items():
                self.gates.setdefault((number, name.replace("_", " "), part), _Numbers()).add(values)

        return look

    def _look_at_states(self, state: BlockState) -> None:
        for number, both in self.likeness.items():
            cell = state.layers[number - 1].cell
            assert cell is not None
            both.append(alike(cell.vectors[0]))

    def _look_at_readers(self, before: BlockState) -> None:
        """before: the state with which the block was read."""
        keys = {}
        for number, cell in self.cells.items():
            layer = before.layers[number - 1]
            keys[number] = cell.started(layer.cell, before.tokens, self.window, layer.recent).opened.keys
        last = max(keys)
        normed = dict(self.normed)  # projecting again fills it again
        for number, attention in self.readers.items():
            queries = attention.project(normed[number])[3]
            shares = (queries @ keys.get(number, keys[last]).mT).softmax(-1)  # [1, H, N, S]
            self.readings[number].add(shares, self.joined[number], attention.output.weight)


class _Readings:
    def __init__(self) -> None:
        self.tokens = 0
        self.entropy = self.from_states = self.from_window = 0.0

    def add(self, shares: Tensor, joined: Tensor, output: Tensor) -> None:
        window, states = (
            part @ weight.mT for part, weight in zip(joined.chunk(2, -1), output.chunk(2, -1), strict=True)
        )
        self.from_window += float(window.norm(dim=-1).sum())
        self.from_states += float(states.norm(dim=-1).sum())
        most = math.log(shares.shape[-1])
        entropy = torch.special.entr(shares).sum(-1).mean(1)  # [1, N]
        self.entropy += float(entropy.sum()) / most if most else math.nan  # one state gets all there is
        self.tokens += entropy.numel()

    @property
    def reading(self) -> Reading:
        return Reading(self.from_states / self.from_window, self.entropy / self.tokens)


class _Numbers:
    """A mean and a spread without keeping the numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = self.squares = 0.0
        self.lowest, self.highest = math.inf, -math.inf

    def add(self, values: Tensor) -> None:
        values = values.double()
        self.count += values.numel()
        self.sum += float(values.sum())
        self.squares += float(values.square().sum())
        self.lowest, self.highest = min(self.lowest, float(values.min())), max(self.highest, float(values.max()))

    @property
    def spread(self) -> Spread:
        mean = self.sum / self.count
        return Spread(mean, math.sqrt(max(0.0, self.squares / self.count - mean**2)), self.lowest, self.highest)


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
