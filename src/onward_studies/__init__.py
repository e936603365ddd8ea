"""The papers' tables and figures as commands, `onward study NAME`. The library does not import this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine.study import Study

CATALOGUE: dict[str, dict[str, str]] = {
    "window_recurrent.backbone": {
        "backbone": "ours: pretrains the small decoder that the studies of window recurrence start from",
    },
    "window_recurrent.overlap": {
        "overlap-wikipedia": "Adding Recurrence, Table 1: Wikipedia: perplexity and FLOPs/token by overlap, with "
        "controls",
        "overlap-books": "Adding Recurrence, Table 2: books: perplexity and FLOPs/token by overlap, with controls",
    },
    "window_recurrent.window_size": {
        "window-size": "Adding Recurrence, Figure 4: perplexity by window size",
        "pareto": "Adding Recurrence, Figure 5: perplexity against FLOPs, and which points are on the frontier",
    },
    "window_recurrent.carriers": {
        "carriers": "ours: every carrier on one backbone: how much of a longer context it recovers, and how much of "
        "that is content",
        "pretrained": "ours: the same on a frozen SmolLM2-135M; only carriers are trained",
    },
    "window_recurrent.memory": {
        "memory": "ours: every carrier at many sizes, untrained and trained: loss over bytes of state, beside kept "
        "tokens and full context",
    },
    "window_recurrent.topics": {
        "topics": "Adding Recurrence, section 5.3: how closely continuations keep to the topic of their contexts",
        "continuations": "Adding Recurrence, Tables 4 and 5: contexts and the continuations of both models",
    },
    "questions.hotpotqa": {
        "hotpotqa": "Adding Recurrence, Table 3: question answering over many windows, with and without recurrence",
    },
    "questions.boolq": {
        "boolq": "ours: yes/no questions about whole articles, with and without recurrence",
    },
    "block_recurrent.gates": {
        "gates": "Block-Recurrent, Table 1: all rows, bits and relative step times, on books (tokens, bytes), LaTeX "
        "and source code",
    },
    "block_recurrent.scale": {
        "scale": "Block-Recurrent, Table 2: a larger size, on books",
    },
    "block_recurrent.ablations": {
        "ablations": "Block-Recurrent, section 4.5: window, number of states, one or two recurrent layers",
    },
    "masked.reports": {
        "mlm": "Simple recurrence: MLM loss and fine-tuned average at equal parameters",
        "stability": "Simple recurrence: scores over learning rates and seeds, and the share of failed runs",
    },
}
"""By module, the studies in its STUDIES with a line about each. To add a study, write a module and its lines here."""
ABOUT = {name: about for studies in CATALOGUE.values() for name, about in studies.items()}


class Studies(Mapping[str, "Study"]):
    """The studies by name. Looking a study up imports its module, and no other study's."""

    def __getitem__(self, name: str) -> Study:
        module = next((module for module, studies in CATALOGUE.items() if name in studies), None)
        if module is None:
            raise KeyError(name)
        return next(study for study in import_module(f"{__name__}.{module}").STUDIES if study.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(ABOUT)

    def __len__(self) -> int:
        return len(ABOUT)


STUDIES = Studies()
