"""How a result came to be: the command, the versions and the machine."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from .version import __version__


def provenance(**more_of_machine: Any) -> dict[str, Any]:
    """`command`, `versions` and `machine`, for every saved result."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {
            "onward": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "system": platform.platform(),
            "cpu": _processor(),
            "processors": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            **more_of_machine,
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
