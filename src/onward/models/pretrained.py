"""Loads a pretrained backbone and its tokenizer from a local folder, the Hugging Face Hub or a Python package.

Two backbones come as Python packages, for machines that reach nothing else: `smollm2-135m`, a decoder, and
`minilm-l6`, an encoder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..data.packaged import PACKAGED, packaged_folder
from ..utils.damage import damage_told
from ..utils.hub import HubUnreachable, hub_is_reachable, is_hub_name
from ..utils.safe_json import read_json


def load_backbone(
    name: str, auto_class: Any = AutoModelForCausalLM, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer from a local folder, a name in `PACKAGED`, or the Hub.

    `options` go to `auto_class.from_pretrained` (dtype=, attn_implementation=, ...).
    """
    name = str(name)
    if not name.strip():
        raise ValueError(f"{name!r} is not the name of a backbone: use {_what_works()}")
    if name in PACKAGED:
        if PACKAGED[name].is_encoder and auto_class is AutoModelForCausalLM:
            raise ValueError(f"{name!r} is an encoder and predicts no next token: pass auto_class=AutoModel")
        model, tokenizer = _load_folder(packaged_folder(name), auto_class, options)
        model.config._name_or_path = name  # the name to load it by on other machines
        return model, tokenizer
    path = Path(name).expanduser()
    if path.is_dir():
        return _load_folder(path, auto_class, options)
    if path.exists():
        raise ValueError(f"{name!r} is a file, and a backbone is a folder: use {_what_works()}")
    if name.startswith((".", "~", "/")) or name.count("/") > 1:  # names on the Hub are name or owner/name
        raise FileNotFoundError(f"there is no folder {name!r}: check the path, or use {_what_works()}")
    if not is_hub_name(name):
        raise ValueError(f"{name!r} is not the name of a backbone: use owner/name, or {_what_works()}")
    if hub_is_reachable():
        return _load(name, auto_class, options)
    return _load_folder(_folder_in_hub_cache(name), auto_class, options)


def model_type_of(name: str) -> str | None:
    """The model type in a folder's or the Hub's config.json, such as "gpt2"; None if it cannot be found."""
    file = Path(name).expanduser() / "config.json"
    if not file.is_file() and not file.parent.is_dir() and name not in PACKAGED:
        try:
            local = not hub_is_reachable()
            file = Path(huggingface_hub.hf_hub_download(name, file.name, local_files_only=local))
        except (OSError, ValueError):  # loading the model will say what is wrong
            return None
    return read_json(file, "the configuration of a model").get("model_type") if file.is_file() else None


def _what_works() -> str:
    names = (f"{name!r} after `{backbone.install}`" for name, backbone in PACKAGED.items())
    return "a local folder written by save_pretrained, " + ", or ".join(names)


def _load(source: str, auto_class: Any, options: dict[str, Any]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    # The tokenizer first: if it fails, it fails before the model is downloaded.
    with damage_told(source):
        tokenizer = AutoTokenizer.from_pretrained(source)
        if auto_class is AutoModelForCausalLM:
            return load_whole(auto_class, source, **options), tokenizer
        return auto_class.from_pretrained(source, **options), tokenizer


def load_whole(model_class: Any, source: str, **options: Any) -> Any:
    """Loads a model and refuses missing weights, which transformers would draw at random."""
    with damage_told(source):
        model, info = model_class.from_pretrained(source, output_loading_info=True, **options)
    if info["missing_keys"]:
        lost, *more = sorted(info["missing_keys"])
        raise ValueError(
            f"{source} has no weights for {lost}{f' and {len(more)} others' if more else ''}, which "
            f"{type(model).__name__} needs, and they would be drawn at random: use a model of that kind, saved whole"
        )
    return model


def _load_folder(
    folder: Path, auto_class: Any, options: dict[str, Any]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"folder {str(folder)!r} has no config.json: save_pretrained a model there")
    for name in ("config.json", "generation_config.json"):  # transformers ignores a damaged second one
        if (folder / name).is_file():
            read_json(folder / name, "part of a saved model")
    if not any(folder.glob("tokenizer*")) and not any(folder.glob("vocab*")):
        raise FileNotFoundError(
            f"folder {str(folder)!r} has a model but no tokenizer: save_pretrained its tokenizer there too"
        )
    return _load(str(folder), auto_class, options)


def _folder_in_hub_cache(name: str) -> Path:
    try:
        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        raise HubUnreachable(
            f"there is no folder {name!r}, it is not in the local cache, and the Hugging Face Hub cannot be reached: "
            f"connect to the network, or use {_what_works()}"
        ) from None
