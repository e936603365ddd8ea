"""A learned memory that does not depend on the text: the control for a memory's content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..slots import ReadWindow, Slots
from .base import CARRIERS, Defaults, SlotCarrier, Tensors, VectorCarrier, carrier

if TYPE_CHECKING:
    from ..configuration_window_recurrent import WindowRecurrenceConfig


@carrier("constant")
class Constant(VectorCarrier):
    """A learned memory that does not depend on the text: the control for a memory's content.

    It replaces another carrier: the same maps, layers and number of vectors, with a parameter as the memory. Trained
    on the same tokens, it gains everything that an attention sink and adaptation to the domain give.
    """

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.inner: VectorCarrier = cast(Any, CARRIERS[config.stands_for](config))
        learned = self.inner.empty(1, torch.empty(0))
        self.floating = [t.is_floating_point() for t in learned]
        self.learned = nn.ParameterList(t for t in learned if t.is_floating_point())
        self._freeze_unused()

    def _freeze_unused(self) -> None:
        """Parameters that only write a memory are unused here, and distributed training waits for every gradient."""
        with torch.enable_grad():
            total = torch.stack([vector.sum() for vector in self.vectors(()).values()]).sum()
        named = list(self.inner.parameters())
        for parameter, gradient in zip(named, torch.autograd.grad(total, named, allow_unused=True), strict=True):
            parameter.requires_grad_(gradient is not None)

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        return CARRIERS[config.stands_for].defaults(config)

    def start_from(self, memory: Tensors) -> None:
        """Starts from the mean of real memories, which training then need not find."""
        means = [t.detach().float().mean(0, keepdim=True) for t in memory if t.is_floating_point()]
        for parameter, mean in zip(self.learned, means, strict=True):
            parameter.data.copy_(mean)

    def vectors(self, state: Tensors) -> dict[int, Tensor]:
        # The leading axis of one is expanded to the batch at insertion. Flags are all True.
        learned, like = iter(self.learned), self.learned[0]
        flags = self.inner.empty(1, like)
        return self.inner.vectors(
            tuple(next(learned) if f else t.logical_not() for f, t in zip(self.floating, flags, strict=True))
        )

    def positions(self) -> list[float]:
        return self.inner.positions()


class ConstantSlots(SlotCarrier):
    """The same for keys and values: learned ones in every slot, whatever was read."""

    needs_queries = False
    corrects = False
    adapts = True

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        shapes = [config.slot_shapes[layer - 1] for layer in self.layers]
        self.keys = nn.ParameterList(torch.zeros(heads, self.count, key) for heads, key, _ in shapes)
        self.values = nn.ParameterList(torch.zeros(heads, self.count, value) for heads, _, value in shapes)
        self.register_state_dict_post_hook(_only_those_in_use)

    @property
    def most(self) -> int:
        """How many were learned; with fewer slots, the last of them are used."""
        return self.keys[0].shape[1]

    def next(self, window: ReadWindow, layer: int) -> Slots:
        slots = Slots(*(part[:, :, : self.count] for part in window.slots))  # those before the window: nothing of it
        return slots._replace(ages=torch.ones_like(slots.ages))

    def inserted(self, slots: Slots, layer: int) -> Slots:
        at = self.layers.index(layer)
        keys, values = (learned[at][:, -self.count :] for learned in (self.keys, self.values))
        return slots._replace(keys=keys.expand_as(slots.keys), values=values.expand_as(slots.values))

    def start_from(self, memory: Tensors) -> None:
        """Starts from the mean of real memories, which training then need not find. memory: what `Slots` of each layer
        have in floating point."""
        floating = len(Slots._fields) - 1
        for number, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            mean_keys, mean_values = (t.detach().float().mean(0) for t in memory[number * floating :][:2])
            keys.data.copy_(mean_keys)
            values.data.copy_(mean_values)


def _only_those_in_use(carrier: ConstantSlots, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    """Saves as many slots as the configuration says."""
    for name, _ in carrier.named_parameters():
        state[prefix + name] = state[prefix + name][:, -carrier.count :]
