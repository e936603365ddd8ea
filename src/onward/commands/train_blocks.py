"""A block-recurrent model is made from a preset, or taken from a folder, and trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from .shared import is_preset, load_texts
from .train import recipe_of, run


def train_blocks(given: dict[str, Any]) -> None:
    from transformers import set_seed

    recipe = recipe_of("block-recurrent", given)
    settings = parse_settings(given.get("settings", ()))
    if "window" in given:
        if "window" in settings:
            raise ValueError("--window and --set window both say how long a window is: give one of them")
        settings["window"] = given["window"]
    plan = new_model if is_preset(given["model"]) else model_to_train_on
    make, tokenizer = plan(given, settings)
    texts = load_texts(given["corpus"], given.get("pattern"), given.get("field"))
    set_seed(given["seed"])  # a new model starts from random numbers
    run(given["model"], make(), texts, tokenizer, given["out"], recipe, given)


def new_model(given: dict[str, Any], settings: dict[str, Any]) -> tuple[Callable[[], Any], Any]:
    """What makes a model of a preset (it is not made before all else is known to be right), and its tokenizer."""
    from .. import BlockRecurrentConfig, BlockRecurrentForCausalLM
    from ..vocabularies import load_tokenizer

    if "tokenizer" not in given:
        raise ValueError(
            f"{given['model']} needs a tokenizer: --tokenizer bytes, a folder (`onward vocabulary` makes one), or a "
            "name on the Hub"
        )
    tokenizer = load_tokenizer(given["tokenizer"])
    ids = max(tokenizer.get_vocab().values()) + 1
    if settings.get("vocab_size", ids) < ids:
        raise ValueError(
            f"--set vocab_size={settings['vocab_size']} is smaller than the tokenizer's {ids} ids: leave it out, or "
            "use a smaller vocabulary"
        )
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = BlockRecurrentConfig.preset(given["model"], **{"vocab_size": ids, **special, **settings})
    return partial(BlockRecurrentForCausalLM, config), tokenizer


def model_to_train_on(given: dict[str, Any], settings: dict[str, Any]) -> tuple[Callable[[], Any], Any]:
    """The same of a model that was trained before. What is set must leave its parameters as they are."""
    from .. import BlockRecurrentConfig, BlockRecurrentForCausalLM
    from ..vocabularies import load_tokenizer

    folder = given["model"]
    if "tokenizer" in given:
        raise ValueError(f"{folder} has its own tokenizer: leave --tokenizer out")
    if Path(folder).resolve() == given["out"].resolve():
        raise ValueError(f"{folder} is the model to train on: choose another folder for --out")
    tokenizer, config = load_tokenizer(folder), BlockRecurrentConfig.from_pretrained(folder)
    if settings:
        before = shapes(config)
        config = BlockRecurrentConfig(**{name: getattr(config, name) for name in config.own_fields()} | settings)
        changed = [name for name, shape in shapes(config).items() if before.pop(name, None) != shape] or list(before)
        if changed:
            raise ValueError(
                f"--set {' '.join(f'{name}={value}' for name, value in settings.items())} would change parameters "
                f"that {folder} has trained ({changed[0]}): set only what leaves them as they are, such as dropout"
            )
    return partial(BlockRecurrentForCausalLM.from_pretrained, folder, config=config), tokenizer


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    import torch

    from .. import BlockRecurrentForCausalLM

    with torch.device("meta"):
        model = BlockRecurrentForCausalLM(config)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


# --- FIELD=VALUE -----------------------------------------------------------------------------------

WANTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "a word",
    "bool": "True or False",
    "list": "a list such as [4,10]",
    "None": "None",
}


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Fields of a BlockRecurrentConfig as they are written in Python; words need no quotes."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ValueError(f"--set {text}: write it as FIELD=VALUE, for example --set hidden_size=256")
        if name in settings:
            raise ValueError(f"--set {text}: {name} is set twice")
        settings[name] = parse_value(text, written.strip())
        check_type(text, name, settings[name])
    return settings


def parse_value(text: str, written: str) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError):
        if re.fullmatch(r"[A-Za-z_]\w*", written):
            return written
    raise ValueError(f"--set {text}: {written!r} is neither a number, True, False, None, a list nor a word")


def check_type(text: str, name: str, value: Any) -> None:
    """Names that are not known are left to the configuration, which knows what was meant."""
    from .. import BlockRecurrentConfig

    declared = {field.name: str(field.type) for field in fields(BlockRecurrentConfig)}
    kinds = [kind.strip() for kind in declared.get(name, "").split("|")]
    kind = "None" if value is None else type(value).__name__
    wanted = [WANTED[known] for known in kinds if known in WANTED]
    if wanted and kind not in kinds and not (kind == "int" and "float" in kinds):
        raise ValueError(f"--set {text}: {name} is {' or '.join(wanted)}, not {value!r}")
