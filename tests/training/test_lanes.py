import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from block_runs import HELD_OUT, LANES, LENGTH, LONG, UNEVEN, documents, exact_model, make_model, recipe, run
from processes import killed_while
from small_models import byte_tokenizer
from training_runs import interrupt_after, losses, same, validations
from transformers import Adafactor, AutoModelForCausalLM, Trainer, TrainerControl, TrainerState

from onward import BlockState
from onward.data import vocabularies
from onward.data.segments import Lanes, collate
from onward.data.tokens import tokenize
from onward.training import NonFiniteLossError, RecurrentTrainer, TrainingRecipe, train
from onward.training import checkpoints as on_disk
from onward.training.checkpointing import SaveMoreOften
from onward.training.folders import alone_in
from onward.training.lanes import CarriedStates
from onward.training.trainer import inverse_sqrt
from onward.utils.manifests import MANIFEST


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@torch.no_grad()
def token_losses(model, document):
    """Of a document that is read whole in one call: the loss of every token but the first."""
    ids = document.ids.long()[None]
    return torch.nn.functional.cross_entropy(model.eval()(ids).logits[0, :-1], ids[0, 1:], reduction="none")


def batches_of(folder, tokenizer, monkeypatch, **changes):
    seen = []

    def record(self, model, inputs, *args):
        seen.append(inputs)
        return Trainer.training_step(self, model, inputs, *args)

    with monkeypatch.context() as patch:
        patch.setattr(RecurrentTrainer, "training_step", record)
        return seen, run(folder, tokenizer, **changes)


# -- a run and its result


def test_a_run_leaves_a_model_that_has_learnt_and_a_record(tokenizer, tmp_path):
    model = make_model()
    result = run(tmp_path, tokenizer, model, epochs=6)
    assert same(AutoModelForCausalLM.from_pretrained(tmp_path), model)
    assert losses(result)[-1] < 0.8 * losses(result)[0] and not model.training
    assert result.best_validation_loss == min(validations(result))
    assert result.tokens == 6 * sum(UNEVEN)
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["recipe"]["optimizer"] == "adafactor" and record["recipe"]["schedule"] == "inverse_sqrt"
    again = make_model(seed=1)
    assert run(tmp_path, tokenizer, again, epochs=6) == result and same(again, model)


def test_every_token_is_read_once_in_an_epoch_and_in_the_order_of_the_lanes(tokenizer, tmp_path, monkeypatch):
    seen, result = batches_of(tmp_path, tokenizer, monkeypatch, epochs=1)
    read = torch.cat([batch["input_ids"][batch["attention_mask"].bool()] for batch in seen])
    assert torch.equal(read.sort().values, torch.cat([d.ids for d in documents()]).long().sort().values)
    assert sum(int((batch["shift_labels"] != -100).sum()) for batch in seen) == sum(UNEVEN) - len(UNEVEN)
    assert sum(int(batch["starts_document"].sum()) for batch in seen) == len(UNEVEN)
    lanes = Lanes(documents(), LANES, LENGTH, epochs=1, seed=0)
    assert result.steps == lanes.steps == len(seen) and result.tokens == sum(UNEVEN)
    for step, batch in enumerate(seen):
        expected = collate([lanes[step * LANES + lane] for lane in range(LANES)])
        assert torch.equal(batch["input_ids"], expected["input_ids"])


@pytest.mark.parametrize("length", [LENGTH, 12])  # whole blocks, and one and a half
def test_each_steps_loss_is_that_of_whole_documents(tokenizer, tmp_path, monkeypatch, length):
    """With weights that stand still: so the state is carried from step to step, and reset where documents start."""
    model, training = make_model(dropout=0.0, segment_length=length), documents()
    whole = {bytes(document.ids.numpy()): token_losses(model, document) for document in training}
    lanes, expected = Lanes(training, LANES, length, seed=0), []
    following = [torch.zeros(0)] * LANES  # what is left of each lane's document
    for step in range(lanes.steps):
        of_step = []
        for lane in range(LANES):
            item = lanes[step * LANES + lane]
            if item["starts_document"]:
                following[lane] = next(
                    whole[key] for key in whole if key.startswith(bytes(item["input_ids"].int().numpy()))
                )
            count = int((item["shift_labels"] != -100).sum())
            of_step.append(following[lane][:count])
            following[lane] = following[lane][count:]
        scored = torch.cat(of_step)
        expected.append(float(scored.mean()) if len(scored) else 0.0)
    settings = {"learning_rate": 1e-12, "epochs": 1}
    assert losses(run(tmp_path / "a", tokenizer, model, **settings)) == pytest.approx(expected, abs=1e-5)
    with monkeypatch.context() as patch:
        patch.setattr(CarriedStates, "before", lambda self, batch: {**batch, "state": None})
        forgetful = losses(run(tmp_path / "b", tokenizer, model, **settings))
    assert forgetful[0] == pytest.approx(expected[0], abs=1e-5)
    assert max(abs(a - b) for a, b in zip(forgetful, expected, strict=True)) > 1e-3


def test_validation_reads_whole_documents(tokenizer, tmp_path):
    model = make_model()
    result = run(tmp_path, tokenizer, model, epochs=1)
    total = torch.cat([token_losses(model, document) for document in documents(HELD_OUT, 1)])
    assert result.best_validation_loss == pytest.approx(float(total.mean()), rel=1e-5)


def test_reading_fewer_lanes_at_once_gives_the_same_updates(tokenizer, tmp_path):
    results = {
        at_once: run(tmp_path / str(at_once), tokenizer, exact_model(), segments_at_once=at_once)
        for at_once in (None, 2, 1)
    }
    for at_once in (2, 1):
        assert losses(results[at_once]) == pytest.approx(losses(results[None]), abs=1e-6)
        assert results[at_once].tokens == results[None].tokens


def test_gradient_checkpointing_gives_the_same_losses(tokenizer, tmp_path):
    plain = run(tmp_path / "a", tokenizer, exact_model(), epochs=1)
    model = exact_model()
    other = run(tmp_path / "b", tokenizer, model, epochs=1, gradient_checkpointing=True)
    assert losses(other) == pytest.approx(losses(plain), abs=1e-6)
    assert not model.is_gradient_checkpointing


def test_bfloat16(tokenizer, tmp_path):
    model = make_model()
    result = run(tmp_path, tokenizer, model, bf16=True, epochs=1)
    assert math.isfinite(result.validation_loss) and model.dtype == torch.float32


def test_equal_tokens_per_step_for_any_length_of_segments(tokenizer, tmp_path, monkeypatch):
    for length, lanes in ((16, 4), (32, 2)):
        model = make_model(segment_length=length)
        folder = tmp_path / str(length)
        seen, _ = batches_of(folder, tokenizer, monkeypatch, model=model, batch_size=1, tokens_per_step=64)
        assert {len(batch["input_ids"]) for batch in seen} == {lanes}


def test_a_step_with_nothing_to_predict(tokenizer, tmp_path):
    result = run(tmp_path, tokenizer, training=documents((LENGTH + 1,)), batch_size=1, epochs=1)
    assert result.tokens == LENGTH + 1 and losses(result)[1] == 0 < losses(result)[0]


def test_it_ends_after_max_tokens(tokenizer, tmp_path):
    result = run(tmp_path, tokenizer, epochs=50, max_tokens=500)
    assert abs(result.tokens - 500) <= LANES * LENGTH


def test_how_often_it_is_validated_changes_nothing(tokenizer, tmp_path):
    losses = []
    for every in (10_000, 60):
        history = run(tmp_path / str(every), tokenizer, evaluate_every_tokens=every).history
        losses.append([entry["loss"] for entry in history if "loss" in entry])
    assert losses[0] == losses[1]


def test_texts_get_an_end_that_is_learnt(tmp_path):
    """So that a trained model can end a text; those already in tokens stay as they are."""
    words, text = vocabularies.byte_tokenizer(), "the sea and the ship"
    ends = []
    for name, document in (("text", text), ("tokens", tokenize([text], words)[0])):
        model = make_model(vocab_size=len(words), dropout=0.0)
        train(model, [document] * 4, ["a ship"], words, tmp_path / name, recipe(epochs=40), progress=False)
        said = model(torch.tensor([words(text).input_ids])).logits[0, -1].argmax()
        ends.append(int(said) == words.eos_token_id)
    assert ends == [True, False]


# -- optimisers and schedules


def optimizer_of(folder, tokenizer, monkeypatch, model=None, **changes):
    found = []
    create = RecurrentTrainer.create_optimizer

    def record(self, model=None):
        found.append(create(self, model))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(RecurrentTrainer, "create_optimizer", record)
        result = run(folder, tokenizer, model, **changes)
    return found[0], result


def test_adafactor_is_the_papers(tokenizer, tmp_path, monkeypatch):
    optimizer, _ = optimizer_of(tmp_path, tokenizer, monkeypatch, epochs=1)
    assert isinstance(optimizer, Adafactor)
    for group in optimizer.param_groups:
        options = {name: group[name] for name in ("scale_parameter", "relative_step", "warmup_init", "beta1")}
        assert options == {"scale_parameter": True, "relative_step": False, "warmup_init": False, "beta1": 0.9}
        assert group["decay_rate"] == -0.8 and group["initial_lr"] == 0.2 and group["clip_threshold"] == 1.0


def test_weight_decay_is_for_matrices_only(tokenizer, tmp_path, monkeypatch):
    model = make_model(gate_configuration="dual", memory_size=16, memory_top_k=2, memory_layer=1)
    settings = {"optimizer": "adamw", "weight_decay": 0.1, "epochs": 1}
    optimizer, _ = optimizer_of(tmp_path, tokenizer, monkeypatch, model, **settings)
    names = {parameter: name for name, parameter in model.named_parameters()}
    decaying = {names[p] for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    every = {names[p] for group in optimizer.param_groups for p in group["params"]}
    assert every == set(names.values())
    layer = {"attention.projection", "attention.output", "mlp.up", "mlp.down"}
    cell = {"cell.projection", "cell.mlp_up", "cell.attention_gate.kernel", "cell.mlp_gate.kernel"}
    assert decaying == {"model.embed_tokens.weight"} | {
        f"model.layers.{number}.{part}.weight" for number, parts in enumerate((layer, layer | cell)) for part in parts
    }


def test_weight_decay_reaches_adafactor(tokenizer, tmp_path):
    models = [exact_model() for _ in range(2)]
    for model, decay in zip(models, (0.0, 1.0), strict=True):
        run(tmp_path / str(decay), tokenizer, model, weight_decay=decay, epochs=1)
    plain, decayed = (model.model.layers[0].mlp.up.weight.norm() for model in models)
    assert decayed < 0.95 * plain


def test_the_inverse_square_root_schedule(tokenizer, tmp_path):
    paper = [inverse_sqrt(step - 1, warmup_steps=1000, ramp_steps=1000) for step in (1, 500, 1000, 4000, 500_000)]
    expected = [step / 1000**1.5 for step in (1, 500, 1000)] + [1 / math.sqrt(4000), 1 / math.sqrt(500_000)]
    assert paper == pytest.approx(expected)
    result = run(tmp_path / "a", tokenizer, learning_rate=0.5, max_tokens=400)  # before any lane stands idle
    rates = {entry["step"]: entry["learning_rate"] for entry in result.history if "loss" in entry}
    assert rates == pytest.approx({n: 0.5 * min(1, n / 3) / math.sqrt(max(n, 3)) for n in range(1, result.steps + 1)})
    # A run too short for its warm-up still gets through it, and no higher.
    short = run(tmp_path / "b", tokenizer, learning_rate=1.0, warmup_steps=1000, max_tokens=400)
    rates = [entry["learning_rate"] for entry in short.history if "loss" in entry]
    assert max(rates) == rates[-1] == pytest.approx(1 / math.sqrt(1000))


def test_a_step_that_reads_little_changes_little(tokenizer, tmp_path):
    """When documents run out, lanes stand idle; a last step of a few tokens must not count like all others."""
    training = documents((100, 20, 20, 20), seed=3)
    result = run(tmp_path, tokenizer, training=training, epochs=1, learning_rate=0.5)
    rates = [entry["learning_rate"] for entry in result.history if "loss" in entry]
    whole = [0.5 * min(1, n / 3) / math.sqrt(max(n, 3)) for n in range(1, 8)]
    lanes = [4, 4, 1, 1, 1, 1, 1]
    assert rates == pytest.approx([rate * reading / 4 for rate, reading in zip(whole, lanes, strict=True)])


# -- interruptions

KINDS = {
    "adafactor": ({}, {}),
    "adamw": ({"optimizer": "adamw", "learning_rate": 0.01, "segments_at_once": 2}, {}),
    "feedback and memory": ({}, {"feedback": True, "memory_size": 16, "memory_top_k": 2}),
    "segments that end within blocks": ({}, {"segment_length": 12}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_over_and_over_ends_like_one_that_was_not(tokenizer, tmp_path, kind):
    changes, fields = KINDS[kind]
    changes = {**LONG, **changes}
    model = make_model(**fields)
    expected = run(tmp_path / "a", tokenizer, model, **changes)
    folder, carried_on = tmp_path / "b", 0
    for step in (4, 7):

        def start(step=step):
            interrupt_after(step)
            run(folder, tokenizer, make_model(**fields), **changes)

        killed_while(start)
        last = on_disk.last_checkpoint(folder)
        carried_on += 0 if last is None else sum(tokens_of_lanes(last))
    assert carried_on > 0
    again = make_model(seed=1, **fields)  # its weights are the checkpoint's
    result = run(folder, tokenizer, again, **changes)
    assert result.history == expected.history and same(again, model)


def tokens_of_lanes(checkpoint):
    return [n for file in on_disk.saved_lanes(checkpoint) for n in BlockState.load(file).tokens]


def stopped_after(step, folder, tokenizer, **changes):
    def start():
        interrupt_after(step)
        run(folder, tokenizer, exact_model(), **changes)

    killed_while(start)


@pytest.mark.parametrize(("logging_steps", "expected"), [(1, [3, 6, 9, 12]), (2, [4, 8, 12]), (5, [5, 10])])
def test_saved_by_the_clock(monkeypatch, logging_steps, expected):
    """And only where a step is logged: of losses that wait for their mean, a checkpoint knows nothing."""
    now = 0.0
    monkeypatch.setattr("onward.training.checkpointing.time.monotonic", lambda: now)
    callback = SaveMoreOften(every_steps=None, every_minutes=10)
    saved = []
    for step in range(1, 13):
        now += 250
        control = TrainerControl()
        arguments = SimpleNamespace(world_size=1, logging_steps=logging_steps)
        callback.on_step_end(arguments, TrainerState(global_step=step), control)
        if control.should_save:
            saved.append(step)
            callback.on_save(None, None, control)
    assert saved == expected


def test_a_run_goes_on_with_other_batches(tokenizer, tmp_path):
    """The states of a checkpoint find their lanes, however many are read at once."""
    expected = run(tmp_path / "a", tokenizer, exact_model(), **LONG)
    for before, after in ((None, 1), (1, None)):
        folder = tmp_path / f"{before}-{after}"
        stopped_after(6, folder, tokenizer, segments_at_once=before, **LONG)
        files = on_disk.saved_lanes(on_disk.last_checkpoint(folder))
        assert len(files) == {None: 1, 1: 4}[before]
        result = run(folder, tokenizer, exact_model(), segments_at_once=after, **LONG)
        assert losses(result) == pytest.approx(losses(expected), abs=1e-6)


def test_a_checkpoint_without_all_lanes_is_not_used(tokenizer, tmp_path):
    stopped_after(7, tmp_path, tokenizer, segments_at_once=2, **LONG)
    good = on_disk.last_checkpoint(tmp_path)
    first, second = on_disk.saved_lanes(good)
    assert (first.name, second.name) == ("lanes-0-1-of-4.safetensors", "lanes-2-3-of-4.safetensors")
    for number, broken in enumerate((first.name, second.name)):
        bad = tmp_path / f"checkpoint-{90 + number}"
        shutil.copytree(good, bad)
        (bad / broken).unlink()
    half = tmp_path / "checkpoint-99"
    shutil.copytree(good, half)
    (half / first.name).write_bytes(first.read_bytes()[:-9])
    assert on_disk.last_checkpoint(tmp_path) == good
    (good / MANIFEST).unlink()  # as in one that was written before there were hashes
    for file in (first, second):
        file.unlink()
    with pytest.raises(FileNotFoundError, match="lacks the carried state of some of the lanes 0 to 3"):
        run(tmp_path, tokenizer, exact_model(), **LONG)


def test_a_loss_that_is_no_number_stops_the_run(tokenizer, tmp_path, monkeypatch):
    loss = RecurrentTrainer.compute_loss

    def bad(self, *args, **kwargs):
        return loss(self, *args, **kwargs) * (math.nan if self.state.global_step == 4 else 1)

    monkeypatch.setattr(RecurrentTrainer, "compute_loss", bad)
    message = r"at step 5 the loss is nan.*last complete checkpoint is .*checkpoint-4\."
    with pytest.raises(NonFiniteLossError, match=message):
        run(tmp_path, tokenizer, save_every_tokens=40)
    last = on_disk.last_checkpoint(tmp_path)
    assert all(torch.isfinite(p).all() for p in AutoModelForCausalLM.from_pretrained(last).parameters())


# -- what is refused


def test_two_runs_do_not_share_a_folder(tokenizer, tmp_path):
    with alone_in(tmp_path), pytest.raises(FileExistsError, match="another process is training in"):
        run(tmp_path, tokenizer)
    run(tmp_path, tokenizer, epochs=1)


def test_ids_that_the_vocabulary_does_not_have(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="have the id 6[0-9], and the model's vocabulary 40 ids.*vocab_size"):
        run(tmp_path, tokenizer, make_model(vocab_size=40))
    assert not list(tmp_path.iterdir())


def test_recipes_that_do_not_fit_the_model(tokenizer, tmp_path):
    for changes, message in (
        ({"carrier_learning_rate": 0.01}, "carrier_learning_rate=0.01: it has no meaning for a block-recurrent model"),
        ({"train": "carrier"}, "train='carrier': it has no meaning for a block-recurrent model; leave it at 'all'"),
        ({"train": "lora"}, "train='lora': it has no meaning"),
        ({"windows_per_segment": 3}, "windows_per_segment=3: it has no meaning"),
        ({"tokens_per_step": 70}, "tokens_per_step=70: it is not a multiple of a segment's 16 tokens; .* such as 64"),
        ({"tokens_per_step": 8}, "tokens_per_step=8: it is not a multiple .* such as 16"),
        ({"batch_size": 6, "segments_at_once": 4}, "segments_at_once=4: it does not divide"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tmp_path / "x", tokenizer, **changes)
    with pytest.raises(ValueError, match="no recipe 'block': choose one of 'window-recurrent', 'block-recurrent'"):
        TrainingRecipe.preset("block")
    with pytest.raises(ValueError, match="optimizer='sgd': choose one of adafactor, adamw"):
        TrainingRecipe(optimizer="sgd")
    with pytest.raises(ValueError, match="tokens_per_step=48: a step of 3 segments cannot be shared by 2 processes"):
        TrainingRecipe(tokens_per_step=48).split_batch(2, rows=3)


def test_the_presets():
    paper = TrainingRecipe.preset("block-recurrent")
    assert (paper.optimizer, paper.learning_rate, paper.schedule, paper.warmup_steps) == (
        "adafactor",
        1.0,
        "inverse_sqrt",
        1000,
    )
    assert paper.rows(4096) == 32 and paper.rows(512) == 256 and not paper.gradient_checkpointing
    assert paper.patience is None
    # A rate relative to the parameters would be far too large for AdamW.
    assert TrainingRecipe.preset("block-recurrent", optimizer="adamw").learning_rate == 0.05
    assert TrainingRecipe.preset("block-recurrent", batch_size=3).rows(4096) == 3
    assert TrainingRecipe.preset("window-recurrent") == TrainingRecipe()
