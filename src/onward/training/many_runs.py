"""What is shown while many runs go one after the other: one display for all of them."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn

from .progress import ProgressBar


class RunsProgress(ProgressBar):
    """A bar in a terminal, elsewhere a line every so often. Counts in `unit`s, of which every run has so many.

    A run may train several times, its `parts`: then it is as far as the parts behind it and the one it is at.
    """

    def __init__(
        self,
        total: int,
        unit: str,
        plan: str,
        console: Console | None = None,
        seconds_between_lines: float = 30.0,
    ):
        super().__init__(total, console, seconds_between_lines)
        self.unit = unit
        self.tokens_before = self.done_before = 0
        self.started = self.last_line = time.monotonic()
        self.label = ""
        self.size, self.parts, self.part = 0, 1, -1
        self._say(plan)
        if self.console.is_terminal:
            self._open(BarColumn(10), "", 0)

    def start_run(self, label: str, size: int, parts: int = 1) -> None:
        self.label, self.loss, self.validation_loss = label, None, None
        self.size, self.parts, self.part = size, parts, -1
        if self.bar:
            self.bar.update(self.task, description=label)

    def end_run(self, said: str) -> None:
        """However early it ended, nothing of it is left to do."""
        self.done_before += self.size
        if self.bar:
            self.bar.update(self.task, completed=self.done_before)
        self._say(f"{self.label}: {said}")
        self.last_line = time.monotonic()

    def leave_out(self, size: int) -> None:
        """A run that was to be done has been done elsewhere."""
        self.done_before += size
        self.tokens_before += size

    def prepare(self, what: str, done: int, documents: int) -> None:
        """Before a run trains, its texts may have to be tokenized, which takes hours for a whole library."""
        facts = f"{what}, document {done:,} of {documents:,}"
        if self.bar:
            self.bar.update(self.task, description=self.label, facts=facts)
        elif time.monotonic() - self.last_line >= self.seconds_between_lines:
            self.last_line = time.monotonic()
            self._say(f"{self.label}, {facts}")

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.part = min(self.part + 1, self.parts - 1)
        # What a run had done before it was killed says nothing about how fast it is now.
        self.tokens_before += round(self._share(state) * self.size / self.parts)

    def on_train_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        pass  # of a run, not of all

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self._show(state)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):  # type: ignore[no-untyped-def]
        self.validation_loss = (metrics or {}).get("eval_loss", self.validation_loss)

    def on_prediction_step(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if self.bar:
            self.bar.update(self.task, facts="scoring")

    def _show(self, state: Any, now: bool = False) -> None:
        share = (max(self.part, 0) + self._share(state)) / self.parts
        done = self.done_before + round(share * self.size)
        facts = f"step {state.global_step}/{state.max_steps}, {self._facts(done)}"
        if self.bar:
            self.bar.update(self.task, completed=done, description=self.label, facts=facts)
        elif now or time.monotonic() - self.last_line >= self.seconds_between_lines:
            self.last_line = time.monotonic()
            self._say(f"{self.label}, {facts}, {self._time_left(done)} left")

    @staticmethod
    def _share(state: Any) -> float:
        return state.global_step / max(1, state.max_steps)

    def _facts(self, done: int) -> str:
        facts = f"{self._speed(done):,.0f} {self.unit}/s"
        return facts if self.loss is None else f"{facts}, loss {self.loss:.3f}"
