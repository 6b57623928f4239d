"""The working size of preset `photo`, and resizing as a matrix product.

The matrices are the same in NumPy, torch and ONNX.
"""

import numpy as np
from numpy.typing import NDArray

STRIDE = 16  # pixels between two places of the pretrained stem's map
_SMALLEST, _LARGEST = 112, 192  # pixels of the shorter side, unless given
_LONGEST = 1024  # pixels of the longer side


def working_size(height: float, width: float, shorter: int | None = None) -> tuple[int, int]:
    """Height and width that the stem sees: multiples of the stride with a similar aspect ratio."""
    low, high = sorted((height, width))
    wanted = min(max(low, _SMALLEST), _LARGEST) if shorter is None else shorter
    scale = min(wanted / low, max(_LONGEST, wanted) / high)
    rows, columns = (max(1, round(side * scale / STRIDE)) for side in (height, width))
    return rows * STRIDE, columns * STRIDE


def resampling(before: int, after: int) -> NDArray[np.float32]:
    """Pillow's BILINEAR filter as a matrix [after, before].

    It interpolates linearly, or takes weighted means if the side becomes shorter.
    """
    scale = before / after
    centres = (np.arange(after) + 0.5) * scale - 0.5
    apart = np.abs(centres[:, None] - np.arange(before)) / max(scale, 1.0)
    weights = np.clip(1 - apart, 0, None)
    # beyond the first and the last centre, only the edge pixel has a weight
    return np.asarray(weights / weights.sum(1, keepdims=True), dtype=np.float32)
