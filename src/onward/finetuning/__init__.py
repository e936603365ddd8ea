"""Fine-tuning of encoders on GLUE and SQuAD: one run, or a sweep over learning rates and seeds.

In reading order: a task (tasks.py) and its rows (data.py) become a model's inputs (inputs.py, squad.py), which are
scored by metrics.py; preparation.py does what all runs share; trainer.py and run.py train; sweep.py trains many times;
results.py and report.py say what came out.
"""

from ..data import DataError
from .recipe import FinetuningRecipe
from .report import compare
from .results import RunResult, Summary, Sweep, summarize
from .run import finetune
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
