"""What the models of all three systems have in common: saving and loading, arguments, losses and outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..utils.damage import damage_told
from ..utils.files import write_text
from .losses import HeadLoss


class OnwardModel(PreTrainedModel):
    auto_class: ClassVar[Any]
    accepts_loss_kwargs = True  # Trainer passes the number of labels of a whole batch, by which the loss is divided
    head_loss: ClassVar[HeadLoss | None] = None

    # -- saving and loading

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Loads a saved model; an error about a damaged file names the file."""
        place = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        with damage_told(str(place)):
            return super().from_pretrained(*args, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Saves the model, and a model card if the folder has none."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if args[0] if args else kwargs.get("is_main_process", True):
            self.write_card(Path(save_directory))

    def write_card(self, directory: Path) -> None:
        """The card also says how to load the model: without onward, transformers only reports an unknown model type,
        whose name begins with onward."""
        card = directory / "README.md"
        if directory.is_dir() and not card.exists():
            name, auto_class = type(self).__name__, self.auto_class.__name__
            write_text(card, MODEL_CARD.format(name=name, auto_class=auto_class, description=self.describe()))

    def describe(self) -> str:
        """The model in a sentence or two."""
        raise NotImplementedError

    # -- losses and outputs

    def with_loss(self, output: Any, num_items_in_batch: Any, **labels: Tensor | None) -> Any:
        """The output with its loss, if there are labels. transformers' own heads return the mean of a call even where
        the call is a part of a larger batch."""
        given = {name: value for name, value in labels.items() if value is not None}
        if not given:
            return output
        if self.head_loss is None or set(given) != set(self.head_loss.labels):
            wanted = " and ".join(self.head_loss.labels) if self.head_loss else "no labels"
            raise ValueError(f"{type(self).__name__} is trained on {wanted}, got {' and '.join(given)}")
        loss = self.head_loss.of(output, num_items_in_batch, self._problem_type, **given)
        return type(output)(**{**output, "loss": self._reaching_all_parameters(loss)})

    @property
    def _problem_type(self) -> str | None:
        return self.config.problem_type

    def _reaching_all_parameters(self, loss: Tensor) -> Tensor:
        return loss

    def returned(self, output: Any, return_dict: bool | None) -> Any:
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()


class StatefulModel(OnwardModel):
    """A model that carries a state from call to call."""

    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    not_supported: ClassVar[Mapping[str, str]] = {}  # arguments, and why
    bottleneck_checkpointing = False

    @property
    def state_name(self) -> str:
        """What two models must share for one to continue the other's state."""
        raise NotImplementedError

    def refuse_arguments(self, given: Mapping[str, Any]) -> None:
        """Refuses arguments that would be ignored."""
        if torch.compiler.is_exporting():
            raise NotImplementedError(
                f"torch.export of {type(self).__name__} is not supported: text of any length is processed in a loop "
                "that depends on the state; call the model itself, or use torch.compile"
            )
        for name, value in given.items():
            if value is None or value is False or name == "cache_position":
                continue
            if name in self.not_supported:
                raise ValueError(f"{name} is not supported: {self.not_supported[name]}")
            raise TypeError(f"{type(self).__name__} takes no argument {name!r}")

    # -- gradient checkpointing between windows or blocks, where transformers' own is between layers

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """Keeps only the state between windows or blocks, and runs each again to compute its gradients."""
        self._set_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        self._set_checkpointing(False)

    def _set_checkpointing(self, on: bool) -> None:
        for module in self.modules():
            if isinstance(module, StatefulModel):
                module.bottleneck_checkpointing = on

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.bottleneck_checkpointing


MODEL_CARD = """---
library_name: onward
tags: [onward, recurrence, long-document]
---
# {name}

{description}

Load it after `import onward`, which registers this kind of model with transformers:

```python
import onward
from transformers import {auto_class}

model = {auto_class}.from_pretrained("path/of/this/folder")
```
"""
