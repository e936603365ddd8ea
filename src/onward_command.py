"""The command `onward`, which shows its help without loading torch.

Importing `onward` takes seconds, because it registers the models with transformers, and `onward.cli` is part of that
package. So the package is left empty here, and `fill_package` imports it when a verb begins its work.
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
