"""What tests of Triton kernels share: on a GPU they run there, else in Triton's interpreter.

The interpreter must be switched on before triton is imported, and would change `available` for all
other tests. So a file of kernel tests runs a second time, in a process of its own.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda" if ON_GPU else "cpu"
HERE = INTERPRETED or ON_GPU  # whether this process runs kernels

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


class WithoutGpu:
    """Base of what a file tests where not HERE: first of all, its other tests elsewhere."""

    def test_kernels_in_the_interpreter(self, request: pytest.FixtureRequest) -> None:
        command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", request.path]
        done = subprocess.run(
            command, cwd=request.config.rootpath, env=os.environ | {"TRITON_INTERPRET": "1"},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode or " passed" not in done.stdout or "skipped" in done.stdout:
            pytest.fail(done.stdout, pytrace=False)


def in_bfloat16(x: Tensor) -> Tensor:
    """As a kernel rounds. Triton's interpreter does not round but cut."""
    x = x.detach()
    if INTERPRETED:
        x = (x.float().view(torch.int32) & -0x10000).view(torch.float32)
    return x.bfloat16()


def gradient_like(x: Tensor, seed: int = 1) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(x.shape, generator=g).to(x.device, x.dtype)
