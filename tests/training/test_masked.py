"""Masked language models, plain and recurrent, trained by the same code as all others."""

import json
import math
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from masked_runs import MODELS, documents, exact_model, make_model, recipe, run, word_tokenizer
from processes import in_a_process, on_two_processes
from small_models import byte_tokenizer
from torch.nn import functional as F
from training_runs import interrupt_after, losses, validations
from transformers import AutoModelForMaskedLM, GPT2Config, GPT2LMHeadModel

from onward.data.masked_rows import Hiding, PackedTexts, collate_rows
from onward.training import TrainingRecipe, train
from onward.training.masked import MaskedFeed, mean_loss, only_hidden_logits

kinds = pytest.mark.parametrize("kind", MODELS)


def batch_of(count=5, seed=None):
    tokenizer = word_tokenizer()
    texts = PackedTexts(documents(), 16, tokenizer, Hiding.with_tokenizer(tokenizer, 35, 0.3, False), seed=seed)
    return collate_rows([texts[len(texts) - 1 - i] for i in range(count)], 0)  # the last row, which is padded, first


# -- logits only where they are asked for


@kinds
def test_the_loss_and_all_gradients_are_those_of_all_logits(kind):
    model, batch = exact_model(kind), batch_of()
    wanted = batch["labels"] != -100
    theirs = model(**batch).loss
    expected = torch.autograd.grad(theirs, list(model.parameters()))
    with only_hidden_logits(model):
        outputs = model(batch["input_ids"], attention_mask=batch["attention_mask"], hidden=wanted)
        assert outputs.logits.shape == (wanted.sum(), 35)
        ours = mean_loss(outputs, batch["labels"], wanted.sum())
        assert ours.item() == pytest.approx(theirs.item(), abs=1e-12) and ours == mean_loss(outputs, batch["labels"])
        for mine, other in zip(torch.autograd.grad(ours, list(model.parameters())), expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
        assert model(**batch).logits.shape == (5, 16, 35)  # where nothing is asked, everything is answered
    assert model(**batch).loss == theirs


@kinds
def test_validation_is_per_row_the_loss_of_its_hidden_tokens(kind):
    model, batch = exact_model(kind).eval(), batch_of()
    batch["labels"][2] = -100  # a row may have none
    batch["hidden"] = batch["labels"] != -100
    with only_hidden_logits(model), torch.no_grad():
        found = MaskedFeed(model, recipe(), word_tokenizer()).losses(model, batch)
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    each = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    torch.testing.assert_close(found[:, 0], each.sum(1))
    assert found[:, 1].tolist() == batch["hidden"].sum(1).tolist() and found[2].tolist() == [0, 0]


def test_validation_keeps_nothing_for_gradients(tmp_path, monkeypatch):
    asked = []
    whole = MaskedFeed.losses
    monkeypatch.setattr(MaskedFeed, "losses", lambda *a: (asked.append(torch.is_grad_enabled()), whole(*a))[1])
    run(tmp_path, epochs=1)
    assert asked and not any(asked)


def test_a_run_that_was_begun_before_a_field_was_there_goes_on(tmp_path):
    result = run(tmp_path, epochs=1)
    described = json.loads((tmp_path / "run.json").read_text())
    assert described.pop("recipe.whole_words") is False
    (tmp_path / "run.json").write_text(json.dumps(described))
    assert run(tmp_path, epochs=1) == result
    with pytest.raises(FileExistsError, match="recipe.whole_words: False there, True here"):
        run(tmp_path, epochs=1, whole_words=True)


# -- runs


@kinds
def test_it_learns(kind, tmp_path):
    result = run(tmp_path, make_model(kind), epochs=60, evaluate_every_tokens=3000, learning_rate=5e-3)
    first, last = validations(result)[0], validations(result)[-1]
    assert first > 3.3 and last < 3.1  # chance is ln 30 = 3.40
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(loaded) is MODELS[kind][1]


@kinds
def test_bfloat16(kind, tmp_path):
    model = make_model(kind)
    result = run(tmp_path, model, epochs=1, bf16=True)
    assert math.isfinite(result.validation_loss) and model.dtype == torch.float32
    assert "forward" not in model.__dict__


@kinds
def test_a_killed_run_goes_on_as_if_nothing_had_happened(kind, tmp_path):
    changes = {"save_every_tokens": 60}
    expected = run(tmp_path / "whole", make_model(kind), **changes)
    assert len(losses(expected)) == 9

    def killed():
        interrupt_after(5)
        run(tmp_path / "killed", make_model(kind), **changes)

    process = in_a_process(killed)
    process.join(120)
    assert process.exitcode < 0
    result = run(tmp_path / "killed", make_model(kind), **changes)
    assert losses(result) == losses(expected) and validations(result) == validations(expected)
    assert result.tokens == expected.tokens


def test_a_run_reads_every_row_once_an_epoch(tmp_path):
    result = run(tmp_path, epochs=2)
    texts = PackedTexts(documents(), 16, word_tokenizer(), Hiding.with_tokenizer(word_tokenizer(), 35, 0.15, False))
    left_over = 2 * texts.rows % 4
    assert result.steps == 2 * texts.rows // 4 and 0 <= 2 * texts.tokens - result.tokens <= 16 * left_over
    short = run(tmp_path / "short", epochs=50, max_tokens=250)
    assert 250 <= short.tokens < 250 + 64


def test_rows_read_at_once_change_nothing(tmp_path):
    together = run(tmp_path / "a", exact_model())
    apart = run(tmp_path / "b", exact_model(), segments_at_once=1)
    assert losses(apart) == pytest.approx(losses(together), abs=1e-6)
    assert validations(apart) == pytest.approx(validations(together), abs=1e-9)


def test_two_processes_train_like_one(tmp_path):
    training = documents((61, 35, 90, 14, 27))  # 17 rows, twice: 8 steps of 4, and 2 rows left over
    one = run(tmp_path / "one", exact_model(), training=training)
    job = partial(run, tmp_path / "two", exact_model(), training=training, segments_at_once=1)
    assert on_two_processes(job) == [0, 0]
    two = json.loads((tmp_path / "two" / "training.json").read_text())
    assert two["machine"]["processes"] == 2 and two["tokens"] == one.tokens
    assert [e["loss"] for e in two["history"] if "loss" in e] == pytest.approx(losses(one), abs=1e-6)
    held_out = [e["validation_loss"] for e in two["history"] if "validation_loss" in e]
    assert held_out == pytest.approx(validations(one), abs=1e-6)


@kinds
def test_checkpointing_over_layers_changes_nothing(kind, tmp_path):
    plain = run(tmp_path / "a", exact_model(kind), epochs=1)
    checkpointed = run(tmp_path / "b", exact_model(kind), epochs=1, gradient_checkpointing=True)
    assert losses(checkpointed) == pytest.approx(losses(plain), abs=1e-6)


def test_shorter_rows_than_the_model_has_positions(tmp_path):
    result = run(tmp_path, sequence_length=8, epochs=1)
    texts = PackedTexts(documents(), 8, word_tokenizer(), Hiding.with_tokenizer(word_tokenizer(), 35, 0.15, False))
    assert result.steps == texts.rows // 4 and result.tokens <= 8 * 4 * result.steps


def test_without_a_recipe_it_is_berts(tmp_path):
    train(make_model(), documents(), documents(), word_tokenizer(), tmp_path, progress=False)
    fields = TrainingRecipe.preset("masked")
    assert json.loads((tmp_path / "training.json").read_text())["recipe"] == asdict(fields)
    assert (fields.batch_size, fields.learning_rate, fields.warmup_steps) == (256, 1e-4, 10_000)
    assert (fields.weight_decay, fields.schedule, fields.masked_share) == (0.01, "linear", 0.15)


# -- bad input


def test_what_does_not_go_together(tmp_path):
    with pytest.raises(ValueError, match="the tokenizer has no mask token"):
        run(tmp_path, tokenizer=byte_tokenizer())
    with pytest.raises(ValueError, match="sequence_length=17: it is more than the model's max_position_embeddings=16"):
        run(tmp_path, sequence_length=17)
    with pytest.raises(ValueError, match="carrier_learning_rate=0.5: it has no meaning for a masked model"):
        run(tmp_path, carrier_learning_rate=0.5)
    for changes, message in [
        ({"masked_share": 1.0}, "masked_share=1.0: some tokens must stay visible"),
        ({"masked_share": 0}, "masked_share=0: it must be a number above 0"),
        ({"whole_words": "yes"}, "whole_words='yes': choose one of False, True"),
        ({"sequence_length": 2}, "sequence_length=2: it must be a whole number of at least 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            recipe(**changes)
    with pytest.raises(ValueError, match="whole_words=True: it has no meaning for a block-recurrent model"):
        from block_runs import run as run_blocks

        run_blocks(tmp_path, byte_tokenizer(), whole_words=True)
    with pytest.raises(TypeError, match="recurrent language model or a masked one of BERT's kind, got GPT2LMHeadModel"):
        model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=35))
        train(model, documents(), documents(), word_tokenizer(), tmp_path)
    with pytest.raises(ValueError, match="the tokenizer has 35 ids, and the model's vocabulary only 30"):
        run(tmp_path, make_model(vocab_size=30))
    with pytest.raises(ValueError, match="nothing that could be hidden"):
        run(tmp_path, training=[replace(document, ids=document.ids * 0 + 1) for document in documents()])
    assert not (tmp_path / "training.json").exists()
