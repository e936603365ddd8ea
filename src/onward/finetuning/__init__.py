"""Fine-tuning of encoders on GLUE and SQuAD: one run, or a sweep over learning rates and seeds."""

from ..data import DataError
from .recipe import FinetuningRecipe
from .report import compare
from .result import RunResult
from .run import finetune
from .summary import Summary, Sweep, summarize
from .sweep import sweep
from .tasks import TASKS, Task

__all__ = [
    "TASKS",
    "DataError",
    "FinetuningRecipe",
    "RunResult",
    "Summary",
    "Sweep",
    "Task",
    "compare",
    "finetune",
    "summarize",
    "sweep",
]
