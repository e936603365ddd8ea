"""`onward demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared import Out


def demo(
    out: Out = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Minutes, but too little training to show much.")] = False,
) -> None:
    """Add recurrence to a real pretrained model, fine-tune it beside its controls, and show the table."""
    from .demonstration import run

    run(out, quick=quick)
