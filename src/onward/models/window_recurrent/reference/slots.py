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
    age: int  # how many tokens before the next window it was read; of several, the first
    merged: bool = False  # whether it stands for several


Memory = list[list[list[Kept]]]
"""By layer of insertion and head, the oldest token first."""


@dataclass(frozen=True)
class Read:
    """What one head has when a window closes: the columns that its memory may be made of."""

    backbone: Backbone
    columns: list[Kept]  # the slots, then the tokens that the next window does not repeat
    slots: int  # how many of them are slots
    places: list[int]  # of all that was seen: slots, then all tokens of the window
    turned: Tensor  # [V + t, D]: their keys as they were attended to
    added: Tensor  # [V + t]: to their scores
    queries: list[Tensor]  # G of [t, D], as they attended
    unturned: list[Tensor]  # G of [t, D], at position 0


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
            places = [*range(-len(seen), 0), *range(len(ids))]
            read = Read(backbone, columns, len(slots), places, turned, added, asking, list(mine))
            kept.append(next_slots(config, read))
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
    scores = [score.detach() for score in SCORES[config.score](config, read)]
    chosen = best(config, read, scores, first=0, count=config.vector_count)
    return [replace(read.columns[c], mark=scores[c]) for c in chosen]


def best(config: Config, read: Read, scores: list[Tensor], first: int, count: int) -> list[int]:
    """Of the columns from `first` on."""
    numbers = list(range(first, len(read.columns)))
    last = min(math.ceil((config.vector_count - config.sinks) / 2), 32)
    always = numbers[: config.sinks] + numbers[config.sinks :][-last:]
    newest_first = [c for c in reversed(numbers) if c not in always]
    others = sorted(newest_first, key=lambda c: float(scores[c]), reverse=True)
    return sorted([*always, *others[: count - len(always)]])


def matched(config: Config, read: Read) -> list[Kept]:
    """The same choice, with fewer tokens; all others are merged into a few slots, which stand before them."""
    most = min(4, (config.vector_count - config.sinks) // 8)
    scores = [score.detach() for score in SCORES[config.score](config, read)]
    before = sum(column.merged for column in read.columns[: read.slots])  # they are the first columns
    chosen = best(config, read, scores, first=before, count=config.vector_count - most)
    kept = [replace(read.columns[c], mark=scores[c]) for c in chosen]
    dropped = [c for c in range(before, len(read.columns)) if c not in chosen and most]
    homes = list(range(before))
    for slot in range(before, most):  # the last slots are used first
        newer = (2 * slot + 1) * max(len(dropped), most) // (2 * most)
        if newer < len(dropped):
            homes.insert(0, dropped[-1 - newer])
    members: list[list[int]] = [[home] for home in homes]
    for c in dropped:
        if c not in homes:
            likeness = [float(cosine(read.columns[c].key, read.columns[home].key).detach()) for home in homes]
            members[likeness.index(max(likeness))].append(c)
    places = range(-len(kept) - len(homes), -len(kept))
    return [together(config, read, group, place) for group, place in zip(members, places, strict=True)] + kept


def together(config: Config, read: Read, group: list[int], place: int) -> Kept:
    """What stands for a group of columns, at a place before the next window: means of keys and values, each with as
    much weight as it would get attention; and a weight that gives it the attention that all would have got."""
    expected = outlook(config, read)
    mass = torch.stack([torch.stack([a[:, c].mean() for a, _ in expected]).mean() for c in group]).detach() + 1e-30
    shares = mass / mass.sum()
    key = shares @ torch.stack([read.columns[c].key for c in group])
    value = shares @ torch.stack([read.columns[c].value for c in group])
    turned = read.backbone.turned(key, place)
    alone = [
        (query @ turned / math.sqrt(len(key)) - normaliser).exp().mean()
        for query, (_, normaliser) in zip(read.queries, expected, strict=True)
    ]
    weight = (mass.sum() / (torch.stack(alone).mean() + 1e-30)).log().detach()
    weight = weight.clamp(max=math.log(config.vector_count + config.window))
    age = max(read.columns[c].age for c in group)
    return Kept(key, value, weight, torch.zeros_like(weight), age, merged=True)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return a @ b / (a.norm() * b.norm())


def constant(config: Config, read: Read) -> list[Kept]:
    """Nothing of the window."""
    return []


def outlook(config: Config, read: Read) -> list[tuple[Tensor, Tensor]]:
    """For each of G heads of queries: how much the next window would attend to each column [t, C], if it asked what
    this one asks; and the logarithm of what all its scores sum up to [t].

    The next window's queries stand as many tokens further on as it begins after this one. They see all columns, and
    tokens of their own, which get the scores that this window's tokens got from the queries as they stood.
    """
    count, tokens = len(read.columns), len(read.queries[0])
    slots = len(read.places) - tokens
    end = max(0, tokens - config.overlap)
    result = []
    for query, unturned in zip(read.queries, read.unturned, strict=True):
        weights, sums = [], []
        for i in range(tokens):
            later = read.backbone.turned(unturned[i], i + end)
            far = read.turned @ later / math.sqrt(len(later)) + read.added
            near = read.turned @ query[i] / math.sqrt(len(later)) + read.added
            backbone = read.backbone
            scores = [
                far[c] if backbone.local is None or i + end - read.places[c] < backbone.local else far[c] * 0 - math.inf
                for c in range(count)
            ]
            own = [
                near[slots + j]
                for j in range(tokens)
                if not (backbone.causal and j > i) and (backbone.local is None or abs(i - j) < backbone.local)
            ]
            total = torch.stack([*scores, *own]).logsumexp(0)
            weights.append((torch.stack(scores) - total).exp() if scores else far[:0])
            sums.append(total)
        result.append((torch.stack(weights), torch.stack(sums)))
    return result


def attention(config: Config, read: Read) -> list[Tensor]:
    """The mean square of the attention that the next window would give to each column."""
    expected = [weights for weights, _ in outlook(config, read)]
    return [
        torch.stack([weights[:, c].square().mean() for weights in expected]).mean() for c in range(len(read.columns))
    ]


def received(config: Config, read: Read) -> list[Tensor]:
    """The same; of slots, the mean of it and of what was noted before."""
    now = attention(config, read)
    slots = [(column.mark + score) / 2 for column, score in zip(read.columns[: read.slots], now, strict=False)]
    return slots + now[read.slots :]


def key_difference(config: Config, read: Read) -> list[Tensor]:
    """1 - the cosine of a key and the mean of all keys, each of length 1."""
    directions = [column.key / column.key.norm() for column in read.columns]
    if not directions:
        return []
    mean = torch.stack(directions).mean(0)
    return [1 - direction @ mean / mean.norm() for direction in directions]


SCORES = {"attention": attention, "received": received, "key_difference": key_difference}
