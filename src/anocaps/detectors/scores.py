"""Normality scores: pure functions of what a network returns; higher = more normal.

Equations (1) and (2) of the paper, and the sum of both that its authors later found best.
"""

import torch
from torch import Tensor

from anocaps.base.errors import InputError

# Changes RE of the all-black image only: any other 8-bit image has a norm of at least 1/255.
_SMALLEST_NORM = 1 / 255


def pp(lengths: Tensor) -> Tensor:
    """Prediction probability: the longest class capsule. [N, classes] → [N]."""
    if lengths.shape[-1] < 2:
        raise InputError(
            "PP compares class capsules and needs at least two normal classes; use score_function='re'"
        )
    return lengths.amax(-1)


def re(images: Tensor, reconstructions: Tensor) -> Tensor:
    """Reconstruction error: −‖x − x′‖₂² / ‖x‖₂, pixels in [0, 1]. [N, …] twice → [N]."""
    norm: Tensor = torch.linalg.vector_norm(images.flatten(1), dim=1)
    return squared_error(images, reconstructions) / norm.clamp(min=_SMALLEST_NORM)


def squared_error(images: Tensor, reconstructions: Tensor) -> Tensor:
    """−‖x − x′‖₂², not normalised. [N, …] twice → [N]."""
    return -(images - reconstructions).flatten(1).square().sum(1)
