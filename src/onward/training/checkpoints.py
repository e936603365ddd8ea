"""Checkpoints on disk: which are complete, and how a new one comes to be all at once."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.utils import logging

from ..locks import locked

UNFINISHED = ".unfinished"


class CheckpointNotSaved(OSError):
    """A checkpoint could not be written; those before it are as they were."""


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def all_checkpoints(folder: Path) -> list[Path]:
    """Folders with a checkpoint's name, complete or not, oldest first."""
    named = [p for p in folder.glob("checkpoint-*") if p.is_dir() and re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(named, key=step_of)


def complete_checkpoints(folder: Path) -> list[Path]:
    return [path for path in all_checkpoints(folder) if _is_complete(path)]


def last_checkpoint(folder: Path) -> Path | None:
    return next((path for path in reversed(all_checkpoints(folder)) if _is_complete(path)), None)


def _is_complete(path: Path) -> bool:
    """Ours always are, being renamed into place; but copies break off and disks have faults."""
    weights, states = list(path.glob("model*.safetensors")), saved_lanes(path)
    optimizer = path / ("optimizer.bin" if (path / "optimizer.bin").is_file() else "optimizer.pt")  # .bin: from FSDP
    pickled = [optimizer, path / "scheduler.pt", *path.glob("rng_state*.pth")]
    if not weights or len(pickled) < 3 or not _has_all_lanes(states):
        return False
    try:
        read_state(path)
        for file in weights + states:
            with safe_open(file, "pt"):  # refuses a file that is shorter than its header says
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    return all(zipfile.is_zipfile(file) for file in pickled)  # their table of contents comes last


# -- carried states: a file for some lanes, with their numbers and how many there are in all in its name


def lanes_file(lanes: range, count: int) -> str:
    return f"lanes-{lanes.start}-{lanes.stop - 1}-of-{count}.safetensors"


def lanes_in(file: Path) -> range:
    first, last, _ = map(int, re.findall(r"\d+", file.stem))
    return range(first, last + 1)


def saved_lanes(checkpoint: Path) -> list[Path]:
    """The files with carried states, in the order of their lanes; none where nothing is carried on."""
    return sorted(checkpoint.glob("lanes-*-of-*.safetensors"), key=lambda file: lanes_in(file).start)


def _has_all_lanes(files: list[Path]) -> bool:
    there = [lane for file in files for lane in lanes_in(file)]
    return not files or there == list(range(int(re.findall(r"\d+", files[0].stem)[-1])))


# -- a run's state, and writing


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Two runs in one folder would destroy each other's checkpoints."""
    if os.environ.get("RANK", "0") != "0":  # of several processes of one run the first has it
        yield
        return
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder / ".lock", wait=False))
        except BlockingIOError:
            raise FileExistsError(
                f"another process is training in {folder}: let it end, or choose another folder"
            ) from None
        yield


def read_state(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))


def ended_training(checkpoint: Path) -> bool:
    """Whether the run had nothing left to train when it saved this."""
    control = read_state(checkpoint)["stateful_callbacks"]["TrainerControl"]
    return bool(control["args"]["should_training_stop"])


@contextmanager
def writing(place: Path, folder: Path) -> Iterator[None]:
    """Errors of the disk say what is lost and what is not; transformers' own bars stay away from ours."""
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free / 1e6
        discard_unfinished(folder)
        last = last_checkpoint(folder)
        kept = f"the last complete checkpoint is {last}" if last else "there is no checkpoint yet"
        raise CheckpointNotSaved(
            getattr(error, "errno", None) or errno.EIO,
            # torch does not say that a disk is full, so the room that was left is told in any case.
            f"{place} could not be written ({error}; {free:,.1f} MB were free): the run has stopped, and "
            f"{kept}. When there is room on the disk, run the same again",
        ) from error
    finally:
        if bars:
            logging.enable_progress_bar()


def discard_unfinished(folder: Path) -> None:
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


def discard_all(folder: Path) -> None:
    discard_unfinished(folder)
    for checkpoint in all_checkpoints(folder):
        shutil.rmtree(checkpoint)


def put_in_place(folder: Path, name: str) -> Path:
    """Makes the finished checkpoint visible, in one step."""
    place = folder / name
    if place.exists():  # incomplete, or this run would have gone on from it
        shutil.rmtree(place)
    (folder / UNFINISHED / name).replace(place)
    discard_unfinished(folder)
    return place


def keep_only(folder: Path, count: int, best: str | None) -> None:
    """Deletes the oldest beyond `count`, but never the last, nor the best."""
    kept = complete_checkpoints(folder)
    spared = {kept[-1], Path(best) if best else kept[-1]}
    for path in kept:
        if len(kept) <= max(count, len(spared)):
            return
        if path not in spared:
            kept = [other for other in kept if other != path]
            shutil.rmtree(path, ignore_errors=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replaces the file in one step, so that no one ever reads half of it."""
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)
