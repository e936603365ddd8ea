"""The kernel for GPUs, run by Triton's interpreter, which must be asked for before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
from onward.ops.recurrence import plain_gated_recurrence
from onward.ops.recurrence_triton import gated_recurrence

torch.manual_seed(0)
for activation in ("silu", "relu"):
    for length, width, stride in ((1, 3, 1), (13, 5, 1), (13, 5, 2), (9, 150, 4), (4, 5, 6)):
        given = [torch.randn(length, 2, 2 * width), torch.randn(width)]
        given = [x.double().requires_grad_() for x in given]
        weights = torch.randn(length, 2, width, dtype=torch.float64)
        ours, theirs = (f(*given, stride, activation) for f in (gated_recurrence, plain_gated_recurrence))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        for mine, other in zip(*(torch.autograd.grad((x * weights).sum(), given) for x in (ours, theirs))):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)
print("same")
"""


def test_the_kernel_is_the_plain_loop() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
    assert run.stdout == "same\n", run.stderr
