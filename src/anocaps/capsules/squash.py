"""Squash, its gradient, and the length of a capsule."""

import torch
from torch import Tensor

# Added under the square root of a capsule's length: sqrt has no derivative at zero.
EPS = 1e-9


def squash(s: Tensor) -> Tensor:
    """Keep the direction of each vector along the last axis, bring its length n to n²/(1+n²)."""
    n = (s.square().sum(-1, keepdim=True) + EPS).sqrt()
    # n/(1+n²), in a form that stays finite when n² overflows
    return s / (n + 1 / n)


def squash_backward(s: Tensor, grad: Tensor) -> Tensor:
    n = (s.square().sum(-1, keepdim=True) + EPS).sqrt()
    scale = 1 / (n + 1 / n)
    slope = scale.square() * (n.reciprocal().square() - 1)  # d scale / dn = (1−n²)/(1+n²)²
    return scale * grad + s * (slope / n) * (s * grad).sum(-1, keepdim=True)


def lengths(capsules: Tensor) -> Tensor:
    """[N, J, E] → [N, J], each in [0, 1): how sure the network is that class j is there."""
    length: Tensor = torch.linalg.vector_norm(capsules, dim=-1)
    return length
