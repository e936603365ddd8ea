"""The paper's rows, at their size and reduced; and what cannot work, refused in words that say what to do instead."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch
from block_models import PRESETS, SIZES, tiny
from tiny_models import tokens

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM, BlockRecurrentModel
from onward.models.block_recurrent.configuration_block_recurrent import PRESETS as ROWS

# -- the rows of the paper's tables


def test_every_row_is_tested() -> None:
    assert set(PRESETS) == set(ROWS)


@cache
def millions(preset: str) -> float:
    """All parameters but the embeddings, which are the output layer, too: the states' ids and initial values count."""
    with torch.device("meta"):
        model = BlockRecurrentModel(BlockRecurrentConfig.preset(preset))
    return (sum(p.numel() for p in model.parameters()) - model.embed_tokens.weight.numel()) / 1e6


@pytest.mark.parametrize(
    ("preset", "paper"),
    [
        ("XL:512", 151),
        ("XL:1024", 151),
        ("XL:2048", 151),
        ("Slide:12L", 151),
        ("Slide:13L", 164),
        ("Memorizing:32k", 151),
        ("Slide:13L:large", 327),
        ("Rec:fixed:skip:large", 320),
    ],
)
def test_a_row_has_as_many_parameters_as_in_the_paper(preset: str, paper: int) -> None:
    assert round(millions(preset)) == paper


def test_the_large_lstm_row_has_nearly_as_many_parameters_as_in_the_paper() -> None:
    """The paper says 375M, and does not say what else it counts: by its equations there are 374.4M."""
    assert millions("Rec:lstm:single:large") == pytest.approx(375, abs=0.7)


def test_recurrence_costs_about_as_much_as_a_layer_and_skip_costs_less() -> None:
    assert millions("Slide:12L") < millions("Rec:fixed:skip") < millions("Slide:13L")
    assert millions("Rec:fixed:skip:large") < millions("Slide:13L:large")
    for name in ("fixed:skip", "lstm:single"):
        assert millions(f"Feedback:{name}") > millions(f"Rec:{name}"), "every layer has queries to the states"
    for gate in ("fixed", "lstm"):
        assert millions(f"Rec:{gate}:skip") < min(millions(f"Rec:{gate}:dual"), millions(f"Rec:{gate}:single"))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_row_at_its_size(preset: str) -> None:
    config = BlockRecurrentConfig.preset(preset)
    large = 2 if preset.endswith("large") else 1
    family, *parts = preset.split(":")
    assert (config.hidden_size, config.head_dim, config.num_attention_heads) == (1024, 128, 8 * large)
    assert config.intermediate_size == 4096 * large and config.hidden_act == "relu" and config.dropout == 0.05
    assert config.num_hidden_layers == (13 if "13L" in parts else 12)
    assert config.window == (int(parts[0]) if family == "XL" else 512)
    assert config.segment_length == (config.window if family in ("XL", "Memorizing") else 4096)
    assert config.recurrent_layers == ([10] if family in ("Rec", "Feedback") else [])
    assert config.feedback == (family == "Feedback")
    if config.recurrent_layers:
        assert [config.gate, config.gate_configuration] == parts[:2] and config.num_states == 512
    assert (config.memory_size, config.memory_layer) == ((32768, 9) if family == "Memorizing" else (0, None))
    assert config.memory_top_k == 32 and config.tie_word_embeddings
    assert (config.relative_attention_num_buckets, config.relative_attention_max_distance) == (32, 128)


def test_the_default_is_the_papers_best() -> None:
    default, best = BlockRecurrentConfig(), BlockRecurrentConfig.preset("Rec:fixed:skip")
    assert all(getattr(default, name) == getattr(best, name) for name in default.own_fields())


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_keep_their_proportions_when_reduced(preset: str) -> None:
    full = BlockRecurrentConfig.preset(preset)
    reduced = BlockRecurrentConfig.preset(
        preset, hidden_size=256, num_hidden_layers=6, num_attention_heads=4, window=128, vocab_size=1000
    )
    assert reduced.vocab_size == 1000 and reduced.hidden_size == 256 and reduced.head_dim == 64
    assert reduced.num_hidden_layers == 6 + full.num_hidden_layers - 12
    assert reduced.recurrent_layers == [5 for _ in full.recurrent_layers]
    for name in ("window", "segment_length", "num_states", "memory_size"):
        assert getattr(reduced, name) * 4 == getattr(full, name), name
    assert reduced.num_attention_heads * 2 == full.num_attention_heads
    assert reduced.intermediate_size * 4 == full.intermediate_size
    assert reduced.memory_layer == (4 if full.memory_layer else None)
    for name in ("gate", "gate_configuration", "feedback", "dropout"):
        assert getattr(reduced, name) == getattr(full, name)


@pytest.mark.parametrize(
    ("depth", "recurrent", "remembering"), [(1, 1, 1), (2, 2, 2), (3, 2, 2), (4, 3, 3), (24, 20, 18)]
)
def test_states_and_memory_stay_at_their_height_in_any_stack(depth: int, recurrent: int, remembering: int) -> None:
    assert BlockRecurrentConfig.preset("Rec:fixed:skip", num_hidden_layers=depth).recurrent_layers == [recurrent]
    assert BlockRecurrentConfig.preset("Memorizing:32k", num_hidden_layers=depth).memory_layer == remembering


def test_what_is_given_goes_before_the_row() -> None:
    fields = {"recurrent_layers": [2, 4], "num_states": 7, "gate": "lstm", "head_dim": 24, "dropout": 0.2}
    config = BlockRecurrentConfig.preset("Rec:fixed:skip", **fields)
    assert {name: getattr(config, name) for name in fields} == fields
    assert BlockRecurrentConfig.preset("Slide:13L:large", intermediate_size=100).intermediate_size == 200
    assert BlockRecurrentConfig.preset("Slide:12L", window=64, segment_length=100).segment_length == 100


def test_layers_are_put_in_order_and_named_once() -> None:
    assert BlockRecurrentConfig(recurrent_layers=[9, 2, 9]).recurrent_layers == [2, 9]
    config = BlockRecurrentConfig(recurrent_layers=(3,), num_hidden_layers=4)
    assert config.reads_states == (False, False, True, False)
    assert BlockRecurrentConfig(recurrent_layers=[3], num_hidden_layers=4, feedback=True).reads_states == (True,) * 4


# -- configurations that cannot be

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"window": 0}, "window=0: it must be a whole number of at least 1"),
    ({"window": 3.0}, "window=3.0: it must be a whole number of at least 1"),
    ({"window": True}, "window=True: it must be a whole number of at least 1"),
    ({"window": "512"}, "window='512': it must be a whole number of at least 1"),
    ({"vocab_size": -1}, "vocab_size=.*: it must be a whole number"),
    ({"num_hidden_layers": 0}, "num_hidden_layers=.*: it must be a whole number"),
    ({"num_attention_heads": 0}, "num_attention_heads=.*: it must be a whole number"),
    ({"segment_length": 0}, "segment_length=.*: it must be a whole number"),
    ({"blocks_per_checkpoint": 0}, "blocks_per_checkpoint=.*: it must be a whole number"),
    ({"num_states": 0}, "num_states=.*: it must be a whole number"),
    ({"head_dim": 0}, "head_dim=.*: it must be a whole number"),
    (
        {"hidden_size": 100},
        "hidden_size=100: it cannot be shared by num_attention_heads=8; choose a multiple, or set head_dim",
    ),
    ({"num_attention_heads": 7}, "hidden_size=1024: it cannot be shared by num_attention_heads=7"),
    ({"recurrent_layers": [0]}, "recurrent_layers=.0.: layers are counted from 1 to 12"),
    ({"recurrent_layers": [10, 13]}, "recurrent_layers=.10, 13.: layers are counted from 1 to 12, and 13"),
    ({"recurrent_layers": [-1]}, "recurrent_layers=.* and -1 is none"),
    ({"recurrent_layers": [True]}, "recurrent_layers=.* and True is none"),
    ({"recurrent_layers": ["10"]}, "recurrent_layers=.* and '10' is none"),
    ({"recurrent_layers": 10}, "recurrent_layers=10: it must be a list of layers, counted from 1"),
    ({"recurrent_layers": None}, "recurrent_layers=None: it must be a list of layers, counted from 1"),
    (
        {"num_hidden_layers": 4},
        "recurrent_layers=.10,.: layers are counted from 1 to 4, and 10 is none of them; list some",
    ),
    ({"feedback": True, "recurrent_layers": []}, "feedback=True: there is no recurrent layer .*; set recurrent_layers"),
    ({"feedback": "yes"}, "feedback='yes': choose one of False, True"),
    ({"gate": "gru"}, "gate='gru': choose one of fixed, lstm"),
    ({"gate_configuration": "triple"}, "gate_configuration='triple': choose one of dual, single, skip"),
    ({"gate_tanh": "never"}, "gate_tanh='never': choose one of lstm, single"),
    ({"hidden_act": "rleu"}, "hidden_act='rleu': choose one of .*relu"),
    ({"attends_to_itself": None}, "attends_to_itself=None: choose one of False, True"),
    ({"dropout": 1.0}, "dropout=1.0: it must be a number of at least 0 and below 1"),
    ({"dropout": -0.1}, "dropout=-0.1"),
    ({"dropout": float("nan")}, "dropout=nan"),
    ({"dropout": "0.1"}, "dropout.*'0.1'"),
    ({"dropout": None}, "dropout.*None"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps.*-1.0"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps.*'small'"),
    ({"initial_attention_scale": "one"}, "initial_attention_scale.*'one'"),
    ({"relative_attention_num_buckets": 1}, "there must be at least 2 buckets"),
    (
        {"relative_attention_max_distance": 16},
        "half of the 32 buckets must lie within the distance; choose more than 16",
    ),
    ({"memory_size": -1}, "memory_size=-1: it must be a whole number of at least 0"),
    ({"memory_size": 512.0}, "memory_size=512.0: it must be a whole number of at least 0"),
    ({"memory_size": True}, "memory_size=True: it must be a whole number of at least 0"),
    ({"memory_size": 700}, "memory_size=700: it must be a multiple of window=512.*; 512 fits"),
    (
        {"memory_size": 512, "memory_top_k": 513},
        "memory_top_k=513: it must be at most memory_size=512",
    ),
    ({"memory_size": 512, "memory_top_k": 0}, "memory_top_k=0: it must be a whole number of at least 1"),
    ({"memory_size": 512, "memory_layer": 13}, "memory_layer=13: layers are counted from 1 to 12"),
    ({"memory_size": 512, "memory_layer": 0}, "memory_layer=0: it must be a whole number of at least 1"),
    ({"memory_layer": 9}, "memory_layer=9: it remembers nothing unless memory_size is set"),
]


@pytest.mark.parametrize(("fields", "message"), IMPOSSIBLE, ids=[str(fields) for fields, _ in IMPOSSIBLE])
def test_impossible_values_are_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockRecurrentConfig(**fields)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("windw", "window"),
        ("recurent_layers", "recurrent_layers"),
        ("gate_config", "gate_configuration"),
        ("memory_topk", "memory_top_k"),
        ("num_state", "num_states"),
    ],
)
def test_a_misspelt_field_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    for make in (BlockRecurrentConfig, lambda **fields: BlockRecurrentConfig.preset("Rec:fixed:skip", **fields)):
        with pytest.raises(ValueError, match=f"no field '{name}' .given 3.: did you mean '{meant}'"):
            make(**{name: 3})
    with pytest.raises(ValueError, match="no field 'zzz'.*known are vocab_size, hidden_size"):
        BlockRecurrentConfig(zzz=1)


@pytest.mark.parametrize("name", ["Rec:fixed", "rec:fixed:skip", "", None, ["Slide:12L"]])
def test_an_unknown_preset_is_refused_with_those_that_are_known(name: Any) -> None:
    with pytest.raises(
        ValueError, match=f"no preset {re.escape(repr(name))}.* XL:512, XL:1024, .*Rec:fixed:skip:large"
    ):
        BlockRecurrentConfig.preset(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 100}, "hidden_size=100: it cannot be shared by num_attention_heads=8"),
        ({"hidden_size": 8, "num_attention_heads": 16}, "hidden_size=8: it cannot be shared by num_attention_heads=16"),
        ({"num_attention_heads": 0}, "num_attention_heads=0: it must be a whole number of at least 1"),
        ({"hidden_size": "wide"}, "hidden_size='wide': it must be a whole number of at least 1"),
        ({"window": None}, "window=None: it must be a whole number of at least 1"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers=2.5: it must be a whole number of at least 1"),
        ({"memory_size": 16, "window": 16}, "memory_top_k=32: it must be at most memory_size=16"),
    ],
)
def test_a_row_cannot_be_reduced_to_what_is_impossible(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockRecurrentConfig.preset("Memorizing:32k", **fields)


# -- calls that cannot be

IDS = tokens(2, 5)


@pytest.fixture(scope="module")
def model() -> Any:
    return BlockRecurrentForCausalLM(tiny("Rec:fixed:skip")).eval()


BAD_IDS: list[tuple[Any, type[Exception], str]] = [
    (IDS[:, :0], ValueError, r"input_ids is empty: it has the shape \(2, 0\)"),
    (IDS[:0], ValueError, r"input_ids is empty: it has the shape \(0, 5\)"),
    (IDS.float(), TypeError, "whole numbers .torch.long., got torch.float32"),
    (IDS.bool(), TypeError, "whole numbers .torch.long., got torch.bool"),
    (IDS[0], ValueError, r"shape \[batch, length\], got \(5,\)"),
    (IDS[None], ValueError, r"shape \[batch, length\], got \(1, 2, 5\)"),
    (IDS + 95, ValueError, "input_ids has the id [0-9]+, and the vocabulary 99 ids, from 0: use the tokenizer"),
    (-IDS, ValueError, "input_ids has the id -[0-9]+, and the vocabulary 99 ids"),
    (None, ValueError, "give either input_ids or inputs_embeds"),
    ("some text", TypeError, "tensor of token ids, got str"),
    ([[1, 2]], TypeError, "tensor of token ids, got list"),
]


@pytest.mark.parametrize(("ids", "kind", "message"), BAD_IDS)
def test_input_ids_that_are_none(model: Any, ids: Any, kind: type[Exception], message: str) -> None:
    for each in (model, model.model):
        with pytest.raises(kind, match=message):
            each(ids)


def test_small_whole_numbers_are_ids_too(model: Any) -> None:
    assert torch.equal(model(IDS.int()).logits, model(IDS).logits)


EMBEDDED = torch.zeros(2, 5, SIZES["hidden_size"])
BAD_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"atention_mask": torch.ones(2, 5)}, TypeError, "takes no argument 'atention_mask'"),
    ({"position_ids": IDS}, TypeError, "takes no argument 'position_ids'"),
    ({"output_attentions": True}, ValueError, "output_attentions is not supported"),
    ({"past_key_values": ()}, ValueError, "the output of every call holds a `state`"),
    ({"inputs_embeds": EMBEDDED}, ValueError, "either input_ids or inputs_embeds, and not both"),
    ({"attention_mask": torch.ones(2, 4)}, ValueError, r"attention_mask has the shape \(2, 4\), the input \(2, 5\)"),
    ({"attention_mask": torch.ones(1, 5)}, ValueError, "attention_mask has the shape"),
    ({"attention_mask": torch.ones(2, 1, 5, 5)}, ValueError, "attention_mask has the shape"),
    ({"attention_mask": [[1] * 5] * 2}, TypeError, "attention_mask .*list"),
    ({"starts_document": [True]}, ValueError, "starts_document, .*has 1 values for 2 rows"),
    ({"starts_document": torch.ones(2, 5, dtype=torch.bool)}, (TypeError, ValueError), "marks|starts_document"),
]
BAD_LABELS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"labels": IDS[:, :4]}, ValueError, r"labels have the shape \(2, 4\), the input \(2, 5\): they must agree"),
    ({"labels": IDS[:1]}, ValueError, "labels have the shape"),
    ({"labels": IDS[0]}, ValueError, r"labels have the shape \(5,\)"),
    ({"shift_labels": IDS[:, :4]}, ValueError, r"labels have the shape \(2, 4\)"),
    ({"labels": IDS[:, :4], "attention_mask": torch.ones(2, 5)}, ValueError, "labels have the shape"),
    ({"labels": IDS, "attention_mask": torch.ones(2, 4)}, ValueError, "attention_mask has the shape"),
    ({"labels": IDS.tolist()}, TypeError, "labels .*list"),
    ({"labels": IDS.float()}, TypeError, "labels .*torch.float32"),
    ({"labels": torch.full_like(IDS, 99)}, ValueError, "labels .*99.* 99 ids"),
    ({"labels": torch.full_like(IDS, -1)}, ValueError, "labels .*-1.*-100"),
    ({"shift_labels": torch.full_like(IDS, -1)}, ValueError, "labels .*-1.*-100"),
]


def described(cases: list[Any]) -> list[str]:
    return [", ".join(f"{name} {tuple(getattr(x, 'shape', ()))}" for name, x in fields.items()) for fields, *_ in cases]


@pytest.mark.parametrize(("given", "kind", "message"), BAD_ARGUMENTS, ids=described(BAD_ARGUMENTS))
def test_arguments_that_do_not_fit(model: Any, given: dict[str, Any], kind: type[Exception], message: str) -> None:
    for each in (model, model.model):
        with pytest.raises(kind, match=message):
            each(IDS, **given)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("given", "kind", "message"), BAD_LABELS, ids=described(BAD_LABELS))
def test_labels_that_do_not_fit(
    model: Any, given: dict[str, Any], kind: type[Exception], message: str, training: bool
) -> None:
    model.train(training)
    try:
        with pytest.raises(kind, match=message):
            model(IDS, **given)
    finally:
        model.eval()


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 31), (5, 32), (2, 0, 32)])
def test_embeddings_that_do_not_fit(model: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"inputs_embeds .*shape"):
        model(inputs_embeds=torch.zeros(shape))


def test_arguments_that_say_nothing_are_let_pass(model: Any) -> None:
    """As transformers and its pipelines give them."""
    assert (
        model(IDS, use_cache=True, output_attentions=False, return_dict=True, past_key_values=None).logits is not None
    )
    loss, logits, state = model(IDS, labels=IDS, return_dict=False)
    assert loss.dim() == 0 and logits.shape == (2, 5, 99) and state.tokens == (5, 5)


def test_bad_input_leaves_the_model_as_it_was(model: Any) -> None:
    expected = model(IDS).logits
    for ids, *_ in BAD_IDS:
        with pytest.raises((TypeError, ValueError)):
            model(ids)
    assert torch.equal(model(IDS).logits, expected)
