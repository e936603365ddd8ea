"""What a training run shows while it runs, and how long it has taken."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
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
    """A bar in a terminal; elsewhere a line every so often. Counts tokens, since steps differ in size."""

    def __init__(
        self, total_tokens: int, console: Console | None = None, seconds_between_lines: float = 30.0
    ):
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
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[facts]}"),
            )
            self.bar = Progress(*columns, console=self.console, speed_estimate_period=600)
            self.task = self.bar.add_task(
                "training", total=self.total, completed=self.tokens_before, facts=""
            )
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
            line = f"step {state.global_step}/{state.max_steps}, {tokens:,} tokens, {self._facts(tokens)}"
            self.console.print(f"{line}, {self._time_left(tokens)} left", highlight=False, soft_wrap=True)

    def _speed(self, tokens: int) -> float:
        return (tokens - self.tokens_before) / max(time.monotonic() - self.started, 1e-9)

    def _time_left(self, tokens: int) -> str:
        seconds = round(max(self.total - tokens, 0) / max(self._speed(tokens), 1e-9))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def _facts(self, tokens: int) -> str:
        facts = [f"{self._speed(tokens):,.0f} tokens/s"]
        if self.loss is not None:
            facts.append(f"loss {self.loss:.4f}")
        if self.validation_loss is not None:
            facts.append(f"validation {self.validation_loss:.4f}")
        return ", ".join(facts)
