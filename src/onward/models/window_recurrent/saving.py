"""Saving and loading: the whole model, or only the added parameters and the backbone's name."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from ...data.packaged import source_of
from ...utils.fields import refuse_others
from ...utils.files import DamagedFile, make_folder, whole_file
from ..base import StatefulModel
from ..checking import MODEL_TYPE_PREFIX
from ..fingerprints import Fingerprint

ADDED_WEIGHTS = "recurrence.safetensors"
_OF_THE_HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")


class SavesWhatWasAdded(StatefulModel):
    """The base of every window-recurrent model: how it is saved and loaded."""

    config: Any
    backbone: PreTrainedModel
    carrier: nn.Module
    generation_config: GenerationConfig
    head: ClassVar[str]

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | os.PathLike, *, added_only: bool = False, **kwargs: Any
    ) -> None:
        """Saves the model and a model card. `added_only`: only the carrier and the name of the backbone, which is then
        loaded from its own place; for backbones that were not trained."""
        directory = Path(save_directory)
        by_trainer = "state_dict" in kwargs  # its checkpoints are loaded into a live model with adapters
        if getattr(getattr(self, "backbone", None), "_hf_peft_config_loaded", False) and not by_trainer:
            raise ValueError(
                "the backbone has LoRA adapters of its own, which cannot be loaded with the model: merge them into its "
                "weights first with onward.training.merge_lora(model), or wrap the whole model with peft"
            )
        if not added_only:
            super().save_pretrained(save_directory, **kwargs)
            return
        self._save_added(directory)
        if kwargs.get("is_main_process", True):
            self.write_card(directory)

    def describe(self) -> str:
        config = self.config
        added = sum(p.numel() for p in self.carrier.parameters())
        total = sum(p.numel() for p in self.parameters())
        backbone = config.backbone_name or f"a {config.backbone.model_type} made in memory"
        layers = ", ".join(map(str, config.insertion_layers))
        counted = f"{config.vector_count} {'slots' if config.takes_slots else 'vectors'}"
        memory = "no memory" if config.carrier == "none" else f"a memory of {counted} (`{config.carrier}`)"
        return (
            f"{backbone}, for documents of any length: windows of {config.window} tokens with an overlap of "
            f"{config.overlap}, and {memory} in front of them, as keys and values at layer(s) {layers}.\n\n"
            f"Parameters: {total:,}, of which {added:,} were added by recurrence."
        )

    def _save_added(self, directory: Path) -> None:
        config = self.config
        if not config.backbone_name:
            raise ValueError(
                "added_only needs a backbone with a name to load it by, and this one was made in memory: save the "
                "whole model instead"
            )
        make_folder(directory)
        state = {name: tensor.contiguous() for name, tensor in self.carrier.state_dict().items()}
        made_with = Fingerprint.of(self.backbone)
        if made_with is None:
            raise ValueError("the backbone's weights are not whole in this process: save the whole model instead")
        with whole_file(directory / ADDED_WEIGHTS) as unfinished:
            save_file(state, unfinished, metadata={"format": "pt", "backbone": json.dumps(made_with.as_json())})
        config = copy.deepcopy(config)
        config.added_only, config.architectures = True, [type(self).__name__]
        config.save_pretrained(directory)
        if self.can_generate():
            self.generation_config.save_pretrained(directory)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **kwargs: Any
    ) -> Any:
        """Loads what `save_pretrained` wrote, with any configuration field changed; refuses checkpoints that do not
        fit."""
        name = pretrained_model_name_or_path
        if config is None or isinstance(config, (str, os.PathLike)):
            config_class = cast(Any, cls.config_class)
            place = {word: kwargs[word] for word in _OF_THE_HUB if word in kwargs}
            changes = {field: kwargs.pop(field) for field in config_class.own_fields() if field in kwargs}
            _refuse_foreign(config or name, config_class, place)
            config = config_class.from_pretrained(config or name, **place, **changes)
        if config.head is not None and config.head != cls.head:
            raise ValueError(
                f"{name} holds a model with the head {config.head!r}, and {cls.__name__} is for {cls.head!r}: "
                "load it with the Auto class of its own head"
            )
        wanted, learned = config.slots, _learned_slots(name, config, kwargs)
        if learned is not None:
            config.slots = learned
        wants_info = kwargs.pop("output_loading_info", False)
        model: Any
        info: dict[str, Any] = {}
        if config.added_only:
            model = cls._load_added(name, config, kwargs)
        else:
            kwargs.setdefault("ignore_mismatched_sizes", True)  # refused below, by name
            try:
                model, info = super().from_pretrained(name, *args, config=config, output_loading_info=True, **kwargs)
            except TypeError as error:
                if (unknown := re.search(r"unexpected keyword argument '(\w+)'", str(error))) is None:
                    raise
                refuse_others(type(config), config.own_fields(), {unknown[1]: kwargs.get(unknown[1])})
                raise
            _refuse_misfits(str(name), info)
        if learned is not None:
            model.set_slots(wanted)
        return (model, info) if wants_info else model

    @classmethod
    def _load_added(cls, name: Any, config: Any, kwargs: dict[str, Any]) -> Any:
        path = Path(name) / ADDED_WEIGHTS
        if not path.is_file():
            from huggingface_hub import hf_hub_download

            path = Path(hf_hub_download(str(name), ADDED_WEIGHTS))
        try:
            state = load_file(path)
        except SafetensorError as error:
            raise DamagedFile(f"{path} is damaged or not a safetensors file: {error}") from error
        backbone = cls.auto_class.from_pretrained(source_of(config.backbone_name), **kwargs)
        with safe_open(path, "pt") as file:
            saved_with = (file.metadata() or {}).get("backbone")
        if saved_with is None or not _has_weights(backbone, saved_with, path):
            raise ValueError(
                f"{path} was made with other weights than those of {config.backbone_name}: the backbone was trained, "
                "or has changed since; save the whole model, without added_only"
            )
        config.backbone, config.added_only = backbone.config, False
        model = cls(config, backbone)  # type: ignore[call-arg]
        if model.can_generate():
            generation = GenerationConfig.from_pretrained(name)
            model.generation_config = generation
        missing, unexpected = model.carrier.load_state_dict(state, strict=False)
        _refuse_misfits(str(path), {"missing_keys": missing, "unexpected_keys": unexpected})
        like = next(backbone.parameters())
        model.carrier.to(like.device, like.dtype)
        return model.eval()


def _learned_slots(name: Any, config: Any, kwargs: dict[str, Any]) -> int | None:
    """How many slots of a constant are saved: with other slots, it is loaded with these, and then resized."""
    if config.carrier != "constant" or not config.takes_slots:
        return None
    place = {word: kwargs[word] for word in _OF_THE_HUB if word in kwargs}
    return type(config).get_config_dict(name, **place)[0].get("slots")


def _has_weights(backbone: nn.Module, saved_with: str, path: Path) -> bool:
    """Whether a backbone is the one that a file was made with, in any precision."""
    if not saved_with.startswith("{"):
        return saved_with == _digest_of_version_0_1(backbone)
    try:
        known, ours = Fingerprint.from_json(json.loads(saved_with)), Fingerprint.of(backbone)
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error
    return ours is None or ours.agrees(known)


def _digest_of_version_0_1(backbone: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, parameter in backbone.named_parameters():
        values = parameter.detach().flatten()[:8].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)} {[f'{v:.3g}' for v in values.tolist()]}".encode())
    return digest.hexdigest()


def _refuse_foreign(name: Any, config_class: Any, place: dict[str, Any]) -> None:
    kind = config_class.get_config_dict(name, **place)[0].get("model_type")
    if kind not in (config_class.model_type, config_class.model_type.removeprefix(MODEL_TYPE_PREFIX)):
        raise ValueError(
            f"{name} holds {f'a model of the kind {kind!r}' if kind else 'no configuration'}, not one that onward "
            "saved: load it with transformers, then use add_recurrence"
        )


def _refuse_misfits(name: str, info: dict[str, Any]) -> None:
    """A checkpoint with missing or additional weights belongs to another model, or is damaged."""
    for what, saying in (
        ("missing_keys", "lacks the weights"),
        ("unexpected_keys", "holds weights unknown to this model:"),
        ("mismatched_keys", "holds weights of other shapes:"),
    ):
        keys = sorted(key if isinstance(key, str) else key[0] for key in info.get(what) or ())
        if keys:
            listed = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
            raise ValueError(f"{name} does not fit its configuration: it {saying} {listed}")
