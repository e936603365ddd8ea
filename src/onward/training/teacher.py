"""The teacher of a model with windows and a memory: the model itself before training, with its full context."""

from __future__ import annotations

import copy
import hashlib
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..models.fingerprints import Fingerprint
from ..models.window_recurrent import Lesson, WindowRecurrentForCausalLM
from ..models.window_recurrent.probe import positions_of
from ..utils.fields import FieldError
from .adapters import remove_lora
from .recipe import TrainingRecipe


class Teacher:
    """Reads a segment in one piece, as the backbone did before it was trained.

    It is made before the first step, and has modules of its own: none of the backbone's is switched to and fro, in
    which other threads would see it. Weights that training does not change are shared.
    """

    def __init__(self, backbone: PreTrainedModel, trained: str):
        """`trained`: the part of the model that training changes, as in a recipe."""
        shared = [] if trained == "all" else [*backbone.parameters(), *backbone.buffers()]
        self.model = copy.deepcopy(backbone, {id(tensor): tensor for tensor in shared})
        if trained == "lora":
            remove_lora(self.model)
        if trained == "all":
            self.model.requires_grad_(False)
        self.model.eval()

    @torch.no_grad()
    def lesson(self, ids: Tensor, mask: Tensor, share: float) -> Lesson:
        cast(nn.Module, self.model).to(ids.device)  # the trainer has moved the backbone since
        read = self.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False, return_dict=True)
        return Lesson(self.model, read.last_hidden_state, share)


def fingerprint(backbone: PreTrainedModel) -> str | None:
    """Of a teacher's weights."""
    found = Fingerprint.of(backbone)
    return None if found is None else hashlib.sha256(found.as_json()["values"].encode()).hexdigest()[:16]


def check_teacher(recipe: TrainingRecipe, model: WindowRecurrentForCausalLM, length: int) -> None:
    """Refuses segments that a teacher cannot read in one piece."""
    if recipe.teacher is None:
        return
    positions = positions_of(model.backbone.base_model)  # type: ignore[arg-type]
    if positions is None or length <= positions:
        return
    window, overlap = model.config.window, model.config.overlap
    fits = 1 + (positions - window) // (window - overlap)
    advice = f"choose at most {fits}" if fits > 1 else f"choose a smaller window than {window}"
    problem = f"a segment then has {length} tokens, and the teacher, the backbone, {positions} positions; {advice}"
    raise FieldError("windows_per_segment", recipe.windows_per_segment, problem)
