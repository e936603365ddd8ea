"""The block-recurrent model in the paper's equations, for reading and for tests: loops, one document, no batch.

The fast model uses tiles, masks and caches; here everything is a loop over blocks, layers, heads, tokens and states.
Dropout is left out.

Shapes: N tokens of the document, t of a block (W, or fewer in the last), d features, H heads of D features,
S states. Letters of the paper: e for tokens, s for states, v for vertical (the layers), h for horizontal (the blocks).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from .configuration_block_recurrent import BlockRecurrentConfig as Config

Parameters = dict[str, Tensor]
Heads = list[Tensor]
KeysValues = tuple[Heads, Heads]


def below(parameters: Parameters, prefix: str) -> Parameters:
    """The parameters of one module, by their names inside it."""
    return {name.removeprefix(prefix): p for name, p in parameters.items() if name.startswith(prefix)}


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight


def split(x: Tensor, heads: int) -> Heads:
    """[n, H*D] -> for each head [n, D]."""
    return list(x.chunk(heads, dim=-1))


def normalised(x: Tensor) -> Tensor:
    """Every row of x [n, D] with length 1."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


def scaled(heads: Heads, scale: Tensor) -> Heads:
    """Queries of length 1, times a learned scale per head in place of 1 / sqrt(D)."""
    return [normalised(x) * scale[head] for head, x in enumerate(heads)]


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """One query [D] over keys and values [n, D]; zeros where there is nothing to attend to."""
    if len(keys) == 0:
        return torch.zeros_like(query)
    return (keys @ query + bias).softmax(0) @ values


def position_bucket(distance: int, buckets: int, max_distance: int) -> int:
    """T5's bucket of a key `distance` tokens back. Half of the buckets, e, are for one short distance each; the others
    grow by a constant factor up to `max_distance`, and everything beyond shares the last.

    From the distance e on, the bucket is e + floor(n * log(distance / e) / log(max_distance / e)), n = buckets - e,
    computed here in whole numbers.
    """
    e = buckets // 2
    if distance < e:
        return distance
    n, step = buckets - e, 0
    # log(distance / e) / log(max_distance / e) >= step / n, without the logarithms
    while step + 1 < n and distance**n * e ** (step + 1) >= max_distance ** (step + 1) * e**n:
        step += 1
    return e + step


def sliding_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    window: int,
    max_distance: int,
    attends_to_itself: bool = True,
) -> Tensor:
    """One head. query: [t, D], of the last t tokens; keys, values: [n, D], of all n tokens so far; bias: [buckets].

    A token sees itself and the W - 1 tokens before it, or the W tokens before it and not itself.
    """
    outputs = []
    for q, i in zip(query, range(len(keys) - len(query), len(keys)), strict=True):
        last = i if attends_to_itself else i - 1
        seen = range(max(0, last - window + 1), last + 1)
        far = [position_bucket(i - j, len(bias), max_distance) for j in seen]
        outputs.append(attend(q, keys[seen.start : seen.stop], values[seen.start : seen.stop], bias[far]))
    return torch.stack(outputs)  # [t, D]


def nearest_memory(query: Tensor, keys: Tensor, values: Tensor, top_k: int) -> Tensor:
    """One head. query: [t, D]; keys, values: [m, D] of all remembered tokens, which get no gradient.

    Each token attends to the `top_k` of them whose keys have the largest product with its query.
    """
    keys, values = keys.detach(), values.detach()
    outputs = []
    for q in query:
        scores = (keys @ q).tolist()
        nearest = sorted(range(len(keys)), key=lambda j: scores[j], reverse=True)[:top_k]
        outputs.append(attend(q, keys[nearest], values[nearest]))
    return torch.stack(outputs)  # [t, D]


def gate(config: Config, weights: Parameters, c: Tensor, h: Tensor) -> Tensor:
    """The next states [S, d] from the states c [S, d] and the update h [S, fan_in] (equations 1 to 7)."""
    x = h @ weights["kernel.weight"].T + weights["kernel.bias"]  # [S, d], or [S, 3d]
    single = config.gate_tanh == "single"
    bounded = config.gate_configuration == "single" if single else config.gate == "lstm"
    if config.gate == "fixed":
        z = x.tanh() if bounded else x
        g = weights["forget"].sigmoid()  # [d]
        return c * g + z * (1 - g)
    z, i, f = x.chunk(3, dim=-1)
    z = z.tanh() if bounded else z
    return c * (f + 1).sigmoid() + z * (i - 1).sigmoid()


def state_heads(config: Config, weights: Parameters, c: Tensor) -> tuple[Heads, Heads, Heads, Heads]:
    """K_s, V_s, Q_s^h, Q_e^h of the states c [S, d]: for each head [S, D]."""
    s = rms_norm(c, weights["norm.weight"], config.rms_norm_eps) + weights["ids"]
    parts = (s @ weights["projection.weight"].T).chunk(4, dim=-1)
    key, value, to_states, to_tokens = (split(part, config.num_attention_heads) for part in parts)
    to_states, to_tokens = scaled(to_states, weights["self_scale"]), scaled(to_tokens, weights["token_scale"])
    return [normalised(k) for k in key], value, to_states, to_tokens


def cell(config: Config, weights: Parameters, c: Tensor, token_keys: Heads, token_values: Heads) -> Tensor:
    """The horizontal direction. The next states [S, d] from the states c [S, d] and, for each head, the keys and
    values [W or 2W, D] of the tokens in the block that has just ended and in the block before."""
    state_keys, state_values, to_states, to_tokens = state_heads(config, weights, c)
    h = []
    for s in range(len(c)):
        found = []
        for queries, keys, values in ((to_states, state_keys, state_values), (to_tokens, token_keys, token_values)):
            for head in range(config.num_attention_heads):
                found.append(attend(queries[head][s], keys[head], values[head]))
        h.append(torch.cat(found))
    attended = torch.stack(h)  # [S, 2*H*D]

    act = ACT2FN[config.hidden_act]
    if config.gate_configuration == "single":
        return gate(config, below(weights, "mlp_gate."), c, act(attended @ weights["mlp_up.weight"].T))
    c = gate(config, below(weights, "attention_gate."), c, attended)
    if config.gate_configuration == "dual":
        n = rms_norm(c, weights["mlp_norm.weight"], config.rms_norm_eps)
        c = gate(config, below(weights, "mlp_gate."), c, act(n @ weights["mlp_up.weight"].T))
    return c


def layer(
    config: Config, weights: Parameters, remembers: bool, x: Tensor, before: KeysValues, states: KeysValues | None
) -> tuple[Tensor, KeysValues]:
    """The vertical direction, over one block x [t, d]. `before`: the layer's keys and values of all tokens before the
    block, for each head [n, D]; `states`: K_s, V_s of the states that it attends to. Returns x [t, d], and the keys and
    values with those of the block.
    """
    heads = config.num_attention_heads
    n = rms_norm(x, weights["attention_norm.weight"], config.rms_norm_eps)
    parts = (n @ weights["attention.projection.weight"].T).chunk(3 if states is None else 4, dim=-1)
    query = scaled(split(parts[0], heads), weights["attention.scale"])
    keys = [torch.cat([old, normalised(new)]) for old, new in zip(before[0], split(parts[1], heads), strict=True)]
    values = [torch.cat([old, new]) for old, new in zip(before[1], split(parts[2], heads), strict=True)]

    attended = []
    for head in range(heads):
        local = sliding_attention(
            query[head],
            keys[head],
            values[head],
            weights["attention.position_bias.weight"][:, head],
            config.window,
            config.relative_attention_max_distance,
            config.attends_to_itself,
        )
        if remembers and len(before[0][head]) > 0:
            old_keys, old_values = (part[head][-config.memory_size :] for part in before)
            g = weights["attention.memory_gate"][head].sigmoid()
            local = g * nearest_memory(query[head], old_keys, old_values, config.memory_top_k) + (1 - g) * local
        attended.append(local)
    if states is not None:
        to_states = scaled(split(parts[3], heads), weights["attention.state_scale"])
        for head in range(heads):
            attended.append(torch.stack([attend(q, states[0][head], states[1][head]) for q in to_states[head]]))

    x = x + torch.cat(attended, dim=-1) @ weights["attention.output.weight"].T
    inner = rms_norm(x, weights["mlp_norm.weight"], config.rms_norm_eps) @ weights["mlp.up.weight"].T
    return x + ACT2FN[config.hidden_act](inner) @ weights["mlp.down.weight"].T, (keys, values)


def read_document(
    config: Config, parameters: Parameters, ids: Sequence[int] | Tensor
) -> tuple[Tensor, dict[int, Tensor]]:
    """Logits [N, vocabulary] of a whole document and, by recurrent layer, counted from 1, the states [S, d] after its
    last complete block. `parameters` are named as in BlockRecurrentModel.
    """
    ids = torch.as_tensor(ids)
    embedding = parameters["embed_tokens.weight"]
    layers = {number: below(parameters, f"layers.{number - 1}.") for number in range(1, config.num_hidden_layers + 1)}
    cells = {number: below(layers[number], "cell.") for number in sorted(config.recurrent_layers)}
    states = {number: weights["initial"] for number, weights in cells.items()}

    nothing = split(embedding.new_zeros(0, config.attention_width), config.num_attention_heads)
    tokens: dict[int, KeysValues] = {number: (nothing, nothing) for number in layers}
    logits = []
    for start in range(0, len(ids), config.window):
        block = ids[start : start + config.window]
        readable = {number: state_heads(config, cells[number], c)[:2] for number, c in states.items()}

        x = embedding[block]  # [t, d]
        for number, weights in layers.items():
            read = number
            if config.feedback and number not in states:
                read = max(states)
            remembers = number == config.memory_layer
            x, tokens[number] = layer(config, weights, remembers, x, tokens[number], readable.get(read))
        n = rms_norm(x, parameters["norm.weight"], config.rms_norm_eps)
        logits.append(n @ embedding.T / math.sqrt(config.hidden_size))

        if len(block) == config.window:  # an incomplete block waits for the tokens that fill it
            for number, c in states.items():
                keys, values = ([x[-2 * config.window :] for x in part] for part in tokens[number])
                states[number] = cell(config, cells[number], c, keys, values)
    return torch.cat(logits), states


def loss(logits: Tensor, ids: Sequence[int] | Tensor) -> Tensor:
    """The mean of -log p(next token), over all tokens but the last, which has no next one."""
    ids = torch.as_tensor(ids)
    scored = []
    for i in range(len(ids) - 1):
        scored.append(logits[i].logsumexp(0) - logits[i, ids[i + 1]])
    return torch.stack(scored).mean()
