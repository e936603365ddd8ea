"""A file of a checkpoint is not what was written: the run resumes from the one before, or says which file it is."""

import random
import re
import shutil

import pytest
from block_runs import LONG, make_model, run
from damage import KINDS, damage
from processes import killed_while
from small_models import byte_tokenizer
from training_runs import interrupt_after, same

from onward.training import checkpoints as on_disk
from onward.utils.files import DamagedFile
from onward.utils.manifests import MANIFEST


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def killed(tokenizer, tmp_path_factory):
    """The folder of a run with lanes that was killed, the model and the result of one that was not."""
    folder = tmp_path_factory.mktemp("killed")
    model = make_model()
    expected = run(folder / "whole", tokenizer, model, segments_at_once=2, **LONG)
    killed_while(lambda: (interrupt_after(8), run(folder / "run", tokenizer, segments_at_once=2, **LONG)))
    assert len(on_disk.all_checkpoints(folder / "run")) == 2
    return folder / "run", model, expected


def files_of(folder):
    return sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())


def test_every_file_of_a_checkpoint_is_known(killed):
    newest = on_disk.all_checkpoints(killed[0])[-1]
    names = {str(name) for name in files_of(newest)}
    assert names >= {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}
    assert names >= {"config.json", "training_args.bin", "lanes-0-1-of-4.safetensors", MANIFEST}
    assert on_disk.fault_of(newest) is None


@pytest.mark.parametrize("kind", KINDS)
def test_damage_to_any_file_is_found_by_its_name(killed, tmp_path, kind):
    newest = on_disk.all_checkpoints(killed[0])[-1]
    shutil.copytree(newest, tmp_path / newest.name)
    for name in files_of(newest):
        file = tmp_path / newest.name / name
        damage(file, kind, random.Random(str(name)))
        fault = on_disk.fault_of(tmp_path / newest.name)
        assert fault is not None, f"{kind} in {name} is not seen"
        assert str(file) in fault or name.name == MANIFEST  # a hash that is not what it was accuses its file
        shutil.copy(newest / name, file)
    assert on_disk.fault_of(tmp_path / newest.name) is None


@pytest.mark.parametrize("name", ["rng_state.pth", "config.json", MANIFEST])
def test_the_run_goes_on_from_the_one_before(killed, tokenizer, tmp_path, name):
    folder, expected_model, expected = killed
    shutil.copytree(folder, tmp_path / "run")
    before, newest = on_disk.all_checkpoints(tmp_path / "run")
    damage(newest / name, "zeros", random.Random(0))
    model = make_model(seed=1)
    told = rf"{newest.name}/.*is damaged.*resumes from {before.name}.*damaged-{newest.name}, which can be deleted"
    with pytest.warns(UserWarning, match=told):
        result = run(tmp_path / "run", tokenizer, model, segments_at_once=2, **LONG)
    assert result.history == expected.history and same(model, expected_model)
    assert (tmp_path / "run" / f"damaged-{newest.name}").is_dir()


def test_without_a_whole_one_the_files_are_named(killed, tokenizer, tmp_path):
    folder, _, expected = killed
    shutil.copytree(folder, tmp_path / "run")
    before, newest = on_disk.all_checkpoints(tmp_path / "run")
    for file in (before / "optimizer.pt", newest / "config.json"):
        damage(file, "flip", random.Random(0))
    there = sorted((tmp_path / "run").iterdir())
    message = r"config\.json is damaged.*optimizer\.pt is damaged.*to begin anew"
    with pytest.raises(DamagedFile, match=message) as raised:
        run(tmp_path / "run", tokenizer, segments_at_once=2, **LONG)
    assert sorted((tmp_path / "run").iterdir()) == there
    for name in re.search(r"or delete (.*) to begin", str(raised.value))[1].split(", "):
        shutil.rmtree(tmp_path / "run" / name)
    assert run(tmp_path / "run", tokenizer, segments_at_once=2, **LONG).history == expected.history


def test_a_checkpoint_without_hashes_is_taken_up(killed, tokenizer, tmp_path):
    """From before there were any."""
    folder, expected_model, expected = killed
    shutil.copytree(folder, tmp_path / "run")
    for checkpoint in on_disk.all_checkpoints(tmp_path / "run"):
        (checkpoint / MANIFEST).unlink()
    model = make_model(seed=1)
    assert run(tmp_path / "run", tokenizer, model, segments_at_once=2, **LONG).history == expected.history
    assert same(model, expected_model)
