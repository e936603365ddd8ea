"""What a folder says about its run: whose it is, and how it ended."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

from ..streams import TokenizedDocument
from . import checkpoints
from .progress import Stopwatch
from .recipe import TrainingRecipe
from .trainer import RecurrentTrainer

RUN, RESULT = "run.json", "training.json"


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


# -- whose folder it is


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
    described = {
        **{f"recipe.{name}": value for name, value in recipe.that_shape_the_result().items()},
        **{f"model.{name}": value for name, value in config.items()},
        "training documents": _fingerprint(training),
        "validation documents": _fingerprint(validation),
    }
    return json.loads(json.dumps(described, default=str))


def _fingerprint(documents: Sequence[TokenizedDocument]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(len(document).to_bytes(8, "little") + document.ids.numpy().tobytes())
    return f"{len(documents)} with {sum(map(len, documents)):,} tokens, {digest.hexdigest()[:16]}"


def claim(folder: Path, described: dict[str, Any], resume: bool) -> None:
    """Refuses a folder that holds another run; one that has saved nothing yet gives way."""
    if not checkpoints.all_checkpoints(folder) and not (folder / RESULT).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.write_json(folder / RUN, described)
        return
    if not (folder / RUN).is_file():
        raise FileExistsError(
            f"{folder} holds checkpoints that onward did not make ({RUN} is missing): choose another folder"
        )
    if not resume:
        raise FileExistsError(
            f"{folder} holds a run already: pass resume=True to go on, or choose another folder"
        )
    refuse_other(folder, "run", _defaults() | json.loads((folder / RUN).read_text(encoding="utf-8")), described)


def refuse_other(folder: Path, what: str, there: dict[str, Any], described: dict[str, Any]) -> None:
    """Two runs, or sweeps, in one folder must be the same."""
    names = [name for name in {**there, **described} if there.get(name) != described.get(name)]
    if names:
        listed = "; ".join(f"{n}: {there.get(n)!r} there, {described.get(n)!r} here" for n in names[:5])
        raise FileExistsError(
            f"{folder} holds a {what} with other settings ({listed}): choose another folder, or the settings of that "
            f"{what} to go on with it"
        )


def _defaults() -> dict[str, Any]:
    """Of a recipe's fields: a run that was begun before there were such fields goes on."""
    return {f"recipe.{name}": value for name, value in TrainingRecipe().that_shape_the_result().items()}


# -- the result


def save_result(
    trainer: RecurrentTrainer,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    weights: dict[str, torch.Tensor] | None = None,
) -> None:
    """`training.json` comes last: where it is, all the rest is too."""
    folder, state, recipe = trainer.folder, trainer.state, trainer.recipe
    options: dict[str, Any] = {} if weights is None else {"state_dict": weights}
    model.save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)
    history = history_of(state.log_history)
    checkpoints.write_json(
        folder / RESULT,
        {
            "validation_loss": [entry["validation_loss"] for entry in history if "validation_loss" in entry][
                -1
            ],
            "best_validation_loss": state.best_metric,
            "best_step": state.best_global_step,
            "steps": state.global_step,
            "tokens": state.num_input_tokens_seen,
            "seconds": seconds_of(trainer),
            "seed": recipe.seed,
            "recipe": asdict(recipe),
            "command": shlex.join(sys.orig_argv),
            "versions": versions(),
            "machine": machine_of(trainer),
            "history": history,
        },
    )


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


def versions() -> dict[str, str]:
    import onward

    return {
        "onward": onward.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def machine_of(trainer: Trainer) -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(trainer.args.device),
        "processes": trainer.args.world_size,
    }


def read_result(folder: Path) -> TrainingResult:
    saved = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    names = set(TrainingResult.__dataclass_fields__) - {"path"}
    return TrainingResult(path=folder, **{name: saved[name] for name in names})


def load_result(model: PreTrainedModel, folder: Path) -> TrainingResult:
    trained = type(model).from_pretrained(folder)
    model.load_state_dict(trained.state_dict())
    model.eval()
    return read_result(folder)
