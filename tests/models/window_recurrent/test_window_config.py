"""The configuration: the paper's values by name, and nothing impossible or misspelt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import LAYERS, POSITIONS, WIDTH, recurrent, tiny_config, tiny_model
from transformers import AutoConfig, AutoModel, RobertaConfig

from onward import WindowRecurrenceConfig, add_recurrence


def test_the_decoder_preset_is_the_papers() -> None:
    config = WindowRecurrenceConfig.preset("decoder", backbone=tiny_config("gpt2"))
    assert (config.carrier, config.window, config.overlap) == ("pooled", 300, 0)
    assert config.insertion_layers == (2,) and config.vector_count == 1 and config.space == "layer"
    assert (config.pooling, config.pooled_layers, config.pooled_positions) == ("mean", "weighted", "all")
    assert config.hidden_widths == [200, 200, 200] and config.truncate_after is None


def test_the_defaults_are_the_papers_but_for_the_carrier_and_residual() -> None:
    default, paper = WindowRecurrenceConfig().to_dict(), WindowRecurrenceConfig.preset("decoder").to_dict()
    assert {name for name in default if default[name] != paper[name]} == {"carrier", "residual"}
    assert default["carrier"] == "matched"


def test_the_encoder_preset_is_the_papers() -> None:
    config = WindowRecurrenceConfig.preset("encoder", backbone=tiny_config("bert"))
    assert config.hidden_widths == [WIDTH, WIDTH] and config.insertion_layers == (2,)
    assert (config.pooled_layers, config.pooling, config.vector_count) == ("last", "mean", 1)


def test_presets_can_be_overridden_and_unknown_ones_are_refused() -> None:
    assert WindowRecurrenceConfig.preset("encoder", window=64).window == 64
    with pytest.raises(ValueError, match="no preset 'encodr': choose one of 'decoder', 'encoder'"):
        WindowRecurrenceConfig.preset("encodr")


@pytest.mark.parametrize(
    ("fields", "layers", "vectors"),
    [
        ({}, (1, 2, 3), 127),
        ({"carrier": "pooled"}, (1, 2, 3), 2),
        ({"carrier": "pooled", "residual": False}, (2,), 1),
        ({"carrier": "spans"}, (1, 2, 3), 16),
        ({"carrier": "constant", "stands_for": "spans"}, (1, 2, 3), 16),
        ({"carrier": "constant", "stands_for": "pooled", "residual": False}, (2,), 1),
        ({"carrier": "spans", "insert_at": 3, "vectors": 5}, (3,), 5),
        ({"insert_at": [3, 1, 3]}, (1, 3), 127),
        ({"carrier": "pooled", "insert_at": "all", "residual": False}, (1, 2, 3), 1),
    ],
)
def test_where_and_how_many_vectors_go_in(fields: dict, layers: tuple[int, ...], vectors: int) -> None:
    config = WindowRecurrenceConfig(backbone=tiny_config("gpt2"), **fields)
    assert config.insertion_layers == layers and config.vector_count == vectors


@pytest.mark.parametrize(
    ("name", "meant"),
    [("windw", "window"), ("overlaps", "overlap"), ("carier", "carrier"), ("pool", "pooling")],
)
def test_a_misspelt_field_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"no field '{name}'.*did you mean '{meant}'"):
        WindowRecurrenceConfig(**{name: 3})


def test_an_unknown_field_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="no field 'zzz'.*known are carrier, window, overlap"):
        WindowRecurrenceConfig(zzz=1)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"window": 0}, "window=0: it must be at least 1 token"),
    ({"window": True}, "window=True: it must be a whole number"),
    ({"window": 3.0}, "window=3.0: it must be a whole number"),
    ({"window": "300"}, "window='300': it must be a whole number"),
    ({"window": 8, "overlap": 8}, "overlap=8: .* choose at most 7"),
    ({"overlap": -1}, "overlap=-1: it must be at least 0"),
    ({"overlap": False}, "overlap=False: it must be a whole number"),
    ({"insert_at": 0}, "insert_at=0: it must be a layer, counted from 1"),
    ({"insert_at": -1}, "counted from 1"),
    ({"insert_at": True}, "insert_at=True: it must be a layer"),
    ({"insert_at": [1, True]}, r"insert_at=\[1, True\]: it must be a layer"),
    ({"insert_at": []}, r"insert_at=\[\]: it lists no layer"),
    ({"insert_at": "every"}, "insert_at='every': it must be a layer, counted from 1, a list of layers, or 'all'"),
    ({"insert_at": 1.5}, "insert_at=1.5: it must be a layer"),
    ({"carrier": "pool"}, "carrier='pool': choose one of constant, matched, none, pooled, recent, selected, spans"),
    ({"stands_for": "none"}, "stands_for='none': choose one of matched, pooled, recent, selected, spans"),
    ({"stands_for": "constant"}, "stands_for='constant': choose one of"),
    ({"pooling": "median"}, "pooling='median': choose one of attention, max, mean"),
    ({"pooling": ["mean"]}, "pooling=.*: choose one of"),
    ({"pooled_layers": "first"}, "pooled_layers='first': choose one of"),
    ({"pooled_positions": "none"}, "pooled_positions='none': choose one of"),
    ({"activation": "gelo"}, "activation='gelo': choose one of .*gelu"),
    ({"residual": "no"}, "residual='no': choose one of False, True"),
    ({"residual": 0}, "residual=0: choose one of False, True"),
    ({"residual": 1.0}, "residual=1.0: choose one of False, True"),
    ({"vectors": 0}, "vectors=0: it must be a whole number of at least 1"),
    ({"vectors": True}, "vectors=True: it must be a whole number of at least 1"),
    ({"carrier": "pooled", "vectors": 1}, "vectors=1: .* there must be at least 2"),
    ({"vectors": 2}, "vectors=2: carrier='matched' has slots; use slots=2"),
    ({"carrier": "spans", "vectors": 1}, "vectors=1: .* there must be at least 2"),
    ({"carrier": "spans", "vectors": 8, "history": 3}, "vectors=8: with history=3 there must be 7"),
    ({"carrier": "spans", "vectors": 2, "history": 2}, "vectors=2: .* there must be at least 3"),
    ({"carrier": "spans", "vectors": 8, "history": [4, 2]}, r"vectors=8: with history=\[4, 2\] there must be 7"),
    ({"carrier": "spans", "history": [2, 4]}, r"history=.* none may have more than a later one, as in \[4, 2\]"),
    ({"carrier": "spans", "history": []}, r"history=\[\]: it lists no window; .* as in \[16\]"),
    ({"carrier": "spans", "history": [4, 0]}, r"history=\[4, 0\]: it must be a whole number of at least 1"),
    (
        {"carrier": "spans", "history": [4, 1.5]},
        r"history=\[4, 1.5\]: it must be a whole number of at least 1, or a list of them",
    ),
    ({"carrier": "spans", "history": "4"}, "history='4': it must be a whole number of at least 1, or a list of them"),
    (
        {"carrier": "spans", "history": [8, 1], "window": 8},
        "history=.*: 9 vectors .* do not fit into its 8 tokens; use fewer",
    ),
    ({"carrier": "pooled", "history": 2}, "history=2: it is for carrier='spans'"),
    ({"carrier": "pooled", "history": [2]}, r"history=\[2\]: it is for carrier='spans'"),
    ({"history": 0}, "history=0: it must be a whole number of at least 1"),
    (
        {"carrier": "spans", "window": 8, "vectors": 9, "history": 1},
        "vectors=9: 9 vectors of one window do not fit into its 8 tokens",
    ),
    ({"carrier": "spans", "window": 8, "slots": 9, "history": 1}, "slots=9: 9 vectors of one window do not fit"),
    ({"carrier": "spans", "window": 1}, "vectors=2: 2 vectors of one window do not fit into its 1 tokens"),
    ({"carrier": "pooled", "slots": 4}, "slots=4: carrier='pooled' inserts vectors; use vectors=4"),
    ({"carrier": "none", "slots": 4}, "slots=4: carrier='none' carries nothing"),
    ({"carrier": "selected", "vectors": 4}, "vectors=4: carrier='selected' has slots; use slots=4"),
    ({"carrier": "selected", "slots": 0}, "slots=0: it must be a whole number of at least 1"),
    ({"carrier": "selected", "slots": 1}, "slots=1: sinks=1 takes one of them; choose at least 2"),
    ({"carrier": "recent", "slots": 4, "sinks": 4}, "sinks=4: .* choose at most 3, or at least 5 slots"),
    ({"carrier": "recent", "sinks": -1}, "sinks=-1: it must be a whole number of at least 0"),
    ({"carrier": "selected", "score": "attn"}, "score='attn': choose one of attention, key_difference, received"),
    ({"carrier": "matched", "history": 2}, "history=2: it is for carrier='spans'; 'matched' has slots"),
    ({"tokens_at_once": 0}, "tokens_at_once=0: it must be a whole number of at least 1"),
    ({"hidden": [200, 0]}, r"hidden=\[200, 0\]: 0 is neither a width of at least 1"),
    ({"hidden": 0}, r"hidden=\[0\]: 0 is neither a width"),
    ({"hidden": [True]}, r"hidden=\[True\]: True is neither a width"),
    ({"hidden": ["wide"]}, "'wide' is neither a width of at least 1 nor 'width', the backbone's"),
    ({"rank": 0}, "rank=0: it must be a whole number of at least 1"),
    ({"rank": True}, "rank=True: it must be a whole number"),
    ({"truncate_after": 0}, "truncate_after=0: it must be a whole number of at least 1"),
]


@pytest.mark.parametrize(("fields", "message"), IMPOSSIBLE, ids=[str(fields) for fields, _ in IMPOSSIBLE])
def test_impossible_values_are_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WindowRecurrenceConfig(**fields)


@pytest.mark.parametrize("insert_at", [LAYERS + 1, [1, LAYERS + 1]])
def test_layers_beyond_the_backbones_are_refused(insert_at: Any) -> None:
    message = f"insert_at=.*{LAYERS + 1}.*: the backbone has {LAYERS} layers"
    with pytest.raises(ValueError, match=message):
        WindowRecurrenceConfig(insert_at=insert_at, backbone=tiny_config("gpt2"))
    with pytest.raises(ValueError, match=message):
        add_recurrence(tiny_model("gpt2"), window=8, insert_at=insert_at)


@pytest.mark.parametrize(("family", "head"), [("gpt2", "causal-lm"), ("bert", "model")])
def test_windows_longer_than_the_backbones_positions_are_refused(family: str, head: str) -> None:
    assert add_recurrence(tiny_model(family, head), window=POSITIONS).config.window == POSITIONS
    with pytest.raises(ValueError, match=f"choose a window of at most {POSITIONS}"):
        add_recurrence(tiny_model(family, head), window=POSITIONS + 1)


def test_positions_are_not_mistaken_for_a_vocabulary_of_the_same_size() -> None:
    add_recurrence(tiny_model("bert", "model", vocab_size=POSITIONS), window=POSITIONS)


def test_robertas_first_positions_belong_to_padding() -> None:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    backbone = RobertaConfig(vocab_size=99, max_position_embeddings=POSITIONS + 2, **sizes)
    assert add_recurrence(AutoModel.from_config(backbone), window=POSITIONS)
    with pytest.raises(ValueError, match=f"choose a window of at most {POSITIONS}$"):
        add_recurrence(AutoModel.from_config(backbone), window=POSITIONS + 1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"carrier": "spans", "window": 20, "overlap": 3, "insert_at": [1, 3], "rank": 4},
        {"residual": False, "hidden": ["width", 7], "pooling": "attention", "activation": "tanh"},
        {"carrier": "constant", "truncate_after": 2, "pooled_positions": "before_next_window"},
    ],
)
def test_a_configuration_survives_its_file(fields: dict[str, Any], tmp_path: Path) -> None:
    config = WindowRecurrenceConfig(backbone=tiny_config("gpt2"), head="causal-lm", causal=True, **fields)
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "onward_window_recurrent"
    for loaded in (WindowRecurrenceConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is WindowRecurrenceConfig
        for name in config.own_fields():
            if name != "backbone":
                assert getattr(loaded, name) == getattr(config, name), name
        assert type(loaded.backbone) is type(config.backbone)
        assert loaded.backbone.to_diff_dict() == config.backbone.to_diff_dict()
        assert loaded.insertion_layers == config.insertion_layers


def test_a_misspelt_field_in_a_file_is_refused(tmp_path: Path) -> None:
    WindowRecurrenceConfig(window=20).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"window"', '"windoe"'))
    with pytest.raises(ValueError, match="did you mean 'window'"):
        WindowRecurrenceConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("fields", "by_age"),
    [
        ({"vectors": 9}, [7, 1]),
        ({"slots": 22}, [7, 7, 7]),
        ({"slots": 4}, [3]),
        ({}, [7]),
        ({"slots": 9, "history": 2}, [4, 4]),
        ({"slots": 9, "history": [5, 3]}, [5, 3]),
        ({"slots": 9, "carrier": "constant", "stands_for": "spans"}, [7, 1]),
    ],
)
def test_spans_are_of_as_many_windows_as_fill_the_slots(fields: dict[str, Any], by_age: list[int]) -> None:
    config = WindowRecurrenceConfig(**{"carrier": "spans", "window": 8, **fields})
    assert config.spans_by_age == by_age and config.vector_count == 1 + sum(by_age)


def test_controls_of_slots_keep_their_number() -> None:
    config = recurrent("gpt2", carrier="selected", window=9, overlap=2, slots=6, insert_at=[1, 3]).config
    constant, plain, recent = (config.with_carrier(name) for name in ("constant", "none", "recent"))
    assert constant.stands_for == "selected" and constant.takes_slots and not plain.takes_slots
    for control in (constant, plain, recent):
        assert (control.window, control.overlap, control.vector_count) == (9, 2, 6)
        assert add_recurrence(tiny_model("gpt2"), control).config.insertion_layers == (1, 3)
    spans = recurrent("gpt2", carrier="spans", window=9, history=[3, 2]).config
    slots = spans.with_carrier("selected")
    assert slots.history is None and slots.slots == 2, "as many as fit into the bytes of the spans"


def test_controls_keep_windows_places_and_number_of_vectors() -> None:
    config = recurrent("gpt2", carrier="spans", window=9, overlap=2, vectors=4, insert_at=[1, 3], rank=5).config
    constant, plain = config.with_carrier("constant"), config.with_carrier("none")
    assert (constant.carrier, constant.stands_for, plain.carrier) == ("constant", "spans", "none")
    for control in (constant, plain):
        assert (control.window, control.overlap, control.rank) == (9, 2, 5)
        assert control.vector_count == 4 and control._insert_at == [1, 3]
        assert control.backbone is None and control.head is None, "they belong to the other model"
        assert add_recurrence(tiny_model("gpt2"), control).config.insertion_layers == (1, 3)
    assert constant.with_carrier("constant").stands_for == "spans"
    assert constant.space == config.space == "attention"
    assert config.carrier == "spans", "the configuration itself must not change"


def test_add_recurrence_leaves_the_given_configuration_alone() -> None:
    config = WindowRecurrenceConfig(window=8)
    model = add_recurrence(tiny_model("gpt2"), config)
    assert config.backbone is None and config.head is None and model.config.head == "causal-lm"
