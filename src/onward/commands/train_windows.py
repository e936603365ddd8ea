"""A pretrained backbone gains recurrence, and its controls beside it."""

from __future__ import annotations

from typing import Any

from .shared import load_texts, refuse_encoder
from .train import Trained, recipe_of, run


def train_windows(given: dict[str, Any]) -> None:
    from transformers import set_seed

    from .. import WindowRecurrenceConfig, add_recurrence
    from ..models.checking import OURS
    from ..models.pretrained import load_backbone, model_type_of
    from ..training.folders import refuse_folders

    names = ("carrier", "window", "overlap", "vectors", "residual")
    fields = {name: given[name] for name in names if name in given}
    if "history" in given:
        fields["history"] = numbers("--history", given["history"], "a number of windows, or spans of each as 63,32,16")
    if "insert_at" in given:
        layers = given["insert_at"]
        several = "a layer, several as 2,5,9, or all"
        fields["insert_at"] = layers if layers == "all" else numbers("--insert-at", layers, several)
    config = WindowRecurrenceConfig(**fields)
    refuse_encoder(given["model"])
    if (model_type_of(given["model"]) or "").removeprefix(OURS) == "window_recurrent":
        raise ValueError(
            f"{given['model']} has recurrence already, and `train` gives it to plain backbones: name the backbone that "
            "it was made of, or train it on in Python"
        )
    if given.get("trained") is Trained.lora:
        given.setdefault("learning_rate", 5e-4)  # adapters start from nothing, and need more than weights
    recipe = recipe_of("window-recurrent", given)
    texts, out = load_texts(given["corpus"], given.get("pattern"), given.get("field")), given["out"]
    jobs = {out: config}
    if given.get("with_controls") and config.carrier not in ("constant", "none"):
        jobs[out / "constant"] = config.with_carrier("constant")
        if given.get("trained") is not Trained.carrier:  # a backbone that was not trained is its own plain control
            jobs[out / "plain"] = config.with_carrier("none")
    refuse_folders(list(jobs))
    for folder, settings in jobs.items():
        model, tokenizer = load_backbone(given["model"])
        set_seed(given["seed"])  # a carrier starts from random numbers
        name = f"{given['model']} with the carrier {settings.carrier}"
        run(name, add_recurrence(model, settings), texts, tokenizer, folder, recipe, given)


def numbers(option: str, text: str, wanted: str) -> int | list[int]:
    """One, or a list: "63," is a list of one."""
    try:
        found = [int(part) for part in text.removesuffix(",").split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r}: give {wanted}") from None
    return found if "," in text else found[0]
