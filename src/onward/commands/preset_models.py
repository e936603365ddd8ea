"""The block-recurrent or masked model to train: new, upcycled from a BERT, or trained before.

Each function returns a function that makes the model, which is called when all else is known to be right, and the
model's tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ..utils.fields import FieldError
from .options import option
from .shared import UPCYCLED, is_preset

Plan = tuple[Callable[[], Any], Any]


of_model = partial(option, panel="Model")
Settings = Annotated[
    list[str] | None, of_model("A field of the model's configuration. Repeatable.", "--set", metavar="FIELD=VALUE")
]


def plan(name: str, tokenizer: str | None, settings: dict[str, Any], out: Path) -> Plan:
    from ..models.recurrent_bert import PRESETS

    if is_preset(name) and (name in PRESETS or not name.startswith(UPCYCLED)):
        return new_model(name, tokenizer, settings)
    source = name.removeprefix(UPCYCLED)
    if tokenizer is not None:
        raise ValueError(f"{source} has its own tokenizer: leave --tokenizer out")
    if Path(source).resolve() == out.resolve():
        raise ValueError(f"{source} is the model to train on: choose another folder for --out")
    make_plan = upcycled if name.startswith(UPCYCLED) else trained_before
    return make_plan(folder_of(source), settings)


def new_model(name: str, tokenizer_name: str | None, settings: dict[str, Any]) -> Plan:
    from .. import BlockRecurrentConfig
    from ..data.vocabularies import load_tokenizer
    from ..models.recurrent_bert import PRESETS, preset

    masked = name in PRESETS
    if tokenizer_name is None:
        bytes, kind = ("", " --kind wordpiece") if masked else ("bytes, ", "")
        raise ValueError(
            f"{name} needs a tokenizer: --tokenizer {bytes}a folder (`onward vocabulary{kind}` makes one), or a name "
            "on the Hub"
        )
    try:
        tokenizer = load_tokenizer(tokenizer_name)
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer {tokenizer_name}: {error}") from error
    if masked and tokenizer.mask_token_id is None:
        raise ValueError(
            f"--tokenizer {tokenizer_name}: the tokenizer has no mask token, which masked language models need; "
            "`onward vocabulary --kind wordpiece` makes one that has"
        )
    ids = max(tokenizer.get_vocab().values()) + 1
    if settings.get("vocab_size", ids) < ids:
        problem = f"the tokenizer has {ids} ids, which is more; leave it out, or use a smaller vocabulary"
        raise FieldError("vocab_size", settings["vocab_size"], problem)
    special = {f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in ("bos", "eos", "pad")}
    make = preset if masked else BlockRecurrentConfig.preset
    config = make(name, **{"vocab_size": ids, **special, **settings})
    check_model(config)
    if masked:
        tokenizer.model_max_length = config.max_position_embeddings  # pipelines cut longer texts by it
    return partial(model_class(config), config), tokenizer


def upcycled(source: str, settings: dict[str, Any]) -> Plan:
    """A recurrent BERT that takes over embeddings and attention of a plain one."""
    from .. import RecurrentBertConfig, RecurrentBertForMaskedLM
    from ..data.vocabularies import load_tokenizer
    from ..models.recurrent_bert.presets import check_values
    from ..utils.damage import damage_told

    tokenizer = load_tokenizer(source)
    check_values(settings)
    with damage_told(source):
        config = RecurrentBertConfig.from_bert(source, **settings)
    check_model(config)
    return partial(RecurrentBertForMaskedLM.from_pretrained, source, config=config, dtype="float32"), tokenizer


def trained_before(folder: str, settings: dict[str, Any]) -> Plan:
    """Settings must leave the parameters as they are."""
    from transformers import AutoConfig

    from ..data.vocabularies import load_tokenizer
    from ..models.pretrained import load_whole
    from ..utils.damage import damage_told

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
    # In float32 whatever it was saved in: half precision rounds the small steps of training away.
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


def folder_of(name: str) -> str:
    """A folder in full, also that of a packaged model; a name on the Hub as it is."""
    from ..data.packaged import source_of

    folder = Path(source_of(name)).expanduser()
    return str(folder) if folder.is_dir() else name


def model_class(config: Any) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    from .. import BlockRecurrentConfig

    auto = AutoModelForCausalLM if isinstance(config, BlockRecurrentConfig) else AutoModelForMaskedLM
    return auto._model_mapping[type(config)]


MOST_LAYERS = 10_000


def check_model(config: Any) -> None:
    """Refuses ids outside the vocabulary and sizes that no model can have, before texts are loaded."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        found = getattr(config, name)
        for number in found if isinstance(found, list) else [found]:
            if number is not None and not 0 <= number < config.vocab_size:
                raise FieldError(name, found, f"the vocabulary has {config.vocab_size} ids, counted from 0")
    if config.num_hidden_layers > MOST_LAYERS:
        raise FieldError("num_hidden_layers", config.num_hidden_layers, f"choose at most {MOST_LAYERS:,}")
    if config.hidden_size % config.num_attention_heads and not getattr(config, "head_dim", None):
        heads = f"num_attention_heads={config.num_attention_heads}"
        raise FieldError("hidden_size", config.hidden_size, f"it cannot be shared by {heads}; choose a multiple")
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
