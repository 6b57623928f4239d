"""What tests of Triton kernels share: on a GPU they run there, else in Triton's interpreter.

It must be switched on before triton is imported and would change `available` for every other test,
so these files then run a second time, in a process of its own: one for all files of this run.
"""

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

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
        name = request.function.__name__
        files = {item.path for item in request.session.items if item.name == name}
        output = _interpreted(tuple(sorted(files)))
        outcomes = re.findall(rf"^([A-Z]+) \S*{request.path.name}::", output, re.MULTILINE)
        if set(outcomes) != {"PASSED"}:  # none at all: the process did not come so far
            pytest.fail(output, pytrace=False)


@cache
def _interpreted(files: tuple[Path, ...]) -> str:
    """What pytest says of these files in the interpreter; at the end a line for each test."""
    command = [sys.executable, "-m", "pytest", "-rpfE", "-p", "no:cacheprovider", *map(str, files)]
    env = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=env, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def off(x: Tensor, y: Tensor) -> float:
    """‖x − y‖ / ‖y‖, NaN if anything is."""
    x, y = x.double(), y.double()
    return ((x - y).norm() / y.norm().clamp(min=1e-12)).item()


def in_bfloat16(x: Tensor) -> Tensor:
    """As a kernel rounds. Triton's interpreter does not round but cut."""
    x = x.detach()
    if INTERPRETED:
        x = (x.float().view(torch.int32) & -0x10000).view(torch.float32)
    return x.bfloat16()


def gradient_like(x: Tensor, seed: int = 1) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(x.shape, generator=g).to(x.device, x.dtype)
