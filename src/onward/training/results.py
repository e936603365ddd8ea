"""training.json and the model beside it: how a run has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..utils.files import DamagedFile, put_all_in_place
from ..utils.manifests import Listed, fault_among, fault_in, has_manifest, listing
from ..utils.safe_json import field_of, read_json, write_json
from . import checkpoints
from .folders import RESULT
from .trainer import RecurrentTrainer

FILES_TO_LOAD = ("config.json", "*.safetensors")  # the files of a saved model that loading it reads
CARD = "README.md"

Result = TypeVar("Result", bound=Any)


@dataclass(frozen=True)
class TrainingResult:
    """`validation_loss` is the last, `best_validation_loss` that of the model that was kept; both per token,
    in nats. `history` has an entry per step (step, tokens, loss, learning_rate, grad_norm) and one per
    validation (step, tokens, validation_loss)."""

    path: Path
    validation_loss: float
    best_validation_loss: float
    best_step: int
    steps: int
    tokens: int
    seconds: float
    history: list[dict[str, float]]


def save_result(trainer: RecurrentTrainer, tokenizer: PreTrainedTokenizerBase) -> TrainingResult:
    """Saves the model, then `training.json`: where it is, the run has ended and all its files are on the disk."""
    folder, state, recipe = trainer.folder, trainer.state, trainer.recipe
    weights = trainer.whole_weights()
    if trainer.args.should_save:
        with checkpoints.writing(folder / RESULT, folder):
            files = _save_model(folder, trainer.model, tokenizer, {} if weights is None else {"state_dict": weights})
            record = trainer.record()
            validations = [entry["validation_loss"] for entry in record["history"] if "validation_loss" in entry]
            content = {
                "validation_loss": validations[-1],
                "best_validation_loss": state.best_metric,
                "best_step": state.best_global_step,
                "seed": recipe.seed,
                "recipe": asdict(recipe),
                "files": files,
                **record,
            }
            write_json(folder / RESULT, content)
    trainer.accelerator.wait_for_everyone()
    return read_result(folder)


def _save_model(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]
) -> Listed:
    checkpoints.discard_unfinished(folder)
    unfinished = folder / checkpoints.UNFINISHED / "model"
    model.save_pretrained(unfinished, **options)
    tokenizer.save_pretrained(unfinished)
    if (folder / CARD).exists():  # a card written by hand is better
        (unfinished / CARD).unlink(missing_ok=True)
    files = listing(unfinished, [file for file in unfinished.rglob("*") if file.is_file() and file.name != CARD])
    put_all_in_place(unfinished, folder)
    checkpoints.discard_unfinished(folder)
    return files


def read_result(folder: Path) -> TrainingResult:
    return result_in(folder / RESULT, TrainingResult)


def result_in(file: Path, kind: type[Result]) -> Result:
    """A dataclass whose fields a JSON file holds, except `path`, which is the file's folder."""
    saved = read_json(file, "the result of a run", "delete it, and run the same command again")
    names = [name for name in kind.__dataclass_fields__ if name != "path"]
    return kind(path=file.parent, **{name: field_of(saved, file, name) for name in names})


def load_result(model: PreTrainedModel, folder: Path) -> TrainingResult:
    """Loads the trained weights into the model."""
    result = read_result(folder)
    refuse_damaged(folder, f"put a copy of it back; or delete {folder / RESULT}, and run the same again", FILES_TO_LOAD)
    model.load_state_dict(type(model).from_pretrained(folder).state_dict())
    model.eval()
    return result


def refuse_damaged(folder: Path, remedy: str, only: Sequence[str] = ("*",)) -> None:
    """Refuses a saved model whose files have changed since. One that was saved before there were hashes passes."""
    if has_manifest(folder):
        fault = fault_in(folder)
    else:
        saved = read_json(folder / RESULT) if (folder / RESULT).is_file() else {}
        listed = field_of({"files": {}} | saved, folder / RESULT, "files", dict)
        chosen = {name: known for name, known in listed.items() if any(fnmatch(name, pattern) for pattern in only)}
        fault = fault_among(folder, chosen)
    if fault:
        raise DamagedFile(f"{fault}: {remedy}")
