"""Checkpoints on disk: which are complete, and how a new one appears all at once. Knows nothing of Trainer."""

from __future__ import annotations

import errno
import re
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..utils import files
from ..utils.files import DamagedFile
from ..utils.manifests import fault_in, has_manifest, write_manifest
from ..utils.processes import is_loss
from ..utils.quiet import quiet
from ..utils.safe_json import field_of, read_json

UNFINISHED = ".unfinished"
DAMAGED = "damaged-"
STATE = "trainer_state.json"


class CheckpointNotSaved(OSError):
    """A checkpoint could not be written; those before it are as they were."""


# -- which there are


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def all_checkpoints(folder: Path) -> list[Path]:
    """Folders with a checkpoint's name, complete or not, oldest first."""
    named = [p for p in folder.glob("checkpoint-*") if p.is_dir() and re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(named, key=step_of)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Those that have all their files in full length; hashes are not compared."""
    return [path for path in all_checkpoints(folder) if fault_of(path, thorough=False) is None]


def last_checkpoint(folder: Path) -> Path | None:
    return next(reversed(complete_checkpoints(folder)), None)


def last_whole(folder: Path) -> Path | None:
    """The last checkpoint whose files are unchanged, by their hashes. Later ones are renamed, so that the resumed run
    does not take them for its own."""
    faults: dict[Path, str] = {}
    for checkpoint in reversed(all_checkpoints(folder)):
        fault = fault_of(checkpoint)
        if fault is None:
            for damaged, why in faults.items():
                aside = damaged.with_name(DAMAGED + damaged.name)
                shutil.rmtree(aside, ignore_errors=True)
                damaged.rename(aside)
                warnings.warn(
                    f"{why}: the run resumes from {checkpoint.name}, the one before, and the damaged checkpoint is now "
                    f"{aside}, which can be deleted",
                    stacklevel=2,
                )
            return checkpoint
        faults[checkpoint] = fault
    if faults:
        raise DamagedFile(
            f"no checkpoint in {folder} is whole ({'; '.join(faults.values())}): put a copy of one of them back; or "
            f"delete {', '.join(path.name for path in reversed(faults))} to begin anew"
        )
    return None


def fault_of(checkpoint: Path, thorough: bool = True) -> str | None:
    """What is wrong with a checkpoint, with the file's name; None if it is whole. Checkpoints are renamed into place
    when they are complete, but copies are interrupted and disks have faults."""
    if not checkpoint.is_dir():
        return f"{checkpoint} is missing"
    return fault_in(checkpoint, thorough) if has_manifest(checkpoint) else _fault_without_hashes(checkpoint)


def _fault_without_hashes(path: Path) -> str | None:
    """For checkpoints from before there were manifests."""
    weights, states = list(path.glob("model*.safetensors")), saved_lanes(path)
    optimizer = path / ("optimizer.bin" if (path / "optimizer.bin").is_file() else "optimizer.pt")  # .bin: from FSDP
    pickled = [optimizer, path / "scheduler.pt", *path.glob("rng_state*.pth")]
    if not weights or len(pickled) < 3:
        return f"{path} is damaged: it has no {'rng_state.pth' if weights else 'model.safetensors'}"
    lanes = [lane for file in states for lane in lanes_in(file)]
    if states and lanes != list(range(int(re.findall(r"\d+", states[0].stem)[-1]))):
        return f"{path} is damaged: it lacks the carried state of some lanes"
    try:
        read_state(path)
    except (OSError, DamagedFile) as error:
        return str(error)
    for file in weights + states:
        try:
            with safe_open(file, "pt"):  # refuses a file that is shorter than its header says
                pass
        except (OSError, SafetensorError) as error:
            return f"{file} is damaged: {error}"
    # A zip file's table of contents comes last, so a shortened one has none.
    return next((f"{file} is missing or damaged" for file in pickled if not zipfile.is_zipfile(file)), None)


# -- what they hold


def lanes_file(lanes: range, count: int) -> str:
    """The name of the file with the carried states of these lanes, of `count` in all."""
    return f"lanes-{lanes.start}-{lanes.stop - 1}-of-{count}.safetensors"


def lanes_in(file: Path) -> range:
    first, last, _ = map(int, re.findall(r"\d+", file.stem))
    return range(first, last + 1)


def saved_lanes(checkpoint: Path) -> list[Path]:
    """The files with carried states, in the order of their lanes; none where nothing is carried from step to step."""
    return sorted(checkpoint.glob("lanes-*-of-*.safetensors"), key=lambda file: lanes_in(file).start)


def read_state(checkpoint: Path) -> dict[str, Any]:
    return read_json(checkpoint / STATE, "the state of a training")


def ended_training(checkpoint: Path) -> bool:
    """Whether the run had nothing left to train when it saved this."""
    found: Any = read_state(checkpoint)
    for name in ("stateful_callbacks", "TrainerControl", "args"):
        found = field_of(found, checkpoint / STATE, name, dict)
    return field_of(found, checkpoint / STATE, "should_training_stop", bool)


def best_at(checkpoint: Path) -> Path | None:
    """The best checkpoint when this one was saved. It is known by its step: the folder may have been moved since."""
    step = read_state(checkpoint).get("best_global_step")
    return checkpoint.with_name(f"checkpoint-{step}") if step else None


def what_is_kept(folder: Path) -> str:
    last = last_checkpoint(folder)
    return f"the last complete checkpoint is {last}" if last else "there is no checkpoint yet"


# -- writing and deleting


@contextmanager
def writing(place: Path, folder: Path) -> Iterator[None]:
    """Explains errors of the disk: what is lost and what is kept."""
    try:
        with quiet():
            yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if is_loss(error):
            raise
        free = shutil.disk_usage(folder).free / 1e6
        discard_unfinished(folder)
        raise CheckpointNotSaved(
            getattr(error, "errno", None) or errno.EIO,
            # torch does not say that a disk is full, so the free space is always given.
            f"{place} could not be written ({error}; {free:,.1f} MB were free): the run has stopped, and "
            f"{what_is_kept(folder)}. When there is room on the disk, run the same again",
        ) from error


def put_in_place(folder: Path, name: str) -> Path:
    """Renames a finished checkpoint into place, once all of it is on the disk."""
    unfinished, place = folder / UNFINISHED / name, folder / name
    write_manifest(unfinished)
    if place.exists():  # incomplete, or the run would have resumed from it
        discard(place)
    files.put_in_place(unfinished, place)
    discard_unfinished(folder)
    return place


def keep_only(folder: Path, count: int, best: Path | None) -> None:
    """Deletes the oldest checkpoints beyond `count`, but never the last, nor the best."""
    kept = complete_checkpoints(folder)
    spared = {kept[-1], best or kept[-1]}
    for path in kept[:]:
        if len(kept) <= max(count, len(spared)):
            break
        if path not in spared:
            kept.remove(path)
            discard(path)
    discard_unfinished(folder)


def discard(checkpoint: Path) -> None:
    """Renames it first, so that a process killed while deleting leaves no half of a checkpoint."""
    aside = checkpoint.parent / UNFINISHED / f"old-{checkpoint.name}"
    aside.parent.mkdir(exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def discard_all(folder: Path) -> None:
    for checkpoint in (*all_checkpoints(folder), *folder.glob(f"{DAMAGED}checkpoint-*")):
        discard(checkpoint)
    discard_unfinished(folder)


def discard_unfinished(folder: Path) -> None:
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
