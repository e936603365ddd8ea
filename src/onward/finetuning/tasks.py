"""GLUE's tasks and SQuAD: to add a task, write one entry here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GLUE, SQUAD = "nyu-mll/glue", "rajpurkar/squad"
SPLITS = {name: (name,) for name in ("train", "validation", "test")}


@dataclass(frozen=True)
class Task:
    """The texts, what is predicted from them, and how that is scored. Columns and splits have the Hub's names.

    Args:
        title: GLUE's own name, which is also that of its folder.
        hub: a data set and its configuration.
        texts: the columns that a model gets. A single file is split so that no text of the first column is in two
            parts.
        labels: in the order of their ids; none where a number or a span is predicted.
        metrics: see metrics.METRICS.
        main: the metrics whose mean is the score; all of them by default.
        splits: the parts of training, validation and test data; several are scored one by one.
        files: a distribution's own file names, joined; by default they are train.tsv, dev.csv and the like.
        folders: where in a distribution they may be.
        aliases: a distribution's own column names.
        bare: the columns of files that have no header.
        broken_rows: whether the official files have broken rows, which are left out and counted.
    """

    name: str
    title: str
    hub: tuple[str, str | None]
    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    main: tuple[str, ...] = ()
    max_length: int = 128
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SPLITS)
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    bare: tuple[str, ...] = ()
    broken_rows: bool = False
    has_spans: bool = False
    knows_no_answer: bool = False

    @property
    def is_regression(self) -> bool:
        return not self.labels and not self.has_spans

    def score(self, metrics: Mapping[str, float]) -> float:
        """The main score of a run; metrics of several splits are named metric_split."""
        main = self.main or self.metrics
        counted = [value for name, value in metrics.items() if name in main or name.partition("_")[0] in main]
        return sum(counted) / len(counted)

    def head(self) -> dict[str, Any]:
        """The configuration fields of a model with this task's head."""
        if self.has_spans:
            return {}
        if self.is_regression:
            return {"num_labels": 1, "problem_type": "regression"}
        names = dict(enumerate(self.labels))
        return {
            "id2label": names,
            "label2id": {name: number for number, name in names.items()},
            "problem_type": "single_label_classification",  # the model may have been fine-tuned on numbers before
        }


ENTAILMENT = ("entailment", "not_entailment")

SPAN_FIELDS: dict[str, Any] = {
    "texts": ("context", "question"),
    "metrics": ("exact_match", "f1"),
    "main": ("f1",),
    "max_length": 384,
    "has_spans": True,
}


def _squad_files(version: str) -> dict[str, tuple[str, ...]]:
    return {"train": (f"train-{version}.json",), "validation": (f"dev-{version}.json",)}


TASKS = {
    task.name: task
    for task in (
        Task(
            "cola",
            "CoLA",
            (GLUE, "cola"),
            ("sentence",),
            ("unacceptable", "acceptable"),
            ("matthews",),
            files={"train": ("in_domain_train.tsv",), "validation": ("in_domain_dev.tsv", "out_of_domain_dev.tsv")},
            folders=("raw", "cola_public/raw"),
            bare=("source", "label", "star", "sentence"),
        ),
        Task("sst2", "SST-2", (GLUE, "sst2"), ("sentence",), ("negative", "positive")),
        Task(
            "mrpc",
            "MRPC",
            (GLUE, "mrpc"),
            ("sentence1", "sentence2"),
            ("not_equivalent", "equivalent"),
            ("accuracy", "f1"),
            # Microsoft's own files have no validation split: GLUE draws one from the training split.
            files={"train": ("msr_paraphrase_train.txt",), "validation": ("msr_paraphrase_test.txt",)},
            aliases={"Quality": "label", "#1 String": "sentence1", "#2 String": "sentence2"},
        ),
        Task(
            "stsb",
            "STS-B",
            (GLUE, "stsb"),
            ("sentence1", "sentence2"),
            metrics=("pearson", "spearman"),
            files={"train": ("sts-train.csv",), "validation": ("sts-dev.csv",), "test": ("sts-test.csv",)},
            folders=("stsbenchmark",),
            aliases={"score": "label"},
            bare=("genre", "file", "year", "id", "label", "sentence1", "sentence2"),
        ),
        Task(
            "qqp",
            "QQP",
            (GLUE, "qqp"),
            ("question1", "question2"),
            ("not_duplicate", "duplicate"),
            ("accuracy", "f1"),
            aliases={"is_duplicate": "label"},
            broken_rows=True,
        ),
        Task(
            "mnli",
            "MNLI",
            (GLUE, "mnli"),
            ("premise", "hypothesis"),
            ("entailment", "neutral", "contradiction"),
            splits={
                "train": ("train",),
                "validation": ("validation_matched", "validation_mismatched"),
                "test": ("test_matched", "test_mismatched"),
            },
            aliases={"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"},
        ),
        Task("qnli", "QNLI", (GLUE, "qnli"), ("question", "sentence"), ENTAILMENT),
        Task("rte", "RTE", (GLUE, "rte"), ("sentence1", "sentence2"), ENTAILMENT),
        Task("squad", "SQuAD", (SQUAD, None), **SPAN_FIELDS, files=_squad_files("v1.1")),
        Task(
            "squad_v2", "SQuAD2", (f"{SQUAD}_v2", None), **SPAN_FIELDS, files=_squad_files("v2.0"), knows_no_answer=True
        ),
    )
}


def task_of(name: str | Task) -> Task:
    """By its name, in any spelling: "stsb", "STS-B" and "sts_b" are one task."""
    if isinstance(name, Task):
        return name
    spellings = {_plain(spelling): task for task in TASKS.values() for spelling in (task.name, task.title)}
    if _plain(name) in spellings:
        return spellings[_plain(name)]
    close = difflib.get_close_matches(_plain(name), spellings, n=2, cutoff=0.5)
    names = list(dict.fromkeys(repr(spellings[match].name) for match in close))
    hint = f"did you mean {' or '.join(names)}? " if names else ""
    raise ValueError(f"there is no task {name!r}: {hint}tasks are {', '.join(TASKS)}")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
