"""The command `onward`, which knows at once what its verbs are and what they take.

To import `onward` makes its models known to transformers, which takes seconds, and `onward.cli` lies in that package.
So the package is left empty here, and is filled when a verb begins: see `onward.cli.fill_package`.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    if "onward" not in sys.modules:
        spec = importlib.util.find_spec("onward")
        assert spec is not None
        sys.modules["onward"] = importlib.util.module_from_spec(spec)
    from onward.cli import main as run

    run()
