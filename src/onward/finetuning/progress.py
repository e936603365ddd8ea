"""What a sweep shows while it runs: one display for all its runs."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn

from ..training.progress import ProgressBar


class SweepProgress(ProgressBar):
    """A bar in a terminal, elsewhere a line every so often. Counts examples, of which all runs have as many."""

    def __init__(
        self,
        runs: int,
        examples_per_run: int,
        plan: str,
        console: Console | None = None,
        seconds_between_lines: float = 30.0,
    ):
        super().__init__(runs * examples_per_run, console, seconds_between_lines)
        self.examples_per_run = examples_per_run
        self.tokens_before = self.done_before = 0
        self.started = self.last_line = time.monotonic()
        self.label = ""
        self._say(plan)
        if self.console.is_terminal:
            self._open(BarColumn(10), "", 0)

    def start_run(self, label: str) -> None:
        self.label, self.loss = label, None
        if self.bar:
            self.bar.update(self.task, description=label)

    def end_run(self, said: str) -> None:
        """However early it ended, nothing of it is left to do."""
        self.done_before += self.examples_per_run
        if self.bar:
            self.bar.update(self.task, completed=self.done_before)
        self._say(f"{self.label}: {said}")
        self.last_line = time.monotonic()

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        pass

    def on_train_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        pass  # of a run, not of the sweep

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self._show(state)

    def _show(self, state: Any, now: bool = False) -> None:
        share = state.global_step / max(1, state.max_steps)
        done = self.done_before + round(share * self.examples_per_run)
        facts = f"step {state.global_step}/{state.max_steps}, {self._facts(done)}"
        if self.bar:
            self.bar.update(self.task, completed=done, description=self.label, facts=facts)
        elif now or time.monotonic() - self.last_line >= self.seconds_between_lines:
            self.last_line = time.monotonic()
            self._say(f"{self.label}, {facts}, {self._time_left(done)} left")

    def on_prediction_step(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if self.bar:
            self.bar.update(self.task, facts="scoring")

    def _facts(self, done: int) -> str:
        facts = f"{self._speed(done):,.0f} examples/s"
        return facts if self.loss is None else f"{facts}, loss {self.loss:.3f}"
