"""What a model is given is what it reads, or is refused with its value: nothing passes in silence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from systems import HEADS, MANY, ONE, REGRESSION, bert, examples, window
from tiny_models import recurrent, tokens
from torch import Tensor, nn

from onward import BlockRecurrentConfig, RecurrentBertConfig, RecurrentBertForMaskedLM
from onward.finetuning.recipe import FinetuningRecipe, check_learning_rate
from onward.training import TrainingRecipe

LANGUAGE = {"window": "window causal", "window masked": "window masked", "block": "block causal", "bert": "bert masked"}
CAUSAL = {name: LANGUAGE[name] for name in ("window", "block")}


def made(name: str) -> Any:
    return HEADS[LANGUAGE.get(name, name)][0]()


# -- ids


@pytest.mark.parametrize("wrong", [99, 2**31, 2**32 + 5, 2**40 + 5, 2**41, -1, -100])
@pytest.mark.parametrize("name", LANGUAGE)
def test_ids_outside_the_vocabulary_are_refused(name: str, wrong: int) -> None:
    ids = tokens(2, 12)
    ids[1, 7] = wrong
    with pytest.raises(ValueError, match=f"input_ids has the id {wrong}, and the vocabulary 99 ids"):
        made(name)(ids)


@pytest.mark.parametrize("wrong", [2, -1, 2**30])
def test_token_types_that_are_not_there_are_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"token_type_ids has the id {wrong}, and the backbone 2 types"):
        made("window masked")(tokens(1, 12), token_type_ids=torch.full((1, 12), wrong))


def test_where_no_one_may_look_ids_are_marked_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other devices than the CPU a look would stop the queue; no id may be taken for another all the same."""
    monkeypatch.setattr("onward.models.checking.may_look", lambda x: False)
    for wrong in (2**40 + 5, 2**32 + 5, 99, -7):
        with pytest.raises(IndexError):
            made("window")(torch.tensor([[5, wrong, 7]]))


# -- masks

MASKS = {"a half": 0.5, "less": -1.0, "nan": math.nan, "two": 2.0, "infinite": -math.inf}


@pytest.mark.parametrize("value", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("name", LANGUAGE)
def test_masks_of_other_values_are_refused(name: str, value: float) -> None:
    mask = torch.ones(2, 12)
    mask[0, 3] = value
    with pytest.raises(ValueError, match=rf"attention_mask has {value}: it must be 1 for each token"):
        made(name)(tokens(2, 12), attention_mask=mask)


def test_masks_that_are_added_to_scores_are_refused() -> None:
    mask = torch.zeros(2, 12)
    mask[:, 8:] = -math.inf  # all others would count as padding
    for name in LANGUAGE:
        with pytest.raises(ValueError, match="masks that are added to scores are not supported"):
            made(name)(tokens(2, 12), attention_mask=mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.int32, torch.uint8, torch.float32])
@pytest.mark.parametrize("name", LANGUAGE)
@torch.no_grad()
def test_masks_of_every_kind_of_1_and_0_are_the_same(name: str, dtype: torch.dtype) -> None:
    model, ids = made(name), tokens(2, 12)
    mask = torch.arange(12) < torch.tensor([12, 7])[:, None]
    whole, ours = model(ids, attention_mask=mask).logits, model(ids, attention_mask=mask.to(dtype)).logits
    torch.testing.assert_close(ours[mask], whole[mask])


# -- labels


@pytest.mark.parametrize("wrong", [99, -1, 2**33])
@pytest.mark.parametrize("name", LANGUAGE)
def test_labels_outside_the_vocabulary_are_refused(name: str, wrong: int) -> None:
    ids, labels = tokens(2, 12), tokens(2, 12)
    labels[0, 5] = wrong
    with pytest.raises(ValueError, match=f"labels has {wrong}, and .* 99 .* -100 for what is not to be scored"):
        made(name)(ids, labels=labels)


@pytest.mark.parametrize("name", LANGUAGE)
def test_labels_that_are_no_ids_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"labels must be whole numbers \(torch.long\), got torch.float32"):
        made(name)(tokens(2, 12), labels=tokens(2, 12).float())
    with pytest.raises(ValueError, match="labels have the shape"):
        made(name)(tokens(2, 12), labels=tokens(2, 11))


@pytest.mark.parametrize("name", ["window tokens", "bert tokens", "window classes", "bert classes", "bert choices"])
def test_classes_that_are_not_there_are_refused(name: str) -> None:
    model, row = HEADS[name][0](), examples(HEADS[name][1], 1)[0]
    given = {key: value[None] for key, value in row.items()}
    with pytest.raises(ValueError, match="labels has 3, and the head . classes"):
        model(**given | {"labels": torch.full_like(given["labels"], 3)})
    if "classes" not in name:  # there, numbers with a point say of each class whether it fits
        with pytest.raises(TypeError, match="labels must be whole numbers"):
            model(**given | {"labels": given["labels"].float()})


@pytest.mark.parametrize("system", ["window", "bert"])
def test_labels_of_documents_fit_their_problem(system: str) -> None:
    for name, wrong in (("many", torch.ones(2)), ("number", torch.ones(2, 2)), ("classes", torch.ones(3).long())):
        with pytest.raises(ValueError, match=r"labels have the shape .*, the logits \(2, [13]\)"):
            HEADS[f"{system} {name}"][0]()(tokens(2, 12), labels=wrong)


@pytest.mark.parametrize("name", ["window classes", "window many", "window number", "bert classes", "bert many"])
def test_losses_of_documents_are_those_of_transformers(name: str) -> None:
    model, rows = HEADS[name][0](), examples(HEADS[name][1])
    ids, labels = (torch.stack([row[key] for row in rows]) for key in ("input_ids", "labels"))
    output = model(ids, labels=labels)
    by_hand = {
        ONE: lambda: nn.functional.cross_entropy(output.logits, labels),
        MANY: lambda: nn.functional.binary_cross_entropy_with_logits(output.logits, labels),
        REGRESSION: lambda: nn.functional.mse_loss(output.logits[:, 0], labels),
    }
    torch.testing.assert_close(output.loss, by_hand[HEADS[name][1]]())
    assert torch.equal(model(ids, labels=labels, return_dict=False)[0], output.loss)


# -- answers


@pytest.mark.parametrize("name", ["window answers", "bert answers"])
def test_answers_beyond_the_end_are_left_out_and_negative_ones_refused(name: str) -> None:
    model, ids = HEADS[name][0](), tokens(3, 12)

    def loss(starts: list[int], ends: list[int]) -> Tensor:
        return model(ids, start_positions=torch.tensor(starts), end_positions=torch.tensor(ends)).loss

    logits = model(ids)
    expected = nn.functional.cross_entropy(logits.start_logits[:2], torch.tensor([1, 11]))
    expected = (expected + nn.functional.cross_entropy(logits.end_logits[:1], torch.tensor([3]))) / 2
    torch.testing.assert_close(loss([1, 11, 12], [3, 12, 5000]), expected)
    nothing = loss([12, 99, 12], [12, 99, 12])
    assert nothing.item() == 0
    nothing.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    for starts, ends, wrong in (([1, -1, 2], [3, 4, 5], -1), ([1, 2, 3], [3, -100, 5], -100)):
        with pytest.raises(ValueError, match=f"_positions has {wrong}: positions are counted from 0"):
            loss(starts, ends)
    with pytest.raises(ValueError, match="start_positions and end_positions"):
        model(ids, start_positions=torch.tensor([1, 2, 3]))
    with pytest.raises(TypeError, match="start_positions must be whole numbers"):
        model(ids, start_positions=torch.ones(3), end_positions=torch.ones(3))


@pytest.mark.parametrize("name", [*LANGUAGE, "window tokens", "bert tokens"])
def test_of_no_label_at_all_the_loss_is_nothing(name: str) -> None:
    model = made(name).train()
    for count in (None, 0, torch.tensor(0)):
        output = model(tokens(2, 12), labels=torch.full((2, 12), -100), num_items_in_batch=count)
        assert output.loss.item() == 0


# -- which logits


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_logits_are_kept_as_in_transformers(name: str) -> None:
    model, ids = made(name), tokens(2, 12)
    whole = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, whole[:, -3:])
    columns = torch.tensor([0, 5, 11, -1])
    torch.testing.assert_close(model(ids, logits_to_keep=columns).logits, whole[:, columns])
    for wrong in (-1, -100):
        with pytest.raises(ValueError, match=f"logits_to_keep={wrong}: it must be the number of last logits"):
            model(ids, logits_to_keep=wrong)
    for wrong in (1.0, True, "1", torch.ones(2), torch.tensor(3), torch.ones(12).bool()):
        with pytest.raises(TypeError, match="logits_to_keep must be a number or a list of columns"):
            model(ids, logits_to_keep=wrong)
    with pytest.raises(ValueError, match="logits_to_keep has the column 12 of 12"):
        model(ids, logits_to_keep=torch.tensor([3, 12]))


# -- hidden states


@pytest.mark.parametrize("name", LANGUAGE)
@torch.no_grad()
def test_the_configuration_may_ask_for_hidden_states_and_tuples(name: str) -> None:
    model, ids = made(name), tokens(2, 12)
    asked = model(ids, output_hidden_states=True)
    assert asked.hidden_states and model(ids).get("hidden_states") is None
    model.config.output_hidden_states = True
    assert all(map(torch.equal, model(ids).hidden_states, asked.hidden_states))
    assert model(ids, output_hidden_states=False).get("hidden_states") is None
    model.config.return_dict = False
    assert isinstance(model(ids), tuple) and not isinstance(model(ids, return_dict=True), tuple)


def test_a_backbone_that_was_asked_for_hidden_states_gives_them() -> None:
    model = recurrent("gpt2", window=8, backbone={"output_hidden_states": True})
    assert len(model(tokens(1, 12)).hidden_states) == 4


# -- numbers in configurations and recipes


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan, 10**400], ids=["inf", "-inf", "nan", "huge"])
def test_numbers_that_are_none_are_refused(wrong: Any) -> None:
    for name in ("initial_attention_scale", "rms_norm_eps", "dropout"):
        with pytest.raises(ValueError, match=name):
            BlockRecurrentConfig(**{name: wrong})
    for name in ("hidden_dropout_prob", "layer_norm_eps", "initializer_range", "classifier_dropout"):
        if isinstance(wrong, float):  # transformers itself refuses whole numbers here
            with pytest.raises(ValueError, match=name):
                RecurrentBertConfig(**{name: wrong})
    for name in ("learning_rate", "epochs", "carrier_learning_rate", "weight_decay", "max_grad_norm"):
        with pytest.raises(ValueError, match=name):
            TrainingRecipe(**{name: wrong})
    for name in ("epochs", "weight_decay", "max_grad_norm", "warmup"):
        with pytest.raises(ValueError, match=name):
            FinetuningRecipe(**{name: wrong})
    with pytest.raises(ValueError, match="learning_rate"):
        check_learning_rate(wrong)


@pytest.mark.parametrize(("name", "wrong"), [("layer_norm_eps", -1e-5), ("pad_token_id", 99), ("pad_token_id", -1)])
def test_a_bert_that_cannot_be_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=name):
        bert(RecurrentBertForMaskedLM, **{name: wrong})


# -- what cannot be written down


@pytest.mark.parametrize("name", CAUSAL)
def test_export_is_refused_by_name(name: str) -> None:
    with pytest.raises(Exception, match=f"torch.export of {type(made(name)).__name__} is not supported"):
        torch.export.export(made(name), (tokens(1, 5),))


@torch.no_grad()
def test_a_recurrent_bert_is_exported() -> None:
    model, ids = bert(RecurrentBertForMaskedLM), tokens(2, 12)
    mask = (torch.arange(12) < torch.tensor([12, 7])[:, None]).long()
    program = torch.export.export(model, (ids, mask))
    torch.testing.assert_close(program.module()(ids, mask).logits, model(ids, mask).logits)


@pytest.mark.parametrize("mask", [torch.ones(2, 19), torch.ones(2, 1), torch.ones(1, 20), [[1] * 20] * 2])
def test_a_recurrent_berts_mask_is_as_long_as_its_input(mask: Any) -> None:
    model = bert(RecurrentBertForMaskedLM)
    with pytest.raises((ValueError, TypeError), match="attention_mask"):
        model(tokens(2, 20), attention_mask=mask)


def test_labels_of_half_the_size_are_labels() -> None:
    model = window("bert", "masked-lm")
    ids = tokens(2, 20)
    assert torch.equal(model(ids, labels=ids.int()).loss, model(ids, labels=ids).loss)
