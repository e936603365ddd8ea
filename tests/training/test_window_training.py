"""Window-recurrent models: what is trained on what, what a run leaves, shows and refuses."""

import io
import json
import math
import os
import re
import subprocess
import sys
from functools import partial

import pytest
import torch
import window_runs
from processes import on_two_processes
from rich.console import Console
from training_runs import losses, same, validations
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments
from transformers.utils.generic import find_labels
from window_runs import documents, make_model, recipe, run, train_on_uneven_documents

import onward
from onward.data import Document
from onward.data.segments import Segments, collate
from onward.data.tokens import tokenize
from onward.training import RecurrentTrainer, TrainingRecipe, train
from onward.training import checkpoints as on_disk

# -- a run and its result


def test_a_run_leaves_a_model_its_tokenizer_and_a_record(tokenizer, tmp_path):
    model = make_model()
    result = run(tmp_path, tokenizer, model)
    assert same(AutoModelForCausalLM.from_pretrained(tmp_path), model)
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path)("w3").input_ids == [4]
    assert not model.training and not model.is_gradient_checkpointing
    assert {**model.config.to_dict(), "architectures": None} == make_model().config.to_dict()
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["recipe"]["windows_per_segment"] == 3 and record["seed"] == 0
    assert record["versions"].keys() >= {"onward", "torch", "transformers"}
    assert record["machine"]["threads"] >= 1 and record["command"] and record["history"] == result.history
    assert (result.steps, result.tokens, len(losses(result))) == (15, 720, 15)
    assert [e["step"] for e in result.history if "validation_loss" in e] == [4, 8, 12, 15]
    assert result.validation_loss == validations(result)[-1]
    assert result.best_validation_loss == min(validations(result)) and result.seconds > 0
    assert result.best_step in (4, 8, 12, 15) and result.path == tmp_path
    assert {p.name for p in on_disk.all_checkpoints(tmp_path)} == {
        f"checkpoint-{result.best_step}",
        "checkpoint-15",
    }
    assert not (tmp_path / on_disk.UNFINISHED).exists()


def test_the_model_that_is_kept_has_the_best_validation_loss_per_token(tokenizer, tmp_path):
    model = make_model()
    held_out = [d for n, d in zip((50, 31, 9, 2, 1), documents(5, 50, 1), strict=True)]
    held_out = tokenize(held_out[:1], tokenizer) + [
        tokenize([d], tokenizer, max_tokens=n)[0] for d, n in zip(held_out[1:], (31, 9, 2, 1), strict=True)
    ]
    changes = {"learning_rate": 0.05, "batch_size": 4, "evaluate_every_tokens": 100}
    result = train(model, documents(), held_out, tokenizer, tmp_path, recipe(**changes), progress=False)
    assert result.best_validation_loss < result.validation_loss
    total = count = 0
    for document in held_out[:-1]:  # the last has no label
        ids = document.ids.long()[None]
        total += model(ids, labels=ids).loss.item() * (len(document) - 1)
        count += len(document) - 1
    assert result.best_validation_loss == pytest.approx(total / count, rel=1e-6)


def test_a_run_that_has_ended_is_not_run_again(tokenizer, tmp_path, monkeypatch):
    model = make_model()
    result = run(tmp_path, tokenizer, model)
    monkeypatch.setattr(RecurrentTrainer, "train", None)
    again = make_model(seed=1)
    assert run(tmp_path, tokenizer, again) == result and same(again, model)


# -- what is trained, on what


def test_all_carriers_read_the_same_tokens_in_the_same_order(tokenizer, tmp_path, monkeypatch):
    read = {}

    def record(self, model, inputs, *args):
        read.setdefault(self.model.config.carrier, []).append(inputs["input_ids"].clone())
        return Trainer.training_step(self, model, inputs, *args)

    monkeypatch.setattr(RecurrentTrainer, "training_step", record)
    changes = {"epochs": 2, "batch_size": 10, "evaluate_every_tokens": 1000, "warmup_steps": 0}
    for carrier in ("pooled", "spans", "constant", "none"):
        fields = {"vectors": 3} if carrier == "spans" else {}
        result = run(tmp_path / carrier, tokenizer, make_model(carrier, **fields), changes)
        assert losses(result)[-1] < losses(result)[0]
    batches = read["pooled"]
    assert len(batches) == 6
    assert all(all(map(torch.equal, batches, other)) for other in read.values())
    first, second = (torch.cat(batches[i : i + 3]).flatten().sort().values for i in (0, 3))
    assert torch.equal(first, second) and not torch.equal(batches[0], batches[3])


@pytest.mark.parametrize("stands_for", ["pooled", "spans"])
def test_the_constant_starts_from_real_memories(tokenizer, tmp_path, monkeypatch, stands_for):
    started, first = [], []

    def begin(self, *args, **kwargs):
        started.extend(p.detach().clone() for p in self.model.carrier.learned)
        first.append(next(iter(self.get_train_dataloader())))
        raise KeyboardInterrupt

    monkeypatch.setattr(RecurrentTrainer, "train", begin)
    fields = {"vectors": 3} if stands_for == "spans" else {}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, tokenizer, make_model("constant", stands_for=stands_for, **fields))
    real = make_model(stands_for, **fields).eval()
    memory = real(first[0]["input_ids"]).state.memory[0]
    torch.testing.assert_close(started[0], memory.mean(0, keepdim=True))
    assert started[0].abs().sum() > 0


def test_carrier_and_backbone_have_their_own_learning_rates(tokenizer, tmp_path, monkeypatch):
    groups = []
    create = RecurrentTrainer.create_optimizer

    def record(self, model=None):
        groups.extend(create(self, model).param_groups)
        return self.optimizer

    monkeypatch.setattr(RecurrentTrainer, "create_optimizer", record)
    model = make_model()
    changes = {"weight_decay": 0.1, "learning_rate": 1e-4, "carrier_learning_rate": 1e-2, "max_tokens": 48}
    result = run(tmp_path, tokenizer, model, {**changes, "warmup_steps": 0})
    assert result.steps == 1
    carrier = {id(p) for p in model.carrier.parameters()}
    for group in groups:
        inside = {id(p) in carrier for p in group["params"]}
        assert inside == {group["lr"] == 1e-2} and group["lr"] in (1e-2, 1e-4)
        if group["weight_decay"] == 0:
            assert all(p.dim() == 1 for p in group["params"])
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))


def test_the_carrier_alone(tokenizer, tmp_path):
    model, before = make_model(), make_model()
    run(tmp_path, tokenizer, model, {"train": "carrier"})
    assert same(model.backbone, before.backbone) and not same(model.carrier, before.carrier)
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ValueError, match="train='carrier': the carrier 'none' has no trainable"):
        run(tmp_path / "none", tokenizer, make_model("none"), {"train": "carrier"})
    # A run that has saved nothing does not keep its folder from others.
    assert run(tmp_path / "none", tokenizer, make_model("none"), {"max_tokens": 48}).steps == 1


def test_lora_is_merged_into_a_backbone_of_the_same_shape(tokenizer, tmp_path):
    pytest.importorskip("peft")
    model, before = make_model(), make_model()
    run(tmp_path, tokenizer, model, {"train": "lora", "lora_rank": 2})
    assert same(AutoModelForCausalLM.from_pretrained(tmp_path), model)
    state, old = model.backbone.state_dict(), before.backbone.state_dict()
    change = state["transformer.h.0.mlp.c_fc.weight"] - old["transformer.h.0.mlp.c_fc.weight"]
    assert torch.linalg.matrix_rank(change, rtol=1e-3) == 2
    assert torch.equal(state["transformer.wte.weight"], old["transformer.wte.weight"])


def test_reading_fewer_segments_at_once_gives_the_same_updates(tokenizer, tmp_path):
    model, other = make_model(dropout=0), make_model(dropout=0)
    uneven = documents(5, 61)
    for name, m, at_once in (("a", model, None), ("b", other, 1)):
        chosen = recipe(batch_size=4, segments_at_once=at_once, max_tokens=150)
        train(m, uneven, documents(1), tokenizer, tmp_path / name, chosen, progress=False)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_training_in_bfloat16_leaves_the_model_as_it_was(tokenizer, tmp_path):
    model = make_model()
    result = run(tmp_path, tokenizer, model, {"bf16": True, "max_tokens": 200})
    assert math.isfinite(result.validation_loss) and model.dtype == torch.float32
    assert "forward" not in model.__dict__


def test_early_stopping(tokenizer, tmp_path):
    changes = {"learning_rate": 0.5, "epochs": 4, "evaluate_every_tokens": 96, "patience": 2}
    result = run(tmp_path, tokenizer, changes=changes)
    assert result.steps < 60 and len(validations(result)) >= 3
    assert min(validations(result)[-2:]) >= result.best_validation_loss
    assert result.steps == result.best_step + 4


# -- what is refused


def test_a_folder_with_another_run(tokenizer, tmp_path):
    run(tmp_path / "a", tokenizer, None, {"max_tokens": 48})
    with pytest.raises(FileExistsError, match="recipe.seed: 0 there, 1 here"):
        run(tmp_path / "a", tokenizer, None, {"max_tokens": 48, "seed": 1})
    with pytest.raises(FileExistsError, match="model.carrier: 'pooled' there, 'none' here"):
        run(tmp_path / "a", tokenizer, make_model("none"), {"max_tokens": 48})
    with pytest.raises(FileExistsError, match="training documents: '6 with 720 tokens"):
        train(make_model(), documents(5), documents(2), tokenizer, tmp_path / "a", recipe(max_tokens=48))
    with pytest.raises(FileExistsError, match="holds a run already"):
        run(tmp_path / "a", tokenizer, None, {"max_tokens": 48}, resume=False)
    (tmp_path / "b" / "checkpoint-3").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="checkpoints that onward did not make"):
        run(tmp_path / "b", tokenizer)


def test_documents_that_cannot_be_trained_on(tokenizer, tmp_path):
    good, model = documents(1), make_model()
    for training, validation, message in (
        ([], good, "there are no training documents"),
        (good, [], "there are no validation documents"),
        ([Document("d", "w1")], good, "training documents are too short: none has two tokens"),
        (good, [Document("d", "w1")], "validation documents are too short"),
        ([Document("d", "w1 " * 9)], good, "the longest has 9 tokens and fits into one window of 8"),
    ):
        with pytest.raises(ValueError, match=message):
            train(model, training, validation, tokenizer, tmp_path / "x")
    with pytest.raises(TypeError, match="train takes a recurrent language model or .* got GPT2LMHeadModel"):
        train(model.backbone, good, good, tokenizer, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_recipes_that_make_no_sense():
    for name, value, message in (
        ("schedule", "cosin", "choose one of constant, cosine, inverse_sqrt, linear"),
        ("train", "head", "choose one of all, carrier, lora"),
        ("learning_rate", 0, "a number above 0"),
        ("batch_size", 1.5, "a whole number of at least 1"),
        ("patience", 0, "a whole number of at least 1, or None"),
        ("bf16", "yes", "choose one of False, True"),
    ):
        with pytest.raises(ValueError, match=f"{name}={value!r}.*{message}"):
            TrainingRecipe(**{name: value})
    with pytest.raises(ValueError, match="batch_size=3: it cannot be shared by 2 processes"):
        TrainingRecipe(batch_size=3).split_batch(2)
    with pytest.raises(ValueError, match="segments_at_once=2: it does not divide .* 3 segments"):
        TrainingRecipe(batch_size=6, segments_at_once=2).split_batch(2)


# -- what is shown


def test_a_line_now_and_then_where_there_is_no_terminal(tokenizer, tmp_path, capsys):
    run(tmp_path, tokenizer, None, {"max_tokens": 300}, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4  # what is done, and one per validation
    pattern = (
        r"step 4/7, 192 tokens, [\d,]+ tokens/s, loss \d\.\d{3} nats/token, validation \d\.\d{3} nats/token, "
        r"0:0\d:\d\d left"
    )
    assert re.fullmatch(pattern, lines[2])


def test_a_bar_in_a_terminal(tokenizer, tmp_path, monkeypatch):
    screen = io.StringIO()
    terminal = partial(Console, file=screen, force_terminal=True, width=150, legacy_windows=False)
    monkeypatch.setattr("onward.training.progress.Console", lambda stderr: terminal())
    run(tmp_path, tokenizer, None, {"max_tokens": 100}, progress=True)
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.getvalue())
    assert "training" in shown and "100%" in shown and "left" in shown
    assert re.search(r"[\d,]+ tokens/s, loss \d\.\d+ nats/token", shown)
    assert re.search(r"validation \d\.\d+ nats/token", shown)


def test_tensorboard(tokenizer, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run(tmp_path, tokenizer, None, {"max_tokens": 100}, report_to="tensorboard")
    (events,) = tmp_path.rglob("events.out.tfevents*")
    log = accumulator.EventAccumulator(str(events.parent)).Reload()
    assert [e.value for e in log.Scalars("train/loss")] == pytest.approx(losses(result))
    assert [e.value for e in log.Scalars("eval/loss")] == pytest.approx(validations(result))


# -- several processes, and other people's trainers


def test_two_processes_train_like_one(tokenizer, tmp_path):
    one = train_on_uneven_documents(tmp_path / "one", tokenizer)
    assert on_two_processes(partial(train_on_uneven_documents, tmp_path / "two", tokenizer)) == [0, 0]
    two = json.loads((tmp_path / "two" / "training.json").read_text())
    assert two["machine"]["processes"] == 2
    assert losses(one) == pytest.approx([e["loss"] for e in two["history"] if "loss" in e], abs=1e-5)
    assert validations(one) == pytest.approx(
        [e["validation_loss"] for e in two["history"] if "validation_loss" in e], abs=1e-5
    )
    a, b = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("one", "two"))
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=0)


def test_accelerate_launch_starts_processes_that_train_together(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {os.path.dirname(window_runs.__file__)!r})\n"
        "from transformers import PreTrainedTokenizerFast\n"
        "from window_runs import train_on_uneven_documents\n"
        "tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[1] + '/tokenizer')\n"
        "train_on_uneven_documents(sys.argv[1] + '/two', tokenizer)\n"
    )
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    # --cpu alone starts one process where there is no MPI.
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    subprocess.run([*launch, str(script), str(tmp_path)], check=True, timeout=300, env=environment)
    two = json.loads((tmp_path / "two" / "training.json").read_text())
    one = train_on_uneven_documents(tmp_path / "one", tokenizer)
    assert two["machine"]["processes"] == 2
    assert losses(one) == pytest.approx([e["loss"] for e in two["history"] if "loss" in e], abs=1e-5)


def test_trainer_takes_only_labels_for_labels():
    """It evaluates a loss only where all that it takes for labels is given."""
    for kind in (onward.WindowRecurrentForCausalLM, onward.BlockRecurrentForCausalLM):
        assert find_labels(kind) == ["labels"]


@pytest.mark.parametrize("checkpointing", [True, False])
def test_the_stock_trainer(tokenizer, tmp_path, checkpointing):
    model = make_model()
    segments = Segments(tokenize(documents(), tokenizer), length=24)
    arguments = TrainingArguments(
        tmp_path,
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_checkpointing=checkpointing,
        logging_steps=1,
        prediction_loss_only=True,
        learning_rate=1e-2,
        use_cpu=True,
        save_steps=2,
        disable_tqdm=True,
    )
    with pytest.raises(ValueError, match="remove_unused_columns=False"):
        Trainer(model, arguments, data_collator=collate, eval_dataset=segments).evaluate()
    arguments.remove_unused_columns = False
    trainer = Trainer(model, arguments, data_collator=collate, train_dataset=segments, eval_dataset=segments)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    assert model.is_gradient_checkpointing == checkpointing
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
