"""What makes a run the run it is: its settings, and digests of the runs that it needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .study import Outcome, Run


def described(runs: Sequence[Run]) -> dict[str, Outcome]:
    """By name, each run's settings and the digests of its needs; a run comes after those that it needs."""
    found: dict[str, Outcome] = {}
    named = {run.name: run for run in runs}

    def describe(run: Run) -> Outcome:
        if run.name not in found:
            needs = {need: digest(describe(named[need])) for need in run.needs if need in named}
            found[run.name] = {"settings": json.loads(json.dumps(dict(run.settings), default=str)), "needs": needs}
        return found[run.name]

    for run in runs:
        describe(run)
    return found


def digest(description: Outcome) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """One level, so that each difference between two runs is named by itself."""
    settings, needs = description["settings"], description.get("needs", {})
    others = {name: value for name, value in description.items() if name not in ("settings", "needs")}
    return {**settings, **others, **{f"what it needs, {name}": digest for name, digest in needs.items()}}


def text_facts(texts: Mapping[str, str]) -> Outcome:
    return {f"text of {name!r}": fingerprint for name, fingerprint in texts.items()}


def precision_facts(bf16: bool) -> Outcome:
    return {"--precision": "bfloat16" if bf16 else "float32"}
