"""A model card in every saved folder. It is also the hint for whoever loads the folder without onward: transformers
then says only that it does not know the kind of model, whose name begins with onward, and not what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedModel

from ..utils.files import write_text


class WritesCard(PreTrainedModel):
    auto_class: ClassVar[Any]

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As transformers' own, and a model card where there is none yet."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if args[0] if args else kwargs.get("is_main_process", True):
            write_card(Path(save_directory), self, self.describe())

    def describe(self) -> str:
        """What the model is, in a sentence or two."""
        raise NotImplementedError


def write_card(directory: Path, model: Any, what: str) -> None:
    card = directory / "README.md"
    if directory.is_dir() and not card.exists():
        write_text(card, model_card(model, what))


def model_card(model: Any, what: str) -> str:
    auto_class = model.auto_class.__name__
    lines = [
        "---",
        "library_name: onward",
        "tags: [onward, recurrence, long-document]",
        "---",
        f"# {type(model).__name__}",
        "",
        what,
        "",
        "Load it after `import onward`, which makes this kind of model known to transformers:",
        "",
        "```python",
        "import onward",
        f"from transformers import {auto_class}",
        "",
        f'model = {auto_class}.from_pretrained("path/of/this/folder")',
        "```",
        "",
    ]
    return "\n".join(lines)
