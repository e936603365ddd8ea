"""The plain reference of the block-recurrent model by itself: against numbers worked by hand, and facts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from block_models import CASES, draw, tiny
from tiny_models import tokens
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5Attention

from onward.models.block_recurrent.configuration_block_recurrent import BlockRecurrentConfig
from onward.models.block_recurrent.reference import (
    cell,
    gate,
    loss,
    nearest_memory,
    position_bucket,
    read_document,
    rms_norm,
    sliding_attention,
)

RECURRENT = [case for case in CASES if tiny(case).recurrent_layers]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def doubles(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def differ(a: Tensor, b: Tensor) -> list[bool]:
    """For each token whether its logits [N, V] differ."""
    return ((a - b).abs().amax(1) > 1e-9).tolist()


# -- sliding attention


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (32, 200), (8, 20), (6, 7), (7, 50), (2, 2)])
def test_buckets_are_those_of_t5(buckets: int, max_distance: int) -> None:
    distances = torch.arange(601)
    theirs = T5Attention._relative_position_bucket(
        -distances, bidirectional=False, num_buckets=buckets, max_distance=max_distance
    )
    assert [position_bucket(distance, buckets, max_distance) for distance in range(601)] == theirs.tolist()


def test_buckets_worked_by_hand() -> None:
    # Four buckets of one distance each; the next begin at 4, 4 * sqrt(2), 4 * 2, 4 * 2 * sqrt(2).
    found = [position_bucket(distance, 8, 16) for distance in range(20)]
    assert found == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7]


def test_where_a_bucket_begins_at_a_whole_number_it_begins_there() -> None:
    # 16 * (256 / 16) ** (step / 16): the 4th, 8th and 12th begin at 32, 64 and 128.
    for step, distance in ((4, 32), (8, 64), (12, 128)):
        assert position_bucket(distance, 32, 256) == 16 + step
        assert position_bucket(distance - 1, 32, 256) == 16 + step - 1


def test_equal_scores_give_the_mean_over_the_window() -> None:
    value = doubles(1, 2, 4, 8, 16)[:, None]
    nothing, bias = torch.zeros_like(value), doubles(0, 0, 0, 0)
    itself = sliding_attention(nothing, nothing, value, bias, 2, 10)
    close(itself[:, 0], doubles(1, 1.5, 3, 6, 12))
    others = sliding_attention(nothing, nothing, value, bias, 2, 10, attends_to_itself=False)
    close(others[:, 0], doubles(0, 1, 1.5, 3, 6))


def test_the_bias_belongs_to_the_distance() -> None:
    value = doubles(1, 2, 4, 8, 16)[:, None]
    nothing = torch.zeros_like(value)
    for distance, expected in ((0, [1, 2, 4, 8, 16]), (1, [1, 1, 2, 4, 8]), (2, [1, 1.5, 1, 2, 4])):
        bias = doubles(0, 0, 0, 0, 0, 0)
        bias[distance] = 60  # all that is there to see at this distance gets all the weight
        close(sliding_attention(nothing, nothing, value, bias, 3, 10)[:, 0], doubles(*expected))


@pytest.mark.parametrize("itself", [True, False])
def test_weights_sum_to_one(itself: bool) -> None:
    query, key, bias = numbers(11, 4), numbers(11, 4, seed=1), numbers(8, seed=2)
    found = sliding_attention(query, key, torch.ones(11, 4).double(), bias, 5, 12, itself)
    close(found[1:], torch.ones_like(found[1:]))
    close(found[0], torch.full_like(found[0], float(itself)))


@pytest.mark.parametrize("itself", [True, False])
def test_sliding_attention_is_masked_attention(itself: bool) -> None:
    count, window, bias = 23, 6, numbers(8, seed=3)
    query, key, value = (numbers(count, 4, seed=seed) for seed in range(3))
    mask = torch.full((count, count), -math.inf, dtype=torch.float64)
    for i in range(count):
        for j in range(count):
            if (0 <= i - j < window) if itself else (0 < i - j <= window):
                mask[i, j] = bias[position_bucket(i - j, 8, 5)]
    whole = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=1.0)
    found = sliding_attention(query, key, value, bias, window, 5, itself)
    close(found[1:], whole[1:])
    end = sliding_attention(query[-4:], key, value, bias, window, 5, itself)
    close(end, found[-4:])


# -- memory


def test_one_nearest_neighbour_is_taken_as_it_is() -> None:
    key = doubles([1, 0], [0, 1], [-1, 0])
    value = doubles([10, 20], [30, 40], [50, 60])
    query = doubles([0.9, 0.1], [-0.2, 0.1], [0.1, 5])
    close(nearest_memory(query, key, value, 1), value[[0, 2, 1]])


def test_two_nearest_neighbours_worked_by_hand() -> None:
    key, value = doubles([1], [3], [2]), doubles([10], [20], [40])
    first = 1 / (1 + math.exp(-1))  # of keys 3 and 2: softmax(3, 2)
    close(nearest_memory(doubles([1]), key, value, 2), doubles([20 * first + 40 * (1 - first)]))
    close(nearest_memory(doubles([-1]), key, value, 2), doubles([10 * first + 40 * (1 - first)]))


def test_with_room_for_all_it_is_attention_and_nothing_learns_to_be_remembered() -> None:
    query, key, value = (numbers(7, 4, seed=seed).requires_grad_() for seed in range(3))
    found = nearest_memory(query, key, value, 100)
    close(found, (query @ key.T).softmax(-1) @ value)
    by_query, by_key, by_value = torch.autograd.grad(found.sum(), (query, key, value), allow_unused=True)
    assert by_query.abs().max() > 1e-3
    assert by_key is None and by_value is None


# -- gates and cell


def gate_config(kind: str, configuration: str = "skip", tanh: str = "lstm") -> BlockRecurrentConfig:
    return BlockRecurrentConfig(gate=kind, gate_configuration=configuration, gate_tanh=tanh)


def kernel(rows: int, bias: float) -> dict[str, Tensor]:
    return {"kernel.weight": torch.zeros(rows, 3).double(), "kernel.bias": torch.full((rows,), bias).double()}


@pytest.mark.parametrize("forget", [-math.inf, math.inf])
def test_a_fixed_gate_that_is_open_takes_all_and_one_that_is_closed_nothing(forget: float) -> None:
    weights = {
        "kernel.weight": numbers(2, 3),
        "kernel.bias": numbers(2, seed=1),
        "forget": torch.full((2,), forget).double(),
    }
    c, h = numbers(5, 2, seed=2), numbers(5, 3, seed=3)
    z = h @ weights["kernel.weight"].T + weights["kernel.bias"]
    close(gate(gate_config("fixed"), weights, c, h), c if forget > 0 else z)


def test_gates_worked_by_hand() -> None:
    c, h = doubles([2, -4]), doubles([1, 1, 1])
    fixed = {**kernel(2, 10.0), "forget": doubles(math.log(3), 0)}  # sigmoid: 3/4 and 1/2
    close(gate(gate_config("fixed"), fixed, c, h), doubles([4, 3]))
    remember, take = 0.7310585786300049, 0.2689414213699951  # sigmoid(1), sigmoid(-1)
    for tanh, z in (("lstm", math.tanh(0.0)), ("single", 0.0)):
        close(gate(gate_config("lstm", tanh=tanh), kernel(6, 0.0), c, h), c * remember + z * take)
    rows = kernel(6, 0.0)
    rows["kernel.bias"] = doubles(0.5, -0.5, 1, 1, -1, -1)  # z, i, f: half is taken, half is kept
    close(gate(gate_config("lstm"), rows, c, h), c / 2 + doubles(0.5, -0.5).tanh() / 2)


@pytest.mark.parametrize("tanh", ["lstm", "single"])
@pytest.mark.parametrize("configuration", ["dual", "single", "skip"])
@pytest.mark.parametrize("kind", ["fixed", "lstm"])
def test_where_a_gate_has_its_tanh(kind: str, configuration: str, tanh: str) -> None:
    bounded = kind == "lstm" if tanh == "lstm" else configuration == "single"
    weights = kernel(3 if kind == "lstm" else 1, 5.0)
    if kind == "fixed":
        weights["forget"] = doubles(-math.inf)
    found = gate(gate_config(kind, configuration, tanh), weights, doubles([0]), doubles([0, 0, 0])).item()
    open_by = 1 / (1 + math.exp(-4)) if kind == "lstm" else 1
    assert found == pytest.approx((math.tanh(5) if bounded else 5) * open_by, rel=1e-12)


def test_rms_norm_is_that_of_torch() -> None:
    x, weight = numbers(3, 8), numbers(8, seed=1)
    close(rms_norm(x, weight, 1e-3), torch.nn.functional.rms_norm(x, (8,), weight, 1e-3))


def test_a_cell_without_preferences_averages_over_states_and_tokens() -> None:
    config = tiny("Rec:fixed:skip", num_states=3, hidden_size=8, num_attention_heads=2)  # heads of 4
    weights = {name.removeprefix("layers.1.cell."): p for name, p in draw(config).items() if ".cell." in name}
    nothing = {name: torch.zeros(2).double() for name in ("self_scale", "token_scale")}
    c, keys, values = numbers(3, 8), list(numbers(2, 16, 4, seed=1)), list(numbers(2, 16, 4, seed=2))
    s = torch.nn.functional.rms_norm(c, (8,), weights["norm.weight"], config.rms_norm_eps) + weights["ids"]
    state_values = s @ weights["projection.weight"][8:16].T
    h = torch.cat([state_values.mean(0), values[0].mean(0), values[1].mean(0)])  # the same for every state
    z = weights["attention_gate.kernel.weight"] @ h + weights["attention_gate.kernel.bias"]
    g = weights["attention_gate.forget"].sigmoid()
    close(cell(config, weights | nothing, c, keys, values), c * g + z * (1 - g))


def test_a_cell_of_one_state_and_one_token_reads_just_these() -> None:
    config = tiny("Rec:lstm:single", num_states=1, hidden_size=8, num_attention_heads=2)
    weights = {name.removeprefix("layers.1.cell."): p for name, p in draw(config).items() if ".cell." in name}
    c, keys, values = numbers(1, 8), list(numbers(2, 1, 4, seed=1)), list(numbers(2, 1, 4, seed=2))
    s = torch.nn.functional.rms_norm(c, (8,), weights["norm.weight"], config.rms_norm_eps) + weights["ids"]
    h = torch.cat([(s @ weights["projection.weight"][8:16].T)[0], values[0][0], values[1][0]])
    inner = (weights["mlp_up.weight"] @ h).relu()
    z, i, f = (weights["mlp_gate.kernel.weight"] @ inner + weights["mlp_gate.kernel.bias"]).chunk(3)
    expected = c * (f + 1).sigmoid() + z.tanh() * (i - 1).sigmoid()
    close(cell(config, weights, c, keys, values), expected)


@pytest.mark.parametrize("case", ["Rec:lstm:dual", "Rec:fixed:single", "Rec:fixed:skip"])
def test_a_cell_does_not_know_the_order_of_tokens(case: str) -> None:
    config = tiny(case)
    weights = {name.removeprefix("layers.1.cell."): p for name, p in draw(config).items() if ".cell." in name}
    keys, values, order = list(numbers(4, 16, 8)), list(numbers(4, 16, 8, seed=1)), torch.randperm(16)
    c = weights["initial"]
    shuffled = cell(config, weights, c, [k[order] for k in keys], [v[order] for v in values])
    close(cell(config, weights, c, keys, values), shuffled)


# -- documents


def test_loss_is_cross_entropy() -> None:
    logits, ids = numbers(9, 99), tokens(9)
    close(loss(logits, ids), torch.nn.functional.cross_entropy(logits[:-1], ids[1:]))
    assert loss(torch.zeros(5, 99), ids[:5]).item() == pytest.approx(math.log(99))


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_no_token_sees_those_after_it(case: str) -> None:
    """Also not by the state: what a block writes, only the next block reads."""
    config, ids = tiny(case, window=4), tokens(14)
    parameters = draw(config)
    before, _ = read_document(config, parameters, ids)
    for place in (5, 11):
        changed = ids.clone()
        changed[place] = 1
        after, _ = read_document(config, parameters, changed)
        changes = differ(before, after)
        assert not any(changes[:place])
        assert changes[place]


@pytest.mark.parametrize("itself", [True, False])
@torch.no_grad()
def test_sliding_attention_reaches_a_window_in_every_layer(itself: bool) -> None:
    config, ids = tiny("Slide:12L", window=5, attends_to_itself=itself), tokens(30)
    parameters = draw(config)
    changed = ids.clone()
    changed[7] = 1
    changes = differ(read_document(config, parameters, ids)[0], read_document(config, parameters, changed)[0])
    reach = config.num_hidden_layers * (4 if itself else 5)
    assert changes == [7 <= i <= 7 + reach for i in range(30)]


@pytest.mark.parametrize("case", ["Rec:lstm:dual", "Rec:fixed:skip", "Feedback:fixed:skip", "Memorizing:32k"])
@torch.no_grad()
def test_states_and_memory_reach_further(case: str) -> None:
    config, ids = tiny(case, window=5, num_hidden_layers=2), tokens(30)
    parameters = draw(config)
    changed = ids.clone()
    changed[7] = 1
    changes = differ(read_document(config, parameters, ids)[0], read_document(config, parameters, changed)[0])
    assert all(changes[20:])


@pytest.mark.parametrize("case", RECURRENT)
@torch.no_grad()
def test_only_complete_blocks_change_the_states(case: str) -> None:
    config, ids = tiny(case, window=4), tokens(9)
    parameters = draw(config)
    by_length = {n: read_document(config, parameters, ids[:n])[1] for n in (3, 4, 7, 8, 9)}
    for number in config.recurrent_layers:
        initial = parameters[f"layers.{number - 1}.cell.initial"]
        states = {n: found[number] for n, found in by_length.items()}
        assert list(states[3].shape) == [config.num_states, config.hidden_size]
        close(states[3], initial)
        assert (states[4] - initial).abs().max() > 1e-3
        close(states[7], states[4])
        assert (states[8] - states[4]).abs().max() > 1e-3
        close(states[9], states[8])


@torch.no_grad()
def test_with_an_empty_memory_the_first_block_is_that_of_sliding_attention() -> None:
    config, plain, ids = tiny("Memorizing:32k"), tiny("Slide:12L"), tokens(11)
    parameters = draw(config)
    ours, _ = read_document(config, parameters, ids)
    theirs, _ = read_document(plain, parameters, ids)
    assert differ(ours, theirs) == [i >= 8 for i in range(11)]


@torch.no_grad()
def test_the_memory_forgets_what_is_older_than_its_size() -> None:
    """In the last layer nothing but the memory itself reaches back, and that by 2 blocks."""
    config, ids = tiny("Memorizing:32k", num_hidden_layers=1, window=4, memory_size=8, memory_top_k=8), tokens(18)
    parameters = draw(config)
    changed = ids.clone()
    changed[2] = 1
    changes = differ(read_document(config, parameters, ids)[0], read_document(config, parameters, changed)[0])
    assert changes == [2 <= i < 12 for i in range(18)]


@torch.no_grad()
def test_with_feedback_other_layers_read_the_states_of_the_last_recurrent_layer() -> None:
    config, ids = tiny("Feedback:fixed:skip", recurrent_layers=[1, 3]), tokens(3)
    parameters = draw(config)
    for number in config.recurrent_layers:  # they read their own states; here they make nothing of it
        output = f"layers.{number - 1}.attention.output.weight"
        parameters[output] = parameters[output] * torch.cat([torch.ones(32), torch.zeros(32)])
    plain, _ = read_document(config, parameters, ids)
    for number, reads in ((1, False), (3, True)):
        initial = f"layers.{number - 1}.cell.initial"
        other, _ = read_document(config, parameters | {initial: parameters[initial] + numbers(8, 32)}, ids)
        assert differ(plain, other) == [reads] * 3


@torch.no_grad()
def test_without_feedback_only_the_recurrent_layer_has_states() -> None:
    config, ids = tiny("Rec:fixed:skip"), tokens(3)
    parameters = draw(config)
    parameters["layers.1.attention.output.weight"][:, 32:] = 0
    plain, _ = read_document(config, parameters, ids)
    initial = "layers.1.cell.initial"
    other, _ = read_document(config, parameters | {initial: parameters[initial] + numbers(8, 32)}, ids)
    assert not any(differ(plain, other))
