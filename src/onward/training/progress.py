"""What training shows while it runs: of a single run, or of many that go one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence, Sized
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class Stopwatch(TrainerCallback, ExportableState):
    """Seconds of training, with those before an interruption."""

    def __init__(self) -> None:
        self.seconds_before = 0.0
        self.started: float | None = None

    @property
    def seconds(self) -> float:
        return self.seconds_before + (0.0 if self.started is None else time.monotonic() - self.started)

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.started = time.monotonic()

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"seconds_before": self.seconds}}


class ProgressBar(TrainerCallback):
    """A bar in a terminal, after a summary of the run; elsewhere a line every so often.

    Counts tokens, since steps differ in size. Losses are in nats per token.
    """

    unit, loss_unit = "tokens", " nats/token"

    def __init__(self, total: int, console: Console | None = None, seconds_between_lines: float = 30.0):
        self.total = total
        self.console = console or Console(stderr=True)
        self.seconds_between_lines = seconds_between_lines
        self.loss: float | None = None
        self.validation_loss: float | None = None
        self.bar: Progress | None = None
        self.done_at_start = 0
        self.started = self.last_line = time.monotonic()

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.done_at_start = state.num_input_tokens_seen
        self.started = self.last_line = time.monotonic()
        if not state.is_world_process_zero:
            return
        self._say(self._summary(state, kwargs["model"], kwargs["train_dataloader"].dataset.documents))
        if self.console.is_terminal:
            self._open(BarColumn(), "training", self.done_at_start)

    def on_log(self, args, state, control, logs=None, **kwargs):  # type: ignore[no-untyped-def]
        self.loss = (logs or {}).get("loss", self.loss)
        self._show(state)

    def on_prediction_step(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if self.bar:
            self.bar.update(self.task, description="validating")

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):  # type: ignore[no-untyped-def]
        self.validation_loss = (metrics or {}).get("eval_loss", self.validation_loss)
        if self.bar:
            self.bar.update(self.task, description="training")
            self._say(f"{self._step(state)}, {self._validation()}")
        self._show(state, now=True)

    def on_train_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.close()

    def close(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None

    def _open(self, bar: BarColumn, description: str, completed: int) -> None:
        columns = (  # in a terminal of 80 columns they leave the bar at least 10
            TextColumn("{task.description}"),
            bar,
            TextColumn("{task.percentage:.0f}%"),
            TimeRemainingColumn(),
            TextColumn("left, {task.fields[facts]}"),
        )
        self.bar = Progress(*columns, console=self.console, speed_estimate_period=600)
        self.task = self.bar.add_task(description, total=self.total, completed=completed, facts="")
        self.bar.start()

    def _show(self, state: Any, now: bool = False) -> None:
        tokens = state.num_input_tokens_seen
        if self.bar:
            self.bar.update(self.task, completed=tokens, facts=self._speed_and_loss(tokens))
        elif state.is_world_process_zero and not self.console.is_terminal and self._line_is_due(now):
            validation = [] if self.validation_loss is None else [self._validation()]
            facts = [self._step(state), f"{tokens:,} tokens", self._speed_and_loss(tokens), *validation]
            self._say(f"{', '.join(facts)}, {self._time_left(tokens)} left")

    def _line_is_due(self, now: bool = False) -> bool:
        due = now or time.monotonic() - self.last_line >= self.seconds_between_lines
        if due:
            self.last_line = time.monotonic()
        return due

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _summary(self, state: Any, model: Any, documents: Sequence[Sized]) -> str:
        parameters, trained = model.num_parameters(), model.num_parameters(only_trainable=True)
        of_them = "" if trained == parameters else f" ({trained:,} of them trained)"
        text = f"{len(documents):,} training documents with {sum(map(len, documents)):,} tokens"
        steps = f"{state.max_steps:,} steps of about {self.total / state.max_steps:,.0f} tokens"
        begin = f"resuming from checkpoint-{state.global_step}" if state.global_step else "starting anew"
        return f"{parameters:,} parameters{of_them}, {text}\n{steps}, {begin}"

    def _step(self, state: Any) -> str:
        return f"step {state.global_step}/{state.max_steps}"

    def _speed(self, done: int) -> float:
        return (done - self.done_at_start) / max(time.monotonic() - self.started, 1e-9)

    def _time_left(self, done: int) -> str:
        seconds = round(max(self.total - done, 0) / max(self._speed(done), 1e-9))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def _speed_and_loss(self, done: int) -> str:
        speed = f"{self._speed(done):,.0f} {self.unit}/s"
        return speed if self.loss is None else f"{speed}, loss {self.loss:.3f}{self.loss_unit}"

    def _validation(self) -> str:
        return f"validation {self.validation_loss:.3f} nats/token"


class RunsProgress(ProgressBar):
    """One display for many runs, in sizes of some `unit`.

    A run may train several times, in `parts`: its progress is the finished parts and the share of the current one.
    """

    loss_unit = ""

    def __init__(
        self, total: int, unit: str, plan: str, console: Console | None = None, seconds_between_lines: float = 30.0
    ):
        super().__init__(total, console, seconds_between_lines)
        self.unit = unit
        self.done_before_run = 0
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
        """Counts all of the run as done, however early it ended."""
        self.done_before_run += self.size
        if self.bar:
            self.bar.update(self.task, completed=self.done_before_run)
        self._say(f"{self.label}: {said}")
        self.last_line = time.monotonic()

    def leave_out(self, size: int) -> None:
        """Skips a run that another process has done."""
        self.done_before_run += size
        self.done_at_start += size

    def prepare(self, what: str, done: int, documents: int) -> None:
        """Shows the tokenizing before a run trains, which takes hours for a large corpus."""
        facts = f"{what}, document {done:,} of {documents:,}"
        if self.bar:
            self.bar.update(self.task, description=self.label, facts=facts)
        elif self._line_is_due():
            self._say(f"{self.label}, {facts}")

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.part = min(self.part + 1, self.parts - 1)
        # What a run had done before it was killed says nothing about its speed now.
        self.done_at_start += round(self._share(state) * self.size / self.parts)

    def on_train_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        pass  # the display stays for the runs that follow

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self._show(state)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):  # type: ignore[no-untyped-def]
        self.validation_loss = (metrics or {}).get("eval_loss", self.validation_loss)

    def on_prediction_step(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if self.bar:
            self.bar.update(self.task, facts="scoring")

    def _show(self, state: Any, now: bool = False) -> None:
        share = (max(self.part, 0) + self._share(state)) / self.parts
        done = self.done_before_run + round(share * self.size)
        facts = f"{self._step(state)}, {self._speed_and_loss(done)}"
        if self.bar:
            self.bar.update(self.task, completed=done, description=self.label, facts=facts)
        elif self._line_is_due(now):
            self._say(f"{self.label}, {facts}, {self._time_left(done)} left")

    @staticmethod
    def _share(state: Any) -> float:
        return state.global_step / max(1, state.max_steps)
