"""Compare a fast form of an operation with its reference in float64, in values and gradients."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def off(x: Tensor, y: Tensor) -> float:
    """‖x − y‖ / ‖y‖, NaN if anything is."""
    x, y = x.detach().double(), y.detach().double()
    return float((x - y).norm() / y.norm().clamp(min=1e-12))


def assert_agree(
    fast: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    value: float = 1e-10,
    gradient: float = 1e-10,
) -> None:
    """fast(*inputs) is reference(*inputs in float64) within relative errors."""
    mine = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    true = [None if x is None else x.detach().double().requires_grad_() for x in inputs]
    y, want = fast(*mine), reference(*true)
    assert y.shape == want.shape
    assert off(y, want) < value
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.device)
    y.backward(grad.to(y.dtype))
    want.backward(grad.to(y.dtype).double())
    for a, b in zip(mine, true):
        if a is not None and b is not None:
            assert a.grad.dtype == a.dtype
            assert off(a.grad, b.grad) < gradient
