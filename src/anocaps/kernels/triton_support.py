"""Triton where it is installed, for the modules that write kernels.

Where it is not, `triton` and `tl` are None and kernels stay plain functions, which nobody calls:
`usable` is False for every tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    INSTALLED = True
    INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))  # kernels ask it too
except ImportError:  # a CPU has no use for it
    triton = tl = TensorDescriptor = None
    INSTALLED = INTERPRETED = False

__all__ = [
    "INSTALLED",
    "INTERPRETED",
    "TensorDescriptor",
    "jit",
    "tl",
    "triton",
    "usable",
]


def jit(kernel: Any) -> Any:
    """triton.jit, with one binary for neighbouring batch sizes N."""
    return triton.jit(kernel, do_not_specialize=["N"]) if INSTALLED else kernel


def usable(tensor: Tensor) -> bool:
    """Whether kernels can take this tensor: Triton is here and a GPU, or its interpreter."""
    return INSTALLED and (tensor.is_cuda or bool(INTERPRETED))
