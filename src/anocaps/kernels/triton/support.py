"""Shared by all Triton kernels: compilation, bfloat16 products and squash."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from anocaps.capsules import textbook

__all__ = ["INTERPRETED", "TensorDescriptor", "bf16_product", "jit", "squash", "squash_backward",
           "supported", "tl", "triton"]  # fmt: skip

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))  # kernels read it too
EPS = tl.constexpr(textbook.EPS)


def jit(kernel):
    """triton.jit, with one binary for all batch sizes N."""
    return triton.jit(kernel, do_not_specialize=["N"])


def supported(x: Tensor) -> bool:
    """Whether a kernel can read this tensor: on a GPU or interpreted, and not float64."""
    return (x.is_cuda or bool(INTERPRETED)) and x.dtype != torch.float64


@jit
def bf16_product(a, b, acc):
    """acc + a · b, with a and b rounded to bfloat16 and sums in fp32."""
    a, b = a.to(tl.bfloat16), b.to(tl.bfloat16)
    if INTERPRETED:  # the interpreter cannot multiply bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc)


@jit
def squash(s, axis: tl.constexpr):
    """As `textbook.squash`, along an axis."""
    n = tl.sqrt(tl.sum(s * s, axis=axis, keep_dims=True) + EPS)
    return s / (n + 1 / n)


@jit
def squash_backward(s, grad, axis: tl.constexpr):
    """The gradient of s from the gradient of squash(s)."""
    n = tl.sqrt(tl.sum(s * s, axis=axis, keep_dims=True) + EPS)
    scale = 1 / (n + 1 / n)
    slope = scale * scale * (1 / (n * n) - 1)  # d scale / dn
    return scale * grad + s * (slope / n) * tl.sum(s * grad, axis=axis, keep_dims=True)
