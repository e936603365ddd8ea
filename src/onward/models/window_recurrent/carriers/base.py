"""What every carrier is: the base classes, and the list of carriers by name.

A carrier says what a window leaves to the next one. There are two kinds:

- `SlotCarrier`: each layer keeps some of its own keys and values, for each of its key-value heads. All windows of a
  call can be read at once, layer by layer.
- `VectorCarrier`: hidden vectors, from which the layers of the next window make keys and values. Windows are read one
  after another.

To add a carrier, write one class in a file of its own, decorate it with its name, and import it in `__init__.py`; the
shared tests pick it up.

Shapes: B rows, t positions, L layers, k the backbone's width, V vectors, I layers of insertion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..slots import ReadWindow, Slots
from .corrections import Corrections

if TYPE_CHECKING:
    from ..configuration_window_recurrent import WindowRecurrenceConfig

Tensors = tuple[Tensor, ...]
CARRIERS: dict[str, type[Carrier]] = {}


def carrier(name: str) -> Callable[[type[Carrier]], type[Carrier]]:
    def register(cls: type[Carrier]) -> type[Carrier]:
        CARRIERS[name] = cls
        return cls

    return register


@dataclass(frozen=True)
class Defaults:
    """Of fields that a configuration leaves open."""

    space: str | None = None  # whether vectors are inputs of a "layer" or of its "attention"; None for keys and values
    insert_at: int | str = "all"
    vectors: int = 1
    at_least: int = 1  # vectors or slots


@carrier("none")
class Carrier(nn.Module):
    """Carries nothing: plain windows. The base class of all carriers, and a baseline."""

    takes_slots = takes_vectors = False  # which kind it is; asked in this way, wrappers like peft's can answer

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__()
        self.window: int = config.window
        self.count: int = config.vector_count
        self.space: str | None = config.space
        self.layers: tuple[int, ...] = config.insertion_layers  # counted from 1

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        return Defaults()


class SlotCarrier(Carrier):
    """Keeps `slots` keys and values of each head of each layer: write `next`, and say which parameters it has."""

    takes_slots = True
    needs_queries = True  # of the window that was read; they are then kept in a window that is left open
    weighs = False  # whether slots have weights other than 0 before anything is learned
    corrects = True  # whether training learns corrections of the slots

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.sinks: int = config.sinks
        shapes = [config.slot_shapes[layer - 1] for layer in self.layers] if self.corrects else []
        self.corrections = Corrections(shapes, config.rank)

    @property
    def adapts(self) -> bool:
        """Whether what is inserted differs from what is kept."""
        return self.corrections.matter

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        slots = config.slots if config.slots is not None else DEFAULT_SLOTS
        return Defaults(vectors=slots, at_least=1 + config.sinks)

    @property
    def most(self) -> int | None:
        """How many slots it can have; None for any number."""
        return None

    def resize(self, count: int) -> None:
        """From now on there are `count` slots."""
        self.count = count

    def next(self, window: ReadWindow, layer: int) -> Slots:
        """The memory after a window, of one layer counted from 1."""
        raise NotImplementedError

    def inserted(self, slots: Slots, layer: int) -> Slots:
        """The memory as the next window sees it, with what was learned about it."""
        return self.corrections[self.layers.index(layer)](slots)


DEFAULT_SLOTS = 127


class VectorCarrier(Carrier):
    """Hidden vectors, in four functions of tensors with the batch first.

    `summarise` summarises some positions of a window, and `merge` joins two summaries, so that a window can be
    processed token by token with a summary of constant size. `carry` turns the summary of a whole window into the
    memory, and `vectors` the memory into hidden vectors, from which the next window's layers make keys and values.
    """

    takes_vectors = True

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.width: int = config.hidden_size

    def summarise(self, hidden: Sequence[Tensor], keep: Tensor, index: Tensor) -> Tensors:
        """hidden: in the space "layer", L+1 of [B, t, k], the input of every layer and the output of the last; in
        "attention", the L inputs of attention. keep: [B, t] bool, the positions that count. index: [B, t], each
        position's place in the window, from 0."""
        return ()

    def merge(self, earlier: Tensors, later: Tensors) -> Tensors:
        """The summary of two consecutive parts of a window."""
        return ()

    def carry(self, summary: Tensors, previous: Tensors, has_previous: Tensor) -> Tensors:
        """The memory after a window. `previous` is the memory before it, for rows with `has_previous` [B]."""
        return ()

    def empty(self, batch_size: int, like: Tensor) -> Tensors:
        """A placeholder before there is a memory: zeros of the shapes of `carry`. like: any [.., k]."""
        return ()

    def vectors(self, state: Tensors) -> dict[int, Tensor]:
        """By layer, counted from 1: [B, V, k], hidden vectors as they would enter that layer."""
        return {}

    def visible(self, state: Tensors) -> Tensor | None:
        """[B, V] bool: the vectors that tokens may attend to; None for all."""
        return None

    def positions(self) -> list[float]:
        """The positions of the V vectors, for rotary models; the next window's first token is at 0."""
        return [float(v - self.count) for v in range(self.count)]


def summable(x: Tensor) -> Tensor:
    """Sums over many tokens need more digits than half precision has."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def first_of_document(first: Tensor, previous: Tensor, has_previous: Tensor) -> Tensor:
    """[B, I, k]: the vectors of the document's first token, from its first window or carried on since.

    Pretrained models put unneeded attention on the first token and break without it (an attention sink). Inserted
    vectors displace a window's first token, so the document's is inserted with them.
    """
    return torch.where(has_previous[:, None, None], previous, first)
