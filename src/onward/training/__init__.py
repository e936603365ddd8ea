"""Training on documents of any length, on transformers' Trainer."""

from .checkpoints import CheckpointNotSaved
from .recipe import TrainingRecipe
from .record import TrainingResult
from .run import train
from .trainable import merge_lora
from .trainer import NonFiniteLossError, RecurrentTrainer

__all__ = [
    "CheckpointNotSaved",
    "NonFiniteLossError",
    "RecurrentTrainer",
    "TrainingRecipe",
    "TrainingResult",
    "merge_lora",
    "train",
]
