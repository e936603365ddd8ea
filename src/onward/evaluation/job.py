"""What stays the same over all rows of an evaluation: the documents, and the bar that shows how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import PreTrainedModel

from ..data.tokens import TokenizedDocument
from .perplexity import Measures, measure_memories


@dataclass
class Job:
    documents: list[TokenizedDocument]
    batch_size: int
    display: Display

    @property
    def tokens(self) -> int:
        """How many tokens one reading scores."""
        return sum(max(0, len(document) - 1) for document in self.documents)

    def measure(self, name: str, model: PreTrainedModel) -> Measures:
        return self.measure_memories(name, model, ["true"])["true"]

    def measure_memories(
        self, name: str, model: PreTrainedModel, memories: Sequence[str] | None = None
    ) -> dict[str, Measures]:
        self.display.show(name)
        return measure_memories(
            model,
            self.documents,
            memories=memories,
            batch_size=self.batch_size,
            progress=self.display.advance,
        )


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if not task.speed else f"{task.speed:,.0f} tokens/s")


class Display:
    """One bar for the whole evaluation."""

    def __init__(self, shown: bool):
        columns = (TextColumn("{task.description}"), BarColumn(), _Speed(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True)
        self._task = self._bar.add_task("preparing", total=None)

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def expect(self, readings: int, tokens: int) -> None:
        self._bar.update(self._task, total=readings * tokens)

    def expect_less(self, tokens: int) -> None:
        self._bar.update(self._task, total=(self._bar.tasks[0].total or 0) - tokens)

    def show(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def advance(self, tokens: int) -> None:
        self._bar.advance(self._task, tokens)
