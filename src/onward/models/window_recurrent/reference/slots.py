"""Carriers of slots in plain equations: keys and values that each head keeps.

Shapes: t tokens of a window, k the backbone's width, heads of D features, V slots that are used (at most S), C columns
that a memory may be made of, G heads of queries that share a head of keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..configuration_window_recurrent import WindowRecurrenceConfig as Config
from .backbones import Backbone


@dataclass(frozen=True)
class Kept:
    """A token, as one head of one layer keeps it."""

    key: Tensor  # [D], at position 0
    value: Tensor  # [D]
    weight: Tensor  # added to its score
    mark: Tensor  # what the carrier noted about it
    age: int  # how many tokens before the next window it was read


Memory = list[list[list[Kept]]]
"""By layer of insertion and head, the oldest token first."""


@dataclass(frozen=True)
class Read:
    """What one head has when a window closes: the columns that its memory may be made of."""

    columns: list[Kept]  # the slots, then the tokens that the next window does not repeat
    turned: Tensor  # [C, D]: their keys as they were attended to
    queries: list[Tensor]  # G of [t, D], as they attended
    attention: list[Tensor]  # G of [t, C]


def read_window(
    backbone: Any, carrier: Any, config: Config, ids: Tensor, memory: Memory | None, closes: bool
) -> tuple[Tensor, Memory | None]:
    """Hidden states [t, k] of one window, and the memory after it. Slots only become keys and values."""
    x = backbone.embed(ids)
    after: Memory = []
    for layer in range(1, config.num_hidden_layers + 1):
        query, key, value = backbone.queries_keys_values(layer, backbone.attention_input(layer, x))
        queries = query.chunk(backbone.heads, dim=-1)  # of [t, D]
        keys, values = key.chunk(backbone.key_heads, dim=-1), value.chunk(backbone.key_heads, dim=-1)
        group = backbone.heads // backbone.key_heads
        heads: list[Tensor] = []
        kept: list[list[Kept]] = []
        for head in range(backbone.key_heads):
            slots: list[Kept] = []
            seen: list[Kept] = []
            if memory is not None and layer in config.insertion_layers:
                number = config.insertion_layers.index(layer)
                slots = memory[number][head]
                seen = inserted(carrier, config, slots, number, head)
            mine = queries[head * group : (head + 1) * group]
            front = [backbone.turned(slot.key, place - len(seen)) for place, slot in enumerate(seen)]
            own = [backbone.turned(k, place) for place, k in enumerate(keys[head])]
            asking = [torch.stack([backbone.turned(q, place) for place, q in enumerate(one)]) for one in mine]
            turned = torch.stack([*front, *own])  # [V + t, D]
            content = torch.stack([*(slot.value for slot in seen), *values[head]])
            added = torch.stack([*(slot.weight for slot in seen), *x.new_zeros(len(ids))])
            attention = [attend(backbone, q, turned, added) for q in asking]
            heads += [weights @ content for weights in attention]
            columns = aged(config, slots, keys[head], values[head])
            c = len(columns)
            kept.append(next_slots(config, Read(columns, turned[:c], asking, [a[:, :c] for a in attention])))
        x = backbone.after_attention(layer, x, torch.cat(heads, dim=-1))
        if layer in config.insertion_layers:
            after.append(kept)
    return backbone.hidden(x), after if closes else memory


def attend(backbone: Backbone, queries: Tensor, keys: Tensor, added: Tensor) -> Tensor:
    """How much each of t queries attends to V slots and t tokens, [t, V + t]. Slots stand right before the window."""
    count = len(keys) - len(queries)
    rows = []
    for i, query in enumerate(queries):
        scores = keys @ query / math.sqrt(len(query)) + added
        hidden = [
            (backbone.causal and place > i) or (backbone.local is not None and abs(i - place) >= backbone.local)
            for place in range(-count, len(queries))
        ]
        rows.append(scores.masked_fill(torch.tensor(hidden), -math.inf).softmax(0))
    return torch.stack(rows)


def aged(config: Config, slots: list[Kept], keys: Tensor, values: Tensor) -> list[Kept]:
    """What the next memory may hold: the slots, and the window's tokens up to where the next window begins."""
    end = max(0, len(keys) - config.overlap)
    nothing = keys.new_zeros(())
    older = [replace(slot, age=slot.age + end) for slot in slots]
    return older + [Kept(keys[i], values[i], nothing, nothing, age=end - i) for i in range(end)]


def inserted(carrier: Any, config: Config, slots: list[Kept], number: int, head: int) -> list[Kept]:
    """The slots as a window sees them: corrected by what was learned, or learned altogether."""
    if config.carrier == "constant":
        learned = zip(carrier.keys[number][head], carrier.values[number][head], strict=True)
        return [Kept(key, value, key.new_zeros(()), key.new_zeros(()), age=1) for key, value in learned]
    return [corrected(carrier.corrections[number], slot, head) for slot in slots]


def corrected(learned: Any, slot: Kept, head: int) -> Kept:
    """key + key A B, value + value A' B', and weight + key w + b + b' log(age)."""
    by_age = learned.by_age[head]
    return replace(
        slot,
        key=slot.key + slot.key @ learned.key_down[head] @ learned.key_up[head],
        value=slot.value + slot.value @ learned.value_down[head] @ learned.value_up[head],
        weight=slot.weight + slot.key @ learned.weight[head] + by_age[0] + by_age[1] * math.log(slot.age),
    )


# -- what is kept of a window


def next_slots(config: Config, read: Read) -> list[Kept]:
    return {"recent": recent, "selected": selected, "matched": matched, "constant": constant}[config.carrier](
        config, read
    )


def recent(config: Config, read: Read) -> list[Kept]:
    """The document's first tokens, and the last ones."""
    if len(read.columns) <= config.vector_count:
        return read.columns
    last = config.vector_count - config.sinks
    return read.columns[: config.sinks] + read.columns[len(read.columns) - last :]


def selected(config: Config, read: Read) -> list[Kept]:
    """Those, but of the last ones only as many as half of the slots; and of all others the ones with the highest
    score, the newest of equals."""
    scores = SCORES[config.score](read)
    count, total = config.vector_count, len(read.columns)
    last = min(math.ceil(count / 2), count - config.sinks)
    always = [c for c in range(total) if c < config.sinks or c >= total - last]
    newest_first = [c for c in reversed(range(total)) if c not in always]
    others = sorted(newest_first, key=lambda c: float(scores[c].detach()), reverse=True)
    chosen = sorted([*always, *others[: count - len(always)]])
    return [replace(read.columns[c], mark=scores[c].detach()) for c in chosen]


def matched(config: Config, read: Read) -> list[Kept]:
    """The same choice; then a log weight for each kept key, and a correction of its value."""
    return selected(config, read)


def constant(config: Config, read: Read) -> list[Kept]:
    """Nothing of the window."""
    return []


def attention(read: Read) -> list[Tensor]:
    """The mean square of the attention that the window's queries gave to each column."""
    return [torch.stack([a[:, c].square().mean() for a in read.attention]).mean() for c in range(len(read.columns))]


def received(read: Read) -> list[Tensor]:
    """The same, and what was noted before, fading."""
    return [0.9 * column.mark + score for column, score in zip(read.columns, attention(read), strict=True)]


def key_difference(read: Read) -> list[Tensor]:
    """1 - the cosine of a key and the mean of all keys, each of length 1."""
    directions = [column.key / column.key.norm() for column in read.columns]
    if not directions:
        return []
    mean = torch.stack(directions).mean(0)
    return [1 - direction @ mean / mean.norm() for direction in directions]


SCORES = {"attention": attention, "received": received, "key_difference": key_difference}
