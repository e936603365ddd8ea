"""Training on documents of any length, on transformers' Trainer.

The life of a training, in the order of its files:

1. `train` (run.py) takes a model, documents and a `TrainingRecipe` (recipe.py), and chooses the model's `Feed`
   (feed.py): segments (segments.py), lanes (lanes.py) or masked rows (masked.py).
2. The output folder is claimed for this run (folders.py): run.json says which run it is.
3. The documents are tokenized, and the feed lays them out as data sets and steps (`DataLayout`).
4. A `RecurrentTrainer` is built (trainer.py, arguments.py).
5. It starts anew, resumes from the last whole checkpoint, or finishes a run that has taken its last step
   (checkpointing.py).
6. It trains, validates and writes checkpoints (checkpoints.py) until the recipe's end.
7. The best model is saved, and training.json after it (results.py). Called again, `train` only loads them.
"""

from .adapters import merge_lora
from .checkpointing import NonFiniteLossError
from .checkpoints import CheckpointNotSaved
from .recipe import TrainingRecipe
from .results import TrainingResult
from .run import train
from .trainer import RecurrentTrainer

__all__ = [
    "CheckpointNotSaved",
    "NonFiniteLossError",
    "RecurrentTrainer",
    "TrainingRecipe",
    "TrainingResult",
    "merge_lora",
    "train",
]
