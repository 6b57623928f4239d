"""What tests of Triton kernels share: on a GPU they run there, else in Triton's interpreter.

It must be switched on before triton is imported and would change `available` for every other test,
so these files then run a second time, in a process of its own: one for all files of this run, begun
before the first test (conftest.py), so that its minutes pass beside the others.
"""

import importlib.util
import os
import re
import subprocess
import sys
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
        output = interpreted.output()
        outcomes = re.findall(rf"^([A-Z]+) \S*{request.path.name}::", output, re.MULTILINE)
        if set(outcomes) != {"PASSED"}:  # none at all: the process did not come so far
            pytest.fail(output, pytrace=False)


class Interpreted:
    """What pytest says of files in the interpreter; at the end a line for each test."""

    process: subprocess.Popen[str] | None = None
    told: str | None = None

    def begin(self, items: list[pytest.Item]) -> None:
        """Start it for those of this run's files that ask for it."""
        name = WithoutGpu.test_kernels_in_the_interpreter.__name__
        files = sorted({str(item.path) for item in items if item.name == name})
        if not files:
            return
        command = [sys.executable, "-m", "pytest", "-rpfE", "-p", "no:cacheprovider", *files]
        env = os.environ | {
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            command, cwd=Path(__file__).parents[2], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def output(self) -> str:
        """Wait for its end."""
        if self.told is None:
            assert self.process is not None
            self.told, _ = self.process.communicate()
        return self.told

    def end(self) -> None:
        """Nobody may be left to read it: the run was stopped."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


interpreted = Interpreted()


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
