import errno
import io
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils.generic import find_labels

import onward
from onward import add_recurrence
from onward.data import Document
from onward.data.segments import Segments, collate
from onward.data.tokens import tokenize
from onward.training import CheckpointNotSaved, NonFiniteLossError, RecurrentTrainer, TrainingRecipe, train
from onward.training import checkpoints as on_disk

WORDS = [f"w{i}" for i in range(98)]
# 5 segments of 24 tokens in each of 6 documents: 15 steps of two segments in an epoch
RECIPE = TrainingRecipe(
    batch_size=2,
    windows_per_segment=3,
    epochs=1,
    warmup_steps=3,
    learning_rate=1e-3,
    carrier_learning_rate=1e-2,
    evaluate_every_tokens=4 * 48,
    patience=None,
)


def recipe(**changes):
    return TrainingRecipe(**{**RECIPE.__dict__, **changes})


def word_tokenizer():
    words = Tokenizer(models.WordLevel({"[UNK]": 0} | {w: i + 1 for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer()


def documents(count=6, tokens=120, seed=0):
    """Each draws from its own ten words, so that there is something to remember."""
    draw = random.Random(seed)
    vocabularies = [draw.sample(WORDS, 10) for _ in range(count)]
    return [Document(f"d{i}", " ".join(draw.choices(words, k=tokens))) for i, words in enumerate(vocabularies)]


def make_model(carrier="pooled", dropout=0.1, window=8, seed=0, **fields):
    torch.manual_seed(seed)
    backbone = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=99,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=16,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    return add_recurrence(backbone, carrier=carrier, window=window, hidden=[16], **fields)


def run(folder, tokenizer, model=None, changes=None, **options):
    return train(
        make_model() if model is None else model,
        documents(),
        documents(count=3, tokens=50, seed=1),
        tokenizer,
        folder,
        recipe(**(changes or {})),
        **{"progress": False, **options},
    )


def losses(result):
    return [entry["loss"] for entry in result.history if "loss" in entry]


def validations(result):
    return [entry["validation_loss"] for entry in result.history if "validation_loss" in entry]


def same(model, other):
    pairs = zip(model.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == other_name and torch.equal(a, b) for (name, a), (other_name, b) in pairs)


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
    with pytest.raises(ValueError, match="carrier 'none' has no trainable"):
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


# -- interruptions


class Interrupted(TrainerCallback):
    """Kills its process like a power cut, at the end of a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(target, *args):
    """A fork shares the imports, which take longer than the training."""
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


def killed_while(target, *args):
    process = in_a_process(target, *args)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


# Two epochs of 6 steps; validations at 2, 4, .., further checkpoints at every third
LONG = {"epochs": 2, "batch_size": 5, "evaluate_every_tokens": 240, "save_every_tokens": 360, "patience": 9}


@pytest.fixture(scope="module")
def uninterrupted(tokenizer, tmp_path_factory):
    model = make_model()
    result = run(tmp_path_factory.mktemp("uninterrupted"), tokenizer, model, LONG)
    assert result.steps == 12 and len(validations(result)) == 6
    return model, result


def test_a_run_killed_over_and_over_ends_like_one_that_was_not(uninterrupted, tokenizer, tmp_path, monkeypatch):
    for step in (
        1,
        4,
        6,
        7,
        11,
    ):  # before any checkpoint, after one, at the end of an epoch, in the next, near the end

        def start(step=step):
            _interrupt_after(step)
            run(tmp_path, tokenizer, None, LONG)

        killed_while(start)
    model = make_model(seed=1)  # its weights are the checkpoint's
    result = run(tmp_path, tokenizer, model, LONG)
    expected_model, expected = uninterrupted
    assert result.history == expected.history
    assert (result.tokens, result.best_step) == (expected.tokens, expected.best_step)
    assert same(model, expected_model)


@pytest.mark.parametrize("moment", ["_save_rng_state", "_save_optimizer_and_scheduler", "put_in_place", "keep_only"])
def test_killed_while_saving(uninterrupted, tokenizer, tmp_path, moment):
    def start():
        holder = on_disk if hasattr(on_disk, moment) else RecurrentTrainer
        original, calls = getattr(holder, moment), []

        def die_at_the_third(*args, **kwargs):
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(holder, moment, die_at_the_third)
        run(tmp_path, tokenizer, None, LONG)

    killed_while(start)
    there = [p.name for p in on_disk.all_checkpoints(tmp_path)]
    assert there and on_disk.all_checkpoints(tmp_path) == on_disk.complete_checkpoints(tmp_path)
    result = run(tmp_path, tokenizer, None, LONG)
    assert result.history == uninterrupted[1].history
    assert not (tmp_path / on_disk.UNFINISHED).exists()


def test_killed_at_any_moment(uninterrupted, tokenizer, tmp_path):
    draw = random.Random(time.time())
    for _ in range(3):
        process = in_a_process(run, tmp_path, tokenizer, None, LONG)
        before = set(on_disk.all_checkpoints(tmp_path))
        while process.is_alive() and set(on_disk.all_checkpoints(tmp_path)) <= before:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.3))
        process.kill()
        process.join()
    result = run(tmp_path, tokenizer, None, LONG)
    assert result.history == uninterrupted[1].history


@pytest.mark.parametrize("carrier, trained", [("spans", "lora"), ("constant", "carrier"), ("none", "all")])
def test_every_kind_of_run_can_be_taken_up_again(tokenizer, tmp_path, carrier, trained):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise KeyboardInterrupt

    changes = {**LONG, "epochs": 1, "batch_size": 6, "train": trained, "evaluate_every_tokens": 290}
    fields = {"vectors": 3} if carrier == "spans" else {}
    expected = run(tmp_path / "a", tokenizer, make_model(carrier, **fields), changes)
    model = make_model(carrier, **fields)
    init = RecurrentTrainer.__init__

    def stopping(self, *args, **kwargs):
        init(self, *args, **{**kwargs, "callbacks": [*kwargs["callbacks"], Stop()]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecurrentTrainer, "__init__", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "b", tokenizer, model, changes)
    assert on_disk.last_checkpoint(tmp_path / "b").name == "checkpoint-2"
    result = run(tmp_path / "b", tokenizer, make_model(carrier, **fields), changes)
    assert result.history == expected.history


@pytest.mark.parametrize("changes", [{"max_tokens": 470}, {"learning_rate": 0.5, "patience": 1}])
def test_killed_between_the_last_step_and_the_result(tokenizer, tmp_path, monkeypatch, changes):
    """Nothing more is trained, whether the tokens had run out or the patience."""
    changes = {**LONG, "save_every_tokens": None, **changes}
    expected = run(tmp_path / "a", tokenizer, None, changes)
    assert expected.steps < 12
    with monkeypatch.context() as patch:
        patch.setattr(RecurrentTrainer, "_load_best_model", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path / "b", tokenizer, None, changes)
    model = make_model()
    result = run(tmp_path / "b", tokenizer, model, changes)
    assert result.history == expected.history and result.seconds > 0
    assert same(model, AutoModelForCausalLM.from_pretrained(tmp_path / "a"))


def test_a_checkpoint_that_is_not_whole_is_not_used(uninterrupted, tokenizer, tmp_path):
    killed_while(lambda: (_interrupt_after(7), run(tmp_path, tokenizer, None, LONG)))
    good = on_disk.last_checkpoint(tmp_path)
    assert good.name == "checkpoint-6"
    for number, file in enumerate(("model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json")):
        bad = tmp_path / f"checkpoint-{8 + number}"
        shutil.copytree(good, bad)
        content = (good / file).read_bytes()
        (bad / file).write_bytes(content[: len(content) // 2])
    (tmp_path / "checkpoint-99").mkdir()
    assert on_disk.last_checkpoint(tmp_path) == good
    assert run(tmp_path, tokenizer, None, LONG).history == uninterrupted[1].history


def _interrupt_after(step):
    init = RecurrentTrainer.__init__

    def with_interruption(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.add_callback(Interrupted(step))

    RecurrentTrainer.__init__ = with_interruption


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("PytorchStreamWriter failed writing")],
)
def test_a_full_disk(uninterrupted, tokenizer, tmp_path, monkeypatch, error):
    save, calls = torch.save, []

    def full(value, path, *args, **kwargs):
        calls.append(path)
        if "checkpoint-6" in str(path):
            raise error
        save(value, path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(CheckpointNotSaved, match=r"checkpoint-6 could not .* last complete .*checkpoint-4\."):
            run(tmp_path, tokenizer, None, LONG)
    assert on_disk.last_checkpoint(tmp_path).name == "checkpoint-4"
    assert not (tmp_path / on_disk.UNFINISHED).exists()
    assert run(tmp_path, tokenizer, None, LONG).history == uninterrupted[1].history


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_no_number_stops_the_run(tokenizer, tmp_path, monkeypatch, value, where):
    loss = RecurrentTrainer.compute_loss

    def bad(self, *args, **kwargs):
        result = loss(self, *args, **kwargs)
        if self.state.global_step == 4:
            if where == "loss":
                return result * value
            result.register_hook(lambda gradient: gradient * value)
        return result

    monkeypatch.setattr(RecurrentTrainer, "compute_loss", bad)
    message = rf"at step 5 the {where}.* is (nan|inf).*last good checkpoint is .*checkpoint-4\."
    with pytest.raises(NonFiniteLossError, match=message):
        run(tmp_path, tokenizer, None, LONG | {"save_every_tokens": 100})
    last = on_disk.last_checkpoint(tmp_path)
    assert last.name == "checkpoint-4" and not (tmp_path / "training.json").exists()
    assert on_disk.all_checkpoints(tmp_path) == on_disk.complete_checkpoints(tmp_path)
    assert all(torch.isfinite(p).all() for p in AutoModelForCausalLM.from_pretrained(last).parameters())


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
        ("schedule", "cosin", "choose one of 'constant', 'linear', 'cosine'"),
        ("train", "head", "choose one of 'all', 'carrier', 'lora'"),
        ("learning_rate", 0, "a number above 0"),
        ("batch_size", 1.5, "a whole number of at least 1"),
        ("patience", 0, "a whole number of at least 1, or None"),
        ("bf16", "yes", "choose one of True, False"),
    ):
        with pytest.raises(ValueError, match=f"{name}={value!r}.*{message}"):
            TrainingRecipe(**{name: value})
    with pytest.raises(ValueError, match="batch_size=3 cannot be shared by 2 processes"):
        TrainingRecipe(batch_size=3).split_batch(2)
    with pytest.raises(ValueError, match="segments_at_once=2 does not divide .* 3 segments"):
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


UNEVEN = [100, 40, 7, 90, 3, 30]  # among them segments of a single window, which do not use the carrier


def train_on_uneven_documents(folder, tokenizer, changes=None):
    training = [tokenize([d], tokenizer, max_tokens=n)[0] for d, n in zip(documents(), UNEVEN, strict=True)]
    validation = [
        tokenize([d], tokenizer, max_tokens=n)[0] for d, n in zip(documents(3, 50, 1), (50, 9, 20), strict=True)
    ]
    chosen = recipe(batch_size=2, windows_per_segment=2, warmup_steps=0, max_tokens=10_000, **(changes or {}))
    return train(make_model(dropout=0), training, validation, tokenizer, folder, chosen, progress=False)


def as_one_of_two(rank, port, folder, tokenizer):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    train_on_uneven_documents(folder, tokenizer)


def test_two_processes_train_like_one(tokenizer, tmp_path):
    one = train_on_uneven_documents(tmp_path / "one", tokenizer)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [in_a_process(as_one_of_two, rank, port, tmp_path / "two", tokenizer) for rank in (0, 1)]
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
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
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from test_training import PreTrainedTokenizerFast, train_on_uneven_documents\n"
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
