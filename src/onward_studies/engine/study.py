"""What a study is: runs, and a report of their outcomes. It does not know how runs are done (`conducting.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from onward.utils.fields import FieldError, refuse_others

from .planning import RunPlan
from .reporting import Report
from .sizes import SCALES, check_size

if TYPE_CHECKING:
    from .work import Work

Outcome = dict[str, Any]
"""What a run returns and leaves in its `outcome.json`."""


@dataclass(frozen=True)
class StudySetting:
    """What a user chooses: `corpora`, names or paths by what the study calls them; `sizes`, the study's own for the
    scale, with the user's changes; `bf16`, the precision of trainings (None: bfloat16 where the hardware has it)."""

    scale: str = "laptop"
    seeds: int = 3
    corpora: Mapping[str, str] = field(default_factory=dict)
    sizes: Any = None
    bf16: bool | None = None

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise FieldError("seeds", self.seeds, "a study needs at least one")


@dataclass(frozen=True)
class Run:
    """`do` returns the outcome, which depends on nothing but `settings` and the outcomes of the runs in `needs`.

    `size`: the time it takes beside other runs, in tokens; `parts`: how often it trains; `plan`: what it takes at the
    papers' scale, if it trains a model. `by`: which of several launched processes do it: "all", the "first" while the
    others wait, or "one" that was not launched with others. `outcome_only`: other runs need its outcome, not its files.
    """

    name: str
    settings: Mapping[str, Any]
    do: Callable[[Work], Outcome]
    needs: tuple[str, ...] = ()
    size: int = 1
    parts: int = 1
    plan: Callable[[], RunPlan] | None = None
    by: str = "all"
    outcome_only: bool = False


@dataclass(frozen=True)
class Study:
    """By scale: `corpora`, the texts by the names a user may give them, and `sizes`, a dataclass of all that differs
    between scales. `check` looks at the texts before hours are spent."""

    name: str
    corpora: Mapping[str, Mapping[str, str]]
    sizes: Mapping[str, Any]
    runs: Callable[[StudySetting], Sequence[Run]]
    report: Callable[[StudySetting, Mapping[str, Outcome]], Report]
    check: Callable[[Work], None] | None = None

    def setting(
        self,
        scale: str = "laptop",
        seeds: int = 3,
        corpora: Mapping[str, str] | None = None,
        changes: Mapping[str, Any] | None = None,
        bf16: bool | None = None,
    ) -> StudySetting:
        """Refuses unknown names. A path without a name is the study's first corpus."""
        if scale not in SCALES:
            raise FieldError("scale", scale, f"choose one of {', '.join(SCALES)}")
        known, sizes, changes = self.corpora[scale], self.sizes[scale], changes or {}
        given = {name or next(iter(known)): place for name, place in (corpora or {}).items()}
        for name in given:
            if name not in known:
                raise ValueError(f"study {self.name} reads no corpus {name!r}: it reads {', '.join(known) or 'none'}")
        refuse_others(type(sizes), [f.name for f in fields(sizes)], changes)
        for name, value in changes.items():
            check_size(sizes, name, value)
        return StudySetting(scale, seeds, {**known, **given}, replace(sizes, **changes), bf16)
