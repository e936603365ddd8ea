"""How many slots a memory has in a step of training, drawn at random."""

from __future__ import annotations

import random
from typing import cast

from ..models.window_recurrent import SlotCarrier, WindowRecurrentModel
from ..utils.fields import FieldError
from .recipe import TrainingRecipe


def check_sizes(recipe: TrainingRecipe, model: WindowRecurrentModel) -> None:
    """Refuses sizes that the model's memory cannot have."""
    if recipe.random_slots is None or model.config.carrier == "none":
        return
    try:
        model.config.with_slots(recipe.random_slots[0])
    except FieldError as error:
        raise FieldError("random_slots", recipe.random_slots, error.problem) from None


def drawn_size(recipe: TrainingRecipe, model: WindowRecurrentModel, step: int) -> int | None:
    """The slots in one step; None for the configured number. It depends on the seed and the step alone, so that
    resumed runs, all processes, all parts of a batch and the controls have the same. Two controls cannot: plain windows
    carry nothing, and a constant has no more slots than it learns."""
    if recipe.random_slots is None or not model.carrier.takes_slots:
        return None
    least, most = recipe.random_slots
    # Python guarantees these numbers in all versions, so that a run can be resumed with another one.
    place = random.Random(f"slots {recipe.seed} {step}").random()
    drawn = min(most, int(least * ((most + 1) / least) ** place))
    limit = cast(SlotCarrier, model.carrier).most
    return drawn if limit is None else min(drawn, limit)
