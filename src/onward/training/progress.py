"""What a training run shows while it runs, and how long it has taken."""

from __future__ import annotations

import time
from collections.abc import Sequence, Sized
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class Stopwatch(TrainerCallback, ExportableState):
    """Seconds of training, those before an interruption included."""

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
    """First what is going to be done, then a bar in a terminal; elsewhere a line every so often.

    Counts tokens, since steps differ in size. Losses are in nats per token.
    """

    def __init__(self, total_tokens: int, console: Console | None = None, seconds_between_lines: float = 30.0):
        self.total = total_tokens
        self.console = console or Console(stderr=True)
        self.seconds_between_lines = seconds_between_lines
        self.loss: float | None = None
        self.validation_loss: float | None = None
        self.bar: Progress | None = None

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.tokens_before = state.num_input_tokens_seen
        self.started = self.last_line = time.monotonic()
        if not state.is_world_process_zero:
            return
        self._say(self._plan(state, kwargs["model"], kwargs["train_dataloader"].dataset.documents))
        if self.console.is_terminal:
            self._open(BarColumn(), "training", self.tokens_before)

    def _open(self, bar: BarColumn, description: str, completed: int) -> None:
        columns = (  # of 80 columns they leave the bar at least 10
            TextColumn("{task.description}"),
            bar,
            TextColumn("{task.percentage:.0f}%"),
            TimeRemainingColumn(),
            TextColumn("left, {task.fields[facts]}"),
        )
        self.bar = Progress(*columns, console=self.console, speed_estimate_period=600)
        self.task = self.bar.add_task(description, total=self.total, completed=completed, facts="")
        self.bar.start()

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
            self._say(f"step {state.global_step}/{state.max_steps}, {self._validation()}")
        self._show(state, now=True)

    def on_train_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.close()

    def close(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None

    def _show(self, state: Any, now: bool = False) -> None:
        tokens = state.num_input_tokens_seen
        if self.bar:
            self.bar.update(self.task, completed=tokens, facts=self._facts(tokens))
            return
        due = now or time.monotonic() - self.last_line >= self.seconds_between_lines
        if due and state.is_world_process_zero and not self.console.is_terminal:
            self.last_line = time.monotonic()
            validation = [] if self.validation_loss is None else [self._validation()]
            facts = [f"{tokens:,} tokens", self._facts(tokens), *validation, f"{self._time_left(tokens)} left"]
            self._say(f"step {state.global_step}/{state.max_steps}, {', '.join(facts)}")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _plan(self, state: Any, model: Any, documents: Sequence[Sized]) -> str:
        parameters, trained = model.num_parameters(), model.num_parameters(only_trainable=True)
        of_them = "" if trained == parameters else f" ({trained:,} of them trained)"
        text = f"{len(documents):,} training documents with {sum(map(len, documents)):,} tokens"
        steps = f"{state.max_steps:,} steps of about {self.total / state.max_steps:,.0f} tokens"
        begin = f"going on from checkpoint-{state.global_step}" if state.global_step else "starting anew"
        return f"{parameters:,} parameters{of_them}, {text}\n{steps}, {begin}"

    def _speed(self, tokens: int) -> float:
        return (tokens - self.tokens_before) / max(time.monotonic() - self.started, 1e-9)

    def _time_left(self, tokens: int) -> str:
        seconds = round(max(self.total - tokens, 0) / max(self._speed(tokens), 1e-9))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def _facts(self, tokens: int) -> str:
        facts = [f"{self._speed(tokens):,.0f} tokens/s"]
        if self.loss is not None:
            facts.append(f"loss {self.loss:.3f} nats/token")
        return ", ".join(facts)

    def _validation(self) -> str:
        return f"validation {self.validation_loss:.3f} nats/token"
