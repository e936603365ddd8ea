"""Whose folder it is, and where: runs that are moved, started twice, or sent where something else is."""

import os
import shutil
from pathlib import Path

import pytest
from processes import killed_while
from tiny_models import recurrent
from training_runs import interrupt_after, same
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner
from window_runs import LONG, documents, make_model, recipe, run

from onward import add_recurrence
from onward.cli import app
from onward.training import RecurrentTrainer, TrainingRecipe, train
from onward.training.folders import RUN, alone_in, describe
from onward.utils.files import DamagedFile
from onward.utils.safe_json import read_json, write_json

# The best comes early, so that the last weights are others.
WORSENING = {**LONG, "learning_rate": 0.3, "carrier_learning_rate": 0.3}


def snapshot(folder: Path) -> dict[str, object]:
    """All that it holds, and when each was last written."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in [folder, *sorted(folder.rglob("*"))]
    }


# -- moved


@pytest.fixture(scope="module")
def stopped(tokenizer, tmp_path_factory):
    """One that has ended, and one that was killed long after its best step."""
    folder = tmp_path_factory.mktemp("stopped")
    model = make_model()
    expected = run(folder / "whole", tokenizer, model, WORSENING)
    assert expected.best_step < 8, "the test is about an early best"
    killed_while(lambda: (interrupt_after(9), run(folder / "killed", tokenizer, None, WORSENING)))
    return folder, model, expected


def test_a_run_that_is_moved_saves_its_best_model(stopped, tokenizer, tmp_path):
    folder, expected_model, expected = stopped
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(folder / "killed", moved)
    (tmp_path / "hidden").mkdir()
    (folder / "killed").rename(tmp_path / "hidden" / "killed")
    try:
        model = make_model(seed=1)
        result = run(moved, tokenizer, model, WORSENING)
    finally:
        (tmp_path / "hidden" / "killed").rename(folder / "killed")
    assert result.history == expected.history and result.best_step == expected.best_step
    assert same(model, expected_model) and same(AutoModelForCausalLM.from_pretrained(moved), expected_model)
    assert (moved / f"checkpoint-{result.best_step}").is_dir()


def test_checkpoints_name_no_folder(stopped):
    folder, _, _ = stopped
    for file in (folder / "killed").rglob("*.json"):
        assert str(folder) not in file.read_text(), file


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_the_best_is_not_replaced_by_the_last(stopped, tokenizer, tmp_path, how):
    folder, _, expected = stopped
    shutil.copytree(folder / "killed", tmp_path / "run")
    best = tmp_path / "run" / f"checkpoint-{expected.best_step}"
    file = best / "model.safetensors"
    saved = file.read_bytes()
    if how == "missing":
        best.rename(tmp_path / "aside")
    else:
        file.write_bytes(saved[:-4] + b"oops")
    name = rf"{best}[^ ]* is {how}"
    with pytest.warns(UserWarning, match=name), pytest.raises(DamagedFile, match=name):
        run(tmp_path / "run", tokenizer, None, WORSENING)
    assert not (tmp_path / "run" / "training.json").exists()
    with pytest.warns(UserWarning, match=name), pytest.raises(DamagedFile, match=name):  # nothing is left to train
        run(tmp_path / "run", tokenizer, None, WORSENING)
    if how == "missing":
        (tmp_path / "aside").rename(best)
    else:
        file.write_bytes(saved)
    assert run(tmp_path / "run", tokenizer, None, WORSENING).history == expected.history


# -- started twice


@pytest.mark.parametrize("exported", [{}, {"RANK": "1"}, {"RANK": "1", "WORLD_SIZE": "1"}])
def test_whoever_is_refused_changes_nothing(tokenizer, tmp_path, monkeypatch, exported):
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    write_json(tmp_path / RUN, {"recipe.seed": 7, "training documents": "of the first"})
    with alone_in(tmp_path):
        before = snapshot(tmp_path)
        with pytest.raises(FileExistsError, match="another process is training in"):
            run(tmp_path, tokenizer)
        assert snapshot(tmp_path) == before
    assert run(tmp_path, tokenizer, None, {"max_tokens": 48}).steps == 1, "one that has saved nothing gives way"


# -- sent where something else is


@pytest.fixture
def backbone(tokenizer, tmp_path):
    make_model().backbone.save_pretrained(tmp_path / "backbone")
    tokenizer.save_pretrained(tmp_path / "backbone")
    return tmp_path / "backbone"


def train_it(backbone, out, tokenizer):
    model = add_recurrence(AutoModelForCausalLM.from_pretrained(backbone), carrier="pooled", window=8, hidden=[16])
    return train(model, documents(), documents(2), tokenizer, out, recipe(max_tokens=48), progress=False)


def test_a_backbone_is_never_written_over(backbone, tokenizer, tmp_path):
    before = snapshot(backbone)
    (tmp_path / "link").symlink_to(backbone)
    for out in (backbone, tmp_path / "link", str(backbone) + "/"):
        with pytest.raises(FileExistsError, match=r"backbone holds config\.json.* choose another folder"):
            train_it(backbone, out, tokenizer)
        assert snapshot(backbone) == before
    write_json(backbone / RUN, {"training documents": "of a run that saved nothing"})
    before = snapshot(backbone)
    with pytest.raises(FileExistsError, match="backbone is where the model comes from"):
        train_it(backbone, tmp_path / "link", tokenizer)
    assert snapshot(backbone) == before
    (backbone / RUN).unlink()
    assert train_it(backbone, backbone / "run", tokenizer).steps == 1, "a folder inside it is another"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"])
def test_files_of_others_are_left_alone(tokenizer, tmp_path, name):
    (tmp_path / name).write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match=f"holds {name}, which is no run of onward's"):
        run(tmp_path, tokenizer)
    assert snapshot(tmp_path) == before


def test_another_programs_run_json_is_left_alone(tokenizer, tmp_path):
    (tmp_path / RUN).write_text('{"mine": 1}')
    with pytest.raises(FileExistsError, match="is no run of onward's"):
        run(tmp_path, tokenizer)
    assert (tmp_path / RUN).read_text() == '{"mine": 1}'


def test_no_folder_at_all(tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="output_dir='': it names no folder"):
        run("", tokenizer)
    assert os.listdir() == []
    assert run(".", tokenizer, None, {"max_tokens": 48}).path == tmp_path


@pytest.mark.parametrize("verb", ["train window x", "finetune x", "study backbone", "vocabulary", "evaluate x"])
def test_no_folder_on_the_command_line(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*verb.split(), "--out", ""])
    assert result.exit_code == 2 and "'' names no folder" in result.output
    assert os.listdir() == []


def test_a_controls_folder_is_refused_before_the_first_run(backbone, tmp_path):
    shutil.copytree(backbone, tmp_path / "runs" / "constant")
    before = snapshot(tmp_path / "runs" / "constant")
    line = (
        f"train window {tmp_path / 'runs' / 'constant'} --corpus shakespeare --with-controls --out {tmp_path / 'runs'}"
    )
    result = CliRunner().invoke(app, line.split())
    assert isinstance(result.exception, FileExistsError) and "constant holds config.json" in str(result.exception)
    assert snapshot(tmp_path / "runs" / "constant") == before and os.listdir(tmp_path / "runs") == ["constant"]


def test_what_else_is_in_the_folder_stays_as_it_is(tokenizer, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "notes.txt").chmod(0o600)
    (tmp_path / "README.md").write_text("mine, too")
    run(tmp_path, tokenizer, None, {"max_tokens": 48})
    assert (tmp_path / "README.md").read_text() == "mine, too"
    assert (tmp_path / "notes.txt").stat().st_mode & 0o777 == 0o600


# -- damaged records


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}"])
def test_a_damaged_record_is_named(stopped, tokenizer, tmp_path, content):
    folder, expected_model, expected = stopped
    shutil.copytree(folder / "killed", tmp_path / "killed")
    (tmp_path / "killed" / RUN).write_text(content)
    with pytest.raises(DamagedFile, match=rf"killed/{RUN} is damaged.*put a copy of it back"):
        run(tmp_path / "killed", tokenizer, None, WORSENING)
    shutil.copytree(folder / "whole", tmp_path / "whole")
    (tmp_path / "whole" / "training.json").write_text(content)
    with pytest.raises(DamagedFile, match=r"whole/training\.json is damaged"):
        run(tmp_path / "whole", tokenizer, None, WORSENING)
    (tmp_path / "whole" / "training.json").unlink()
    model = make_model(seed=1)
    assert run(tmp_path / "whole", tokenizer, model, WORSENING).history == expected.history
    assert same(model, expected_model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_damaged_result_is_named(stopped, tokenizer, tmp_path, name):
    folder, _, _ = stopped
    shutil.copytree(folder / "whole", tmp_path / "run")
    file = tmp_path / "run" / name
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"run/{name} is damaged: its content is not what was written"):
        run(tmp_path / "run", tokenizer, None, WORSENING)


def test_a_result_without_hashes_is_loaded(stopped, tokenizer, tmp_path, monkeypatch):
    folder, expected_model, expected = stopped
    shutil.copytree(folder / "whole", tmp_path / "run")
    saved = read_json(tmp_path / "run" / "training.json")
    del saved["files"]
    write_json(tmp_path / "run" / "training.json", saved)
    monkeypatch.setattr(RecurrentTrainer, "train", None)
    model = make_model(seed=1)
    assert run(tmp_path / "run", tokenizer, model, WORSENING).history == expected.history
    assert same(model, expected_model)


def test_a_run_of_version_0_1_knew_no_shapes_of_slots(tokenizer):
    for carrier in ("pooled", "recent"):
        described = describe(recurrent("gpt2", carrier=carrier, window=8), TrainingRecipe(), [], [])
        assert described["model.window"] == 8 and "model.slot_shapes" not in described


# -- begun with an earlier version


ADDED_SINCE_0_1 = ["slots", "sinks", "score"]


@pytest.mark.parametrize(
    ("fields", "history"),
    [({}, 1), ({"carrier": "spans", "slots": 4}, 1), ({"carrier": "spans", "history": [3, 2]}, [3, 2])],
)
def test_a_run_of_version_0_1_is_resumed(tokenizer, tmp_path, fields, history):
    """It knows fewer fields, and another default of one."""
    changes = {"epochs": 2, "batch_size": 5, "evaluate_every_tokens": 240}
    expected = run(tmp_path / "whole", tokenizer, make_model(**fields), changes)
    killed_while(lambda: (interrupt_after(5), run(tmp_path / "old", tokenizer, make_model(**fields), changes)))
    there = read_json(tmp_path / "old" / RUN, "", "")
    for name in [*(f"model.{name}" for name in ADDED_SINCE_0_1), "recipe.teacher", "recipe.teacher_share"]:
        there.pop(name, None)
    if fields.get("slots"):
        there["model.vectors"] = fields["slots"]
    old = {**there, "model.history": history}
    write_json(tmp_path / "old" / RUN, old)
    fields = {("vectors" if name == "slots" else name): value for name, value in fields.items()}
    assert run(tmp_path / "old", tokenizer, make_model(**fields), changes).history == expected.history
    with pytest.raises(FileExistsError, match=r"model\.window: 8 there, 6 here"):
        run(tmp_path / "old", tokenizer, make_model(**fields, window=6), changes)
    with pytest.raises(FileExistsError, match=r"model\.sinks: 1 there, 2 here"):
        run(tmp_path / "old", tokenizer, make_model(**fields, sinks=2), changes)
