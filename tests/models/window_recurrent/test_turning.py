"""How keys turn with their positions is found by looking: in any order of features, with any scaling, in any layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from exact import Exact
from tiny_models import backbone, randomise, tokens
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from onward import WindowRecurrenceConfig, add_recurrence
from onward.models.window_recurrent.seam import install
from onward.models.window_recurrent.turning import POSITIONS, CannotTurn, measure, turnings_of

FEATURES = 16
Turn = Callable[[Tensor, int], Tensor]


def angles(count: int, theta: float = 10_000.0) -> Tensor:
    return theta ** -(torch.arange(count, dtype=torch.float64) / count)


def rotary(pairs: list[tuple[int, int]], by: Tensor) -> Turn:
    """The pair (i, j) is turned by its angle for every position."""

    def turned(keys: Tensor, position: int) -> Tensor:
        result = keys.clone()
        for (i, j), angle in zip(pairs, by.tolist(), strict=True):
            c, s = math.cos(position * angle), math.sin(position * angle)
            result[:, i], result[:, j] = c * keys[:, i] - s * keys[:, j], s * keys[:, i] + c * keys[:, j]
        return result

    return turned


HALF, QUARTER = FEATURES // 2, FEATURES // 4
FORMS: dict[str, Turn] = {
    "halves": rotary([(i, i + HALF) for i in range(HALF)], angles(HALF)),
    "neighbours": rotary([(2 * i, 2 * i + 1) for i in range(HALF)], angles(HALF)),
    "part in halves": rotary([(i, i + QUARTER) for i in range(QUARTER)], angles(QUARTER)),
    "part in neighbours": rotary([(2 * i, 2 * i + 1) for i in range(QUARTER)], angles(QUARTER)),
    "last part": rotary([(i, i + QUARTER) for i in range(HALF, HALF + QUARTER)], angles(QUARTER)),
    "two features": rotary([(0, 1)], torch.tensor([1.0])),
    "backwards": rotary([(i, i + HALF) for i in range(HALF)], -angles(HALF)),
    "slowly": rotary([(i, i + HALF) for i in range(HALF)], angles(HALF) / 8),
    "some not at all": rotary([(i, i + HALF) for i in range(HALF)], angles(HALF) * (torch.arange(HALF) < 5)),
    "fast": rotary([(i, i + HALF) for i in range(HALF)], 3 * angles(HALF)),
    "not at all": lambda keys, position: keys.clone(),
}
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def looked_at(turn: Turn, dtype: torch.dtype) -> tuple[Tensor, dict[int, Tensor]]:
    keys = torch.randn(64, FEATURES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return keys, {position: turn(keys, position).to(dtype) for position in (0, *POSITIONS)}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("form", FORMS)
def test_what_was_turned_can_be_turned_on(form: str, dtype: torch.dtype) -> None:
    keys, seen = looked_at(FORMS[form], dtype)
    turning = measure(seen)
    assert turning is not None and turning.turns == (form != "not at all")
    for start, by in ((0, 7), (5, -5), (300, -307), (40, 3), (0, -127)):
        before, after = FORMS[form](keys, start), FORMS[form](keys, start + by)
        found = turning.turn(before, turning.table(torch.tensor(by), before))
        assert (found - after).norm() <= ROUNDING[dtype] * after.norm(), (start, by)


OTHER_CHANGES: dict[str, Turn] = {
    "a learned position": lambda keys, position: keys + math.sin(position),
    "larger": lambda keys, position: keys * (1 + position / 100),
    "other keys": lambda keys, position: keys.roll(position, 0),
    "turned and larger": lambda keys, position: FORMS["halves"](keys, position) * (1 + position / 100),
    "not by equal steps": lambda keys, position: FORMS["halves"](keys, round(30 * math.log1p(position))),
    "mixed": lambda keys, position: FORMS["halves"](FORMS["neighbours"](keys, position), position),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("change", OTHER_CHANGES)
def test_keys_that_change_in_another_way_are_refused(change: str, dtype: torch.dtype) -> None:
    assert measure(looked_at(OTHER_CHANGES[change], dtype)[1]) is None


# -- on backbones

LONG = {"max_position_embeddings": 1024}
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 8.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 256},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "longrope": {
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [2.0, 4.0, 6.0, 8.0],
        "original_max_position_embeddings": 512,
    },
}
_SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "bos_token_id": 2,
    **LONG,
}
NEIGHBOURS = {"cohere": _SMALL, "glm": {**_SMALL, "head_dim": 8}}  # glm turns a half of the features


def scaled(name: str, **options: Any) -> PreTrainedModel:
    parameters = {"rope_type": name, "rope_theta": 10_000.0, **SCALED[name]}
    return backbone("llama", **LONG, rope_parameters=parameters, **options)


def in_neighbours(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **NEIGHBOURS[family])).double()
    randomise(model)
    return model.eval()


BACKBONES = {name: scaled for name in SCALED} | {name: in_neighbours for name in NEIGHBOURS}


@pytest.mark.parametrize("name", BACKBONES)
@torch.no_grad()
def test_a_memory_of_everything_is_attention_to_everything(name: str) -> None:
    with Exact():
        model = add_recurrence(
            BACKBONES[name](name), WindowRecurrenceConfig(carrier="recent", window=7, overlap=2, slots=40)
        )
        ids = tokens(2, 40)
        found, expected = model(ids).logits, model.backbone(ids).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * expected.abs().max().item())


def turnings(model: PreTrainedModel) -> Any:
    install(model.base_model)
    return turnings_of(model.base_model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", SCALED)
def test_the_angles_of_a_model_are_found_within_its_rounding(name: str, dtype: torch.dtype) -> None:
    model = scaled(name, dtype=dtype)
    frequencies = model.base_model.rotary_emb.inv_freq.double()
    for turning in turnings(model):
        found = turning.angle.abs()
        assert turning.partner.tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
        off = (found - torch.cat([frequencies, frequencies])).abs().max()
        assert off < 2 * torch.finfo(dtype).eps / max(POSITIONS), "more than the last digit at the farthest position"


def test_each_layer_turns_in_its_own_way() -> None:
    assert [turning.turns for turning in turnings(backbone("smollm3", **LONG))] == [True, False]
    local, everything, _ = turnings(backbone("gemma3_text", **LONG))
    assert local.turns and everything.turns and not torch.allclose(local.angle, everything.angle, atol=1e-3)
    part = turnings(backbone("gpt_neox", **LONG))[0]
    assert (part.angle != 0).tolist() == [True, True, *[False] * 6]
    assert not any(turning.turns for turning in turnings(backbone("gpt2")))


def test_looking_leaves_a_model_as_it_was() -> None:
    model = backbone("llama").train()
    state = torch.get_rng_state()
    turnings(model)
    assert model.training and torch.equal(torch.get_rng_state(), state)


def test_a_backbone_whose_keys_cannot_be_turned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    rotate = modeling_llama.apply_rotary_pos_emb

    def grown(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        q, k = rotate(q, k, cos, sin, **options)
        return q, k * (2 - cos.mean(-1)[:, None, :, None])

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", grown)
    with pytest.raises(CannotTurn, match="layer 1 change with the position in another way"):
        turnings(backbone("llama", **LONG))
