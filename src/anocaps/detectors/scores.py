"""Normality scores as pure functions of a network's outputs; higher = more normal.

`pp` and `re` are equations (1) and (2) of the paper. They take torch tensors or NumPy arrays and
return the same kind.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anocaps.base.errors import InputError

# This changes RE of a black image only: any other 8-bit image has a norm of at least 1/255.
_SMALLEST_NORM = 1 / 255


def _of_arrays(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Let a function of tensors also take NumPy arrays. Bytes become pixels in [0, 1]."""

    @wraps(function)
    def either(*values: Any) -> Any:
        if all(isinstance(each, Tensor) for each in values):
            return function(*values)
        arrays = [np.asarray(each) for each in values]
        pixels = [each / np.float32(255) if each.dtype == np.uint8 else each for each in arrays]
        return function(*(torch.from_numpy(np.ascontiguousarray(p)) for p in pixels)).numpy()

    return either


@_of_arrays
def pp(lengths: Tensor) -> Tensor:
    """Prediction probability: the length of the longest class capsule.

    Parameters
    ----------
    lengths : Tensor or array of shape (N, classes)
        Lengths of the class capsules; at least two classes.

    Returns
    -------
    scores : Tensor or array of shape (N,)
        The same kind as `lengths`.
    """
    if lengths.shape[-1] < 2:
        raise InputError("pp needs at least two classes; use re")
    return lengths.amax(-1)


@_of_arrays
def re(images: Tensor, reconstructions: Tensor) -> Tensor:
    """Reconstruction error: −‖x − x′‖₂² / ‖x‖₂.

    Parameters
    ----------
    images, reconstructions : Tensor or array of shape (N, ...)
        Pixels in [0, 1]. Arrays may also be uint8.

    Returns
    -------
    scores : Tensor or array of shape (N,)
        The same kind as `images`.
    """
    if images.shape != reconstructions.shape:
        raise InputError(
            f"images and reconstructions must have one shape, not {tuple(images.shape)} and "
            f"{tuple(reconstructions.shape)}"
        )
    norm: Tensor = torch.linalg.vector_norm(images.flatten(1), dim=1)
    return squared_error(images, reconstructions) / norm.clamp(min=_SMALLEST_NORM)


def squared_error(images: Tensor, reconstructions: Tensor) -> Tensor:
    """Negative squared reconstruction error: −‖x − x′‖₂².

    Parameters
    ----------
    images, reconstructions : Tensor of shape (N, ...)
        Pixels in [0, 1].

    Returns
    -------
    scores : Tensor of shape (N,)
        One number per image.
    """
    return -(images - reconstructions).flatten(1).square().sum(1)
