"""The papers' tables and figures as commands, `onward study NAME`. Nothing of it is imported by the library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine.study import Study

CATALOGUE: dict[str, tuple[str, str]] = {
    "backbone": (
        "window_recurrent.backbone",
        "ours: the small decoder that the studies of window recurrence start from",
    ),
    "overlap-wikipedia": (
        "window_recurrent.overlap",
        "Adding Recurrence, Table 1: Wikipedia: perplexity and FLOPs/token by overlap, with controls",
    ),
    "overlap-books": (
        "window_recurrent.overlap",
        "Adding Recurrence, Table 2: books: perplexity and FLOPs/token by overlap, with controls",
    ),
    "window-size": (
        "window_recurrent.window_size",
        "Adding Recurrence, Figure 4: perplexity by window size",
    ),
    "pareto": (
        "window_recurrent.window_size",
        "Adding Recurrence, Figure 5: perplexity against FLOPs, and which points are on the frontier",
    ),
    "carriers": (
        "window_recurrent.carriers",
        "ours: every carrier on the same backbone and tokens: what it recovers of a longer context, and by content",
    ),
    "pretrained": (
        "window_recurrent.carriers",
        "ours: the same of SmolLM2-135M as it is: only carriers are trained",
    ),
    "topics": (
        "window_recurrent.topics",
        "Adding Recurrence, section 5.3: whether continuations keep to the topic of their contexts",
    ),
    "continuations": (
        "window_recurrent.topics",
        "Adding Recurrence, Tables 4 and 5: contexts beside continuations of both models",
    ),
    "hotpotqa": (
        "questions.hotpotqa",
        "Adding Recurrence, Table 3: answers over many windows, with recurrence and without",
    ),
    "boolq": (
        "questions.boolq",
        "ours: yes or no over whole articles, with recurrence and without, next to Adding Recurrence's Table 3",
    ),
    "gates": (
        "block_recurrent.gates",
        "Block-Recurrent, Table 1: all rows, bits and relative step time, on books (tokens, bytes), LaTeX and source "
        "code",
    ),
    "scale": (
        "block_recurrent.scale",
        "Block-Recurrent, Table 2: a larger size, on books",
    ),
    "ablations": (
        "block_recurrent.ablations",
        "Block-Recurrent, section 4.5: window, number of states, one or two recurrent layers",
    ),
    "mlm": (
        "masked.reports",
        "Simple recurrence: MLM loss and fine-tuned average at equal parameters",
    ),
    "stability": (
        "masked.reports",
        "Simple recurrence: scores over learning rates and seeds, share of failed runs (the runs of mlm)",
    ),
}
"""By name, the module whose STUDIES has the study, and a line about it. To add one, write a module and a line here."""


class Studies(Mapping[str, "Study"]):
    """The studies by name. Looking a study up imports its module, and no other study's."""

    def __getitem__(self, name: str) -> Study:
        module = import_module(f"{__name__}.{CATALOGUE[name][0]}")
        return next(study for study in module.STUDIES if study.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(CATALOGUE)

    def __len__(self) -> int:
        return len(CATALOGUE)


STUDIES = Studies()
