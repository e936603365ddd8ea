"""What a study would take at the papers' scale: every model at its full size, built on the meta device.

FLOPs are counted in a forward pass; training takes three times as many (four where windows are run again). Memory is
that of weights, gradients and optimizer, and of what the pass keeps for its gradients, all in float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from onward.utils.fields import FieldError

from .reporting import Table

# Matrix products per second in bfloat16, and bytes of memory.
GPUS: dict[str, tuple[float, float]] = {
    "L4": (1.21e14, 24e9),
    "RTX4090": (1.65e14, 24e9),
    "A100": (3.12e14, 80e9),
    "H100": (9.89e14, 80e9),
}
UTILISATION = 0.4
BYTES_PER_PARAMETER = 16  # float32: weights, gradients, and two numbers of the optimizer's
# In GPT-2's tokens, about.
TOKENS_OF = {"wikitext-103": 118_000_000, "pg19": 115_000_000}


@dataclass(frozen=True)
class RunPlan:
    """`tokens` to train on, None if that is not known before the text is loaded; `rows` of a step, and the bytes that
    each keeps for its gradients."""

    parameters: int
    flops_per_token: float
    tokens: int | None
    rows: int
    kept: int
    again: bool = False  # windows are run again for their gradients
    formula: float | None = None  # FLOPs per token as the paper counts them

    @property
    def training_flops(self) -> float | None:
        return None if self.tokens is None else (4 if self.again else 3) * self.flops_per_token * self.tokens


def plan_of(
    build: Callable[[], Any], length: int, rows: int, tokens: int | None, again: bool = False, **inputs: Any
) -> RunPlan:
    """Builds a model without values, and runs it over a row of `length` tokens."""
    with torch.device("meta"):
        model = build().train()
        ids = torch.zeros(1, length, dtype=torch.long)
        kept = _KeptBytes(model)
        with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(kept.pack, _same):
            model(ids, **inputs)
    return RunPlan(model.num_parameters(), counter.get_total_flops() / length, tokens, rows, kept.bytes, again)


class _KeptBytes:
    """Counts what autograd keeps, each tensor once and without parameters."""

    def __init__(self, model: torch.nn.Module):
        self.bytes = 0
        self._storages = {p.untyped_storage()._cdata for p in model.parameters()}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages.add(storage._cdata)
            self.bytes += tensor.numel() * tensor.element_size()
        return tensor


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def gpus(text: str) -> tuple[str, int]:
    """ "8xA100" -> A100, 8."""
    match = re.fullmatch(r"(\d+)\s*[x×]\s*(\w+)", text)
    if not match or match[2] not in GPUS or int(match[1]) < 1:
        raise FieldError("gpus", text, f"write how many and which, as 8xA100; known are {', '.join(GPUS)}")
    return match[2], int(match[1])


def table(runs: Sequence[Any], on: str) -> Table:
    """A row for each run that trains a model, and their sum."""
    name, count = gpus(on)
    speed, memory = GPUS[name]
    rows, total = [], 0.0
    for run in runs:
        if run.plan is None:
            continue
        plan: RunPlan = run.plan()
        flops = plan.training_flops
        hours = None if flops is None else flops / (speed * UTILISATION * count) / 3600
        total += hours or 0
        room = memory - BYTES_PER_PARAMETER * plan.parameters
        at_once = max(0, int(room * 0.9 // max(1, plan.kept)))
        share = -(-plan.rows // count)
        needed = BYTES_PER_PARAMETER * plan.parameters + min(share, max(1, at_once)) * plan.kept
        cells = {
            "run": run.name,
            "parameters": f"{plan.parameters:,}",
            "FLOPs/token, forward": f"{plan.flops_per_token:.3g}",
            "the paper's": "" if plan.formula is None else f"{plan.formula:.3g}",
            "tokens": "" if plan.tokens is None else f"{plan.tokens:.3g}",
            "time": "" if hours is None else _time(hours),
            "memory of each": f"{needed / 1e9:.1f} GB" if at_once else "too much",
            "rows at once": f"{min(share, at_once)} of {share}",
        }
        rows.append(cells)
    rows.append({**dict.fromkeys(rows[0] if rows else ("run", "time"), ""), "run": "all", "time": _time(total)})
    return Table.of(f"On {count} × {name}, at {UTILISATION:.0%} of its speed", rows)


def _time(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def caveats(runs: Sequence[Any]) -> list[str]:
    """What the table leaves out."""
    others = [run.name for run in runs if run.plan is None]
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return [
        *([f"Not counted: {', '.join(others[:3])}{more}."] if others else []),
        f"{UTILISATION:.0%} is what well-fed processors reach. Windows that follow each other keep them less busy, and "
        "loading texts and writing checkpoints take time too.",
    ]
