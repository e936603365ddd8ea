"""How a backbone turns its keys with their positions, layer by layer: found by looking, without code per family.

A rotary key at position p is R(p) k, k being the key at position 0: the features form pairs, and each pair is turned
by p times an angle of its own. Memories keep keys at position 0, and turn them to wherever they stand in the next
window. Which features form pairs, and by which angle, differs between families, layers and kinds of scaling. So the
backbone is run on single tokens at several positions: a token that is alone attends to itself only, whatever its
position, so that nothing but the angle of its keys may change. Keys that change in another way cannot be turned.

Shapes: N keys of one layer, D features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .seam import Call, backbone_layers, looked_at_once, takes_positions, taking

TOKENS = 64
POSITIONS = (1, 4, 16, 64, 256)
"""Where keys are looked at. The first tells the angle, up to a turn a token; the others make it precise."""


@dataclass(frozen=True, eq=False)
class Turning:
    """How one layer's keys turn: x at position p is x cos(p angle) + x[partner] sin(p angle)."""

    partner: Tensor  # [D]
    angle: Tensor  # [D], per position; a pair's two angles differ in sign

    @property
    def turns(self) -> bool:
        return bool(self.angle.any())

    def equals(self, other: Turning) -> bool:
        alike = torch.equal(self.partner, other.partner)
        return alike and torch.allclose(self.angle, other.angle, rtol=0, atol=1e-12)

    def table(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines for `positions` [..]: each [.., D], with the dtype of `like`."""
        if not self.turns:
            return None
        exact = torch.float64 if like.dtype == torch.float64 else torch.float32
        phase = positions[..., None].to(exact) * self.angle.to(like.device, exact)
        return phase.cos().to(like.dtype), phase.sin().to(like.dtype)

    def turn(self, x: Tensor, table: tuple[Tensor, Tensor] | None) -> Tensor:
        """x [.., D] turned on by what a table says."""
        if table is None:
            return x
        return x * table[0] + self._partners(x) * table[1]

    def _partners(self, x: Tensor) -> Tensor:
        if self._apart:  # many times faster
            return x.roll(self._apart, -1)
        return x.index_select(-1, self.partner.to(x.device))

    @cached_property
    def _apart(self) -> int:
        """How far every feature is from its partner, if that is the same for all; 0 if not."""
        apart = (torch.arange(len(self.partner)) - self.partner) % len(self.partner)
        return int(apart[0]) if bool((apart == apart[0]).all()) else 0


class CannotTurn(ValueError):
    """A backbone's keys depend on their positions in another way than by turning."""


@looked_at_once
@torch.inference_mode(False)  # what is kept must serve training, too
def turnings_of(base: PreTrainedModel) -> tuple[Turning, ...]:
    """How the keys of each layer of a backbone turn."""
    ids = torch.arange(min(TOKENS, base.config.get_text_config().vocab_size), device=base.device)[:, None]
    longest = getattr(base.config.get_text_config(), "max_position_embeddings", None) or max(POSITIONS) + 1
    looks = [p for p in (0, *POSITIONS) if p < longest] if takes_positions(base) else [0]
    seen = {position: _keys_and_values(base, ids, position) for position in looks}
    rotates = any(type(module).__name__.endswith("RotaryEmbedding") for module in base.modules())
    first = seen[0]
    moves = any(
        not _alike(value, first[number][1], 1e-2)
        for layers in seen.values()
        for number, (_, value) in enumerate(layers)
    )
    if len(looks) == 1 or moves:
        if rotates:
            raise CannotTurn("its values depend on the position, too")
        return tuple(still(layer[0].shape[-1]) for layer in seen[0])
    found: list[Turning] = []
    for number in range(len(backbone_layers(base))):
        turning = measure({p: layers[number][0].flatten(0, -2) for p, layers in seen.items()})
        if turning is None:
            raise CannotTurn(f"the keys of layer {number + 1} change with the position in another way than by turning")
        found.append(next((other for other in found if other.equals(turning)), turning))  # one object for all alike
    return tuple(found)


@torch.no_grad()
def _keys_and_values(base: PreTrainedModel, ids: Tensor, position: int) -> list[tuple[Tensor, Tensor]]:
    """Of single tokens [N, 1] at one position, by layer."""
    looking = _Looking(base)
    given: dict[str, Any] = {}
    if takes_positions(base):
        given["position_ids"] = torch.full_like(ids, position)
    training = base.training
    if training:  # dropout differs from call to call
        base.eval()
    try:
        # Angles that are seen in half precision would be too coarse for positions far away.
        with taking(looking), torch.autocast(base.device.type, enabled=False):
            base(input_ids=ids, **given)
    finally:
        if training:
            base.train()
    return [looking.seen[layer] for layer in sorted(looking.seen)]


class _Looking:
    def __init__(self, base: PreTrainedModel):
        self.base, self.seen = base, dict[int, tuple[Tensor, Tensor]]()

    def attend(self, call: Call) -> Any:
        self.seen[call.layer] = call.key, call.value
        return call.own()


def still(width: int) -> Turning:
    """Of keys that do not turn: models with learned positions, layers without any."""
    return Turning(torch.arange(width), torch.zeros(width, dtype=torch.float64))


def measure(at: dict[int, Tensor]) -> Turning | None:
    """How keys turn, from keys [N, D] of the same tokens at position 0 and others; None if it is not by turning."""
    keys = {position: key.double().cpu() for position, key in at.items()}
    # Rotary angles are computed in float32 whatever the model's dtype, and large ones lose a few digits.
    rounding = max(4 * torch.finfo(next(iter(at.values())).dtype).eps, 1e-4)
    start = keys.pop(0)
    if all(_alike(key, start, rounding) for key in keys.values()):
        return still(start.shape[1])
    pairs = _pairs(start, keys, rounding)
    if pairs is None:
        return None
    angles = torch.zeros(len(pairs), dtype=torch.float64)
    before = _as_pairs(start, pairs)
    for position in sorted(keys):  # each angle is known well enough to tell how many whole turns the next one made
        seen = (before.conj() * _as_pairs(keys[position], pairs)).sum(0).angle()
        missed = seen - angles * position
        angles += (missed - 2 * math.pi * (missed / (2 * math.pi)).round()) / position
    partner, angle = torch.arange(start.shape[1]), torch.zeros(start.shape[1], dtype=torch.float64)
    for (i, j), turned in zip(pairs, angles, strict=True):
        partner[i], partner[j], angle[i], angle[j] = j, i, -turned, turned
    turning = Turning(partner, angle)
    turned = (turning.turn(start, turning.table(torch.tensor(p), start)) for p in keys)
    if not all(_alike(key, expected, rounding) for key, expected in zip(keys.values(), turned, strict=True)):
        return None
    return turning


def _pairs(start: Tensor, keys: dict[int, Tensor], rounding: float) -> list[tuple[int, int]] | None:
    """Pairs are neighbours, or as far apart as the first feature that turns is from its partner."""
    width, least = start.shape[1], 8 * rounding * start.norm(dim=0)
    moves = {position: (keys[position] - start).norm(dim=0) > least for position in sorted(keys)}
    seen = [position for position, moved in moves.items() if moved.any()]
    if not seen:
        return None
    near, first = keys[seen[0]], int(moves[seen[0]].nonzero()[0])  # angles can be so small that rounding hides a step
    apart = next(
        (j - first for j in range(first + 1, width) if _rotates(start[:, [first, j]], near[:, [first, j]], rounding)), 0
    )
    if apart == 0:
        return None
    if apart == 1:
        return [(i, i + 1) for i in range(first, width - 1, 2)]
    return [(i, i + apart) for i in range(first, min(first + apart, width - apart))]


def _rotates(before: Tensor, after: Tensor, rounding: float) -> bool:
    """Whether one angle turns every pair [N, 2] before to the pair after."""
    a, b = (torch.complex(x[:, 0], x[:, 1]) for x in (before, after))
    turn = (a.conj() * b).sum()
    return bool(turn.abs() > 0) and _alike(torch.view_as_real(a * turn / turn.abs()), after, rounding)


def _as_pairs(keys: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    first, second = (list(side) for side in zip(*pairs, strict=True))
    return torch.complex(keys[:, first], keys[:, second])


def _alike(found: Tensor, expected: Tensor, rounding: float) -> bool:
    return bool((found - expected).norm() <= rounding * expected.norm())
