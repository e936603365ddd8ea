"""How to fine-tune: every choice that all runs of a sweep share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..utils.fields import FieldError, is_number, require_number
from .tasks import Task


@dataclass(frozen=True)
class FinetuningRecipe:
    """BERT's: AdamW, linear warm-up, then linear decay to 0. Each run has its own learning rate and seed.

    Args:
        max_length: tokens of an input, longer ones are cut; None for the task's, 128 for GLUE and 384 for SQuAD.
        train_examples: an upper limit; the examples are drawn by a fixed seed, the same for all runs and all models.
        warmup: as a share of all steps.
        group_by_length: batches of like length, which need less padding, but are not drawn quite at random.
        overlap: SQuAD: tokens that a window of a long context repeats from the one before; None for a third of
            `max_length`.
        max_answer_length: SQuAD: in tokens.
    """

    epochs: float = 3
    batch_size: int = 32
    max_length: int | None = None
    train_examples: int | None = None
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    group_by_length: bool = False
    overlap: int | None = None
    max_answer_length: int = 30
    bf16: bool = False

    def __post_init__(self) -> None:
        require_number(self, "epochs", above=0)
        for name in ("batch_size", "max_answer_length"):
            require_number(self, name, at_least=1, whole=True)
        require_number(self, "train_examples", at_least=1, whole=True, or_none=True)
        require_number(self, "max_length", at_least=8, whole=True, or_none=True)
        require_number(self, "overlap", at_least=0, whole=True, or_none=True)
        for name in ("weight_decay", "max_grad_norm"):
            require_number(self, name, at_least=0)
        require_number(self, "warmup", at_least=0)
        if self.warmup >= 1:
            raise FieldError("warmup", self.warmup, "it is a share of all steps; choose less than 1")

    def for_task(self, task: Task) -> FinetuningRecipe:
        """With the task's own values where none are given."""
        if self.overlap is not None and not task.has_spans:
            raise FieldError("overlap", self.overlap, f"it is for SQuAD's contexts, and {task.name} has none; omit it")
        length = self.max_length or task.max_length
        return replace(self, max_length=length, overlap=length // 3 if self.overlap is None else self.overlap)


def check_learning_rate(rate: float, field: str = "learning_rate") -> None:
    if not is_number(rate) or rate <= 0:
        raise FieldError(field, rate, "it must be a number above 0, such as 2e-5")
