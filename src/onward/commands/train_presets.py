"""A model is made from a preset, or taken from a folder, and trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from .shared import UPCYCLED, is_preset, load_texts
from .train import recipe_of, run


def train_presets(given: dict[str, Any]) -> None:
    from transformers import set_seed

    kind = given["kind"]
    recipe = recipe_of(kind, given)
    settings = parse_settings(given.get("settings", ()), kind)
    if kind == "block-recurrent" and "window" in given:
        if "window" in settings:
            raise ValueError("--window and --set window both say how long a window is: give one of them")
        settings["window"] = given["window"]
    make, tokenizer = plan_of(given["model"])(given, settings)
    texts = load_texts(given["corpus"], given.get("pattern"), given.get("field"))
    set_seed(given["seed"])  # a new model starts from random numbers
    run(given["model"], make(), texts, tokenizer, given["out"], recipe, given)


def plan_of(name: str) -> Callable[..., tuple[Callable[[], Any], Any]]:
    from ..models.recurrent_bert import PRESETS

    if not is_preset(name):
        return model_to_train_on
    return upcycled if name.startswith(UPCYCLED) and name not in PRESETS else new_model


def model_class(config: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    from .. import BlockRecurrentConfig

    auto = AutoModelForCausalLM if isinstance(config, BlockRecurrentConfig) else AutoModelForMaskedLM
    return auto._model_mapping[type(config)]


def new_model(given: dict[str, Any], settings: dict[str, Any]) -> tuple[Callable[[], Any], Any]:
    """What makes a model of a preset (it is not made before all else is known to be right), and its tokenizer."""
    from .. import BlockRecurrentConfig
    from ..data.vocabularies import load_tokenizer
    from ..models.recurrent_bert import preset

    masked = given["kind"] == "masked"
    if "tokenizer" not in given:
        bytes, option = ("", " --kind wordpiece") if masked else ("bytes, ", "")
        raise ValueError(
            f"{given['model']} needs a tokenizer: --tokenizer {bytes}a folder (`onward vocabulary{option}` makes one), "
            "or a name on the Hub"
        )
    tokenizer = load_tokenizer(given["tokenizer"])
    if masked and tokenizer.mask_token_id is None:
        raise ValueError(
            f"--tokenizer {given['tokenizer']}: the tokenizer has no mask token, which masked language models need; "
            "`onward vocabulary --kind wordpiece` makes one that has"
        )
    ids = max(tokenizer.get_vocab().values()) + 1
    if settings.get("vocab_size", ids) < ids:
        raise ValueError(
            f"--set vocab_size={settings['vocab_size']} is smaller than the tokenizer's {ids} ids: leave it out, or "
            "use a smaller vocabulary"
        )
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    make = preset if masked else BlockRecurrentConfig.preset
    config = make(given["model"], **{"vocab_size": ids, **special, **settings})
    check_model(config)
    if masked:
        tokenizer.model_max_length = config.max_position_embeddings  # pipelines cut longer texts by it
    return partial(model_class(config), config), tokenizer


def upcycled(given: dict[str, Any], settings: dict[str, Any]) -> tuple[Callable[[], Any], Any]:
    """The same of a recurrent BERT that takes over embeddings and attention of a plain one."""
    from .. import RecurrentBertConfig, RecurrentBertForMaskedLM
    from ..data.vocabularies import load_tokenizer
    from ..models.recurrent_bert.presets import check_values
    from ..utils.damage import damage_told

    source = given["model"].removeprefix(UPCYCLED)
    refuse_own(given, source)
    source = place_of(source)
    tokenizer = load_tokenizer(source)
    check_values(settings)
    with damage_told(source):
        config = RecurrentBertConfig.from_bert(source, **settings)
    check_model(config)
    return partial(RecurrentBertForMaskedLM.from_pretrained, source, config=config, dtype="float32"), tokenizer


def model_to_train_on(given: dict[str, Any], settings: dict[str, Any]) -> tuple[Callable[[], Any], Any]:
    """The same of a model that was trained before. What is set must leave its parameters as they are."""
    from transformers import AutoConfig

    from ..data.vocabularies import load_tokenizer
    from ..models.pretrained import load_whole
    from ..utils.damage import damage_told

    folder = given["model"]
    refuse_own(given, folder)
    folder = place_of(folder)
    with damage_told(folder):
        tokenizer, config = load_tokenizer(folder), AutoConfig.from_pretrained(folder)
    kind = model_class(config)
    if settings:
        before = shapes(config)
        config = changed_config(config, settings)
        changed = [name for name, shape in shapes(config).items() if before.pop(name, None) != shape] or list(before)
        if changed:
            raise ValueError(
                f"--set {' '.join(f'{name}={value}' for name, value in settings.items())} would change parameters "
                f"that {folder} has trained ({changed[0]}): set only what leaves them as they are, such as dropout"
            )
    # Whatever it was saved in: the steps of half precision are too small to change it.
    return partial(load_whole, kind, folder, config=config, dtype="float32"), tokenizer


def changed_config(config: Any, settings: dict[str, Any]) -> Any:
    """A new one, so that all of it is checked together."""
    from transformers import BertConfig, PreTrainedConfig

    from ..models.recurrent_bert.presets import check_fields, check_values

    check_fields(type(config), settings)
    if isinstance(config, BertConfig):
        check_values(settings)
    inherited = {field.name for field in fields(PreTrainedConfig)}
    own = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in inherited}
    changed = type(config)(**own | settings)
    check_model(changed)
    return changed


def place_of(name: str) -> str:
    """A folder by its whole name, also of one that is packaged; else the name."""
    from ..data.packaged import source_of

    folder = Path(source_of(name)).expanduser()
    return str(folder) if folder.is_dir() else name


def refuse_own(given: dict[str, Any], source: str) -> None:
    if "tokenizer" in given:
        raise ValueError(f"{source} has its own tokenizer: leave --tokenizer out")
    if Path(source).resolve() == given["out"].resolve():
        raise ValueError(f"{source} is the model to train on: choose another folder for --out")


def check_model(config: Any) -> None:
    """Refuses ids that there are not, and sizes of which no model can be made: told before texts are read."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        found = getattr(config, name)
        for number in found if isinstance(found, list) else [found]:
            if number is not None and not 0 <= number < config.vocab_size:
                raise ValueError(f"--set {name}={found}: the vocabulary has {config.vocab_size} ids, counted from 0")
    if config.num_hidden_layers > MOST_LAYERS:
        raise ValueError(f"--set num_hidden_layers={config.num_hidden_layers}: choose at most {MOST_LAYERS:,}")
    if config.hidden_size % config.num_attention_heads and not getattr(config, "head_dim", None):
        raise ValueError(
            f"--set hidden_size={config.hidden_size} cannot be shared by {config.num_attention_heads} heads: choose a "
            "multiple of num_attention_heads"
        )
    try:
        shapes(config)
    except (RuntimeError, OverflowError, TypeError) as error:  # torch's, of numbers beyond its own
        reason = str(error).splitlines()[0]
        raise ValueError(f"no model can be made of these --set fields ({reason}): choose smaller sizes") from error


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    import torch

    with torch.device("meta"):
        model = model_class(config)(config)
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


OF_NO_TRAINING = ("model_type", "num_labels", "id2label", "label2id", "problem_type", "architectures")
MOST_LAYERS = 10_000


def parse_settings(texts: Sequence[str], kind: str = "block-recurrent") -> dict[str, Any]:
    """Fields of a configuration as they are written in Python; words need no quotes."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ValueError(f"--set {text}: write it as FIELD=VALUE, for example --set hidden_size=256")
        if name in settings:
            raise ValueError(f"--set {text}: {name} is set twice")
        if name in ("dtype", "torch_dtype"):
            raise ValueError(f"--set {text}: models are trained in float32, and {name} would be ignored; leave it out")
        if name in OF_NO_TRAINING:
            raise ValueError(f"--set {text}: {name} means nothing for a model that is trained here; leave it out")
        settings[name] = parse_value(text, written.strip())
        check_type(text, name, settings[name], kind)
    return settings


def parse_value(text: str, written: str) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError):
        if re.fullmatch(r"[A-Za-z_./~][\w./:~-]*", written):  # names of models have more than letters
            return written
    raise ValueError(f"--set {text}: {written!r} is neither a number, True, False, None, a list nor a word")


def check_type(text: str, name: str, value: Any, kind: str) -> None:
    """Names that are not known are left to the configuration, which knows what was meant."""
    from .. import BlockRecurrentConfig, RecurrentBertConfig

    config = RecurrentBertConfig if kind == "masked" else BlockRecurrentConfig
    declared = {f.name: f.type.__name__ if isinstance(f.type, type) else str(f.type) for f in fields(config)}
    kinds = [kind.strip() for kind in declared.get(name, "").split("|")]
    kind = "None" if value is None else type(value).__name__
    wanted = [WANTED[known] for known in kinds if known in WANTED]
    if wanted and kind not in kinds and not (kind == "int" and "float" in kinds):
        raise ValueError(f"--set {text}: {name} is {' or '.join(wanted)}, not {value!r}")
