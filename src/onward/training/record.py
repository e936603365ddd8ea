"""What a folder says about its run: what it is, and how it ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

from ..data.tokens import TokenizedDocument
from ..models.checking import OURS
from ..utils.files import DamagedFile, put_all_in_place
from ..utils.manifests import Listed, fault_among, fault_in, has_manifest, listing
from ..utils.provenance import provenance
from ..utils.safe_json import field_of, read_json, write_json
from .checkpoints import UNFINISHED, discard_unfinished
from .claiming import OF_EVERY_RUN, RESULT
from .progress import Stopwatch
from .recipe import TrainingRecipe
from .trainer import RecurrentTrainer

AGAIN = "delete it, and run the same again"
LOADED = ("config.json", "*.safetensors")  # of a saved model: its tokenizer, which may be changed, is given
CARD = "README.md"


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


# -- what a run is


def describe(
    model: PreTrainedModel,
    recipe: TrainingRecipe,
    training: Sequence[TokenizedDocument],
    validation: Sequence[TokenizedDocument],
) -> dict[str, Any]:
    """All that makes a run what it is, and must be the same when it goes on."""
    config = model.config.to_diff_dict()
    for name in ("transformers_version", "_name_or_path", "architectures", "use_cache", "dtype"):
        config.pop(name, None)
    config["model_type"] = model.config.model_type.removeprefix(OURS)  # as runs of version 0.1 have it
    described = {
        **{f"recipe.{name}": value for name, value in recipe.that_shape_the_result().items()},
        **{f"model.{name}": value for name, value in config.items()},
        OF_EVERY_RUN: _fingerprint(training),
        "validation documents": _fingerprint(validation),
    }
    return json.loads(json.dumps(described, default=str))


def _fingerprint(documents: Sequence[TokenizedDocument]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(len(document).to_bytes(8, "little") + document.ids.numpy().tobytes())
    return f"{len(documents)} with {sum(map(len, documents)):,} tokens, {digest.hexdigest()[:16]}"


# -- the result


def save_result(
    trainer: RecurrentTrainer,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    weights: dict[str, torch.Tensor] | None = None,
) -> None:
    """`training.json` comes last: where it is, all the rest is too, and on the disk."""
    folder, state, recipe = trainer.folder, trainer.state, trainer.recipe
    files = _save_model(folder, model, tokenizer, {} if weights is None else {"state_dict": weights})
    history = history_of(state.log_history)
    write_json(
        folder / RESULT,
        {
            "validation_loss": [entry["validation_loss"] for entry in history if "validation_loss" in entry][-1],
            "best_validation_loss": state.best_metric,
            "best_step": state.best_global_step,
            "steps": state.global_step,
            "tokens": state.num_input_tokens_seen,
            "seconds": seconds_of(trainer),
            "seed": recipe.seed,
            "recipe": asdict(recipe),
            **provenance(**processes_of(trainer)),
            "files": files,
            "history": history,
        },
    )


def _save_model(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]
) -> Listed:
    discard_unfinished(folder)
    unfinished = folder / UNFINISHED / "model"
    model.save_pretrained(unfinished, **options)
    tokenizer.save_pretrained(unfinished)
    if (folder / CARD).exists():  # someone has written a better one
        (unfinished / CARD).unlink(missing_ok=True)
    files = listing(unfinished, [file for file in unfinished.rglob("*") if file.is_file() and file.name != CARD])
    put_all_in_place(unfinished, folder)
    discard_unfinished(folder)
    return files


def history_of(log: list[dict[str, float]]) -> list[dict[str, float]]:
    names = {
        "step": "step",
        "num_input_tokens_seen": "tokens",
        "loss": "loss",
        "eval_loss": "validation_loss",
        "learning_rate": "learning_rate",
        "grad_norm": "grad_norm",
    }
    entries = [{ours: entry[theirs] for theirs, ours in names.items() if theirs in entry} for entry in log]
    return [entry for entry in entries if "loss" in entry or "validation_loss" in entry]


def seconds_of(trainer: Trainer) -> float:
    watch = next(cb for cb in trainer.callback_handler.callbacks if isinstance(cb, Stopwatch))
    if watch.started is None:  # nothing was left to train: the checkpoint knows
        return trainer.state.stateful_callbacks["Stopwatch"]["attributes"]["seconds_before"]  # type: ignore[call-overload, index]
    return watch.seconds


def processes_of(trainer: Trainer) -> dict[str, Any]:
    return {"device": str(trainer.args.device), "processes": trainer.args.world_size}


def read_result(folder: Path) -> TrainingResult:
    file = folder / RESULT
    saved = read_json(file, "what a training has come to", AGAIN)
    names = set(TrainingResult.__dataclass_fields__) - {"path"}
    return TrainingResult(path=folder, **{name: field_of(saved, file, name) for name in names})


def load_result(model: PreTrainedModel, folder: Path) -> TrainingResult:
    result = read_result(folder)
    refuse_damaged(folder, f"put a copy of it back; or delete {folder / RESULT}, and run the same again", LOADED)
    trained = type(model).from_pretrained(folder)
    model.load_state_dict(trained.state_dict())
    model.eval()
    return result


def refuse_damaged(folder: Path, remedy: str, only: Sequence[str] = ("*",)) -> None:
    """Refuses a saved model that is not what was saved; one that was saved before there were hashes is believed."""
    if has_manifest(folder):
        fault = fault_in(folder)
    else:
        saved = read_json(folder / RESULT) if (folder / RESULT).is_file() else {}
        listed = field_of({"files": {}} | saved, folder / RESULT, "files", dict)
        chosen = {name: known for name, known in listed.items() if any(fnmatch(name, pattern) for pattern in only)}
        fault = fault_among(folder, chosen)
    if fault:
        raise DamagedFile(f"{fault}: {remedy}")
