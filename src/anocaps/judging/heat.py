"""Heatmaps: where an image differs from its reconstruction, on one fixed scale.

Heat is the squared error of each pixel, so that a heatmap shows where a reconstruction score comes
from. The scale is set once, on normal images kept out of training, and never on the image at hand:
scaled by itself, every normal image would have a hot spot. Half heat is an error that 19 normal
images in 20 reach nowhere. The lowest third of the scale is cut off as what normal images show as
well, so that a network that reconstructs all images badly has calm maps too. Needs only NumPy.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError

Floats = NDArray[np.float32]

_ONE_IN = 20  # at most one in so many normal images is above half heat anywhere
_COLD = 0.95  # at least this share of their pixels has no heat
_USUAL = 1 / 3  # of the scale: errors up to here have no heat
_BLUR = 1 / 32  # of the shorter side: standard deviation of the blur
_LEAST_BLUR = 0.6  # pixels


def heat(pixels: NDArray[Any], reconstructed: NDArray[Any]) -> Floats:
    """Squared error of every pixel, mean over channels, blurred a little: N×h×w.

    `pixels` N×H×W×C and `reconstructed` N×h×w×C are uint8 or float in [0, 1]. Of larger images
    the central window counts, which is what the network sees. The blur grows with the image. It
    keeps camera noise and edges that are one pixel off from outshining an anomalous part.
    """
    if pixels.ndim != 4 or reconstructed.ndim != 4 or len(pixels) != len(reconstructed):
        raise InputError(
            "heat: expected images and their reconstructions, N×h×w×C each, got shapes "
            f"{pixels.shape} and {reconstructed.shape}"
        )
    height, width = reconstructed.shape[1:3]
    error = unit(window(pixels, height, width)) - unit(reconstructed)
    return _blurred(np.asarray(np.square(error).mean(axis=3)))


def scale_of(heats: NDArray[Any]) -> float:
    """Full heat, from the heat N×h×w of normal images kept out of training.

    Half heat comes from the hottest place of each image: on average over draws of these images, at
    most one in 20 new normal images is above it anywhere, or one in N + 1 if N is below 19. And at
    most a twentieth of their pixels show any heat.
    """
    if heats.size == 0:
        raise InputError("the scale of heatmaps needs at least one normal image")
    hottest = np.sort(heats.max(axis=(1, 2)))  # N
    half = hottest[-max(1, (len(hottest) + 1) // _ONE_IN)]
    scale = max(half / ((1 + _USUAL) / 2), np.quantile(heats, _COLD) / _USUAL)
    return max(float(scale), 1e-12)  # above 0 also if all are reconstructed perfectly


def heatmaps(pixels: NDArray[Any], reconstructed: NDArray[Any], scale: float) -> Floats:
    """Heat N×h×w in [0, 1]: 19 normal images in 20 are nowhere above 0.5.

    Relative to the error at 0.5, heat is 0 up to half of it, and 1 from one and a half times on.
    """
    if not 0 < scale < math.inf:
        raise InputError(f"the scale of heatmaps is a number above 0, not {scale!r}")
    above = (heat(pixels, reconstructed) / scale - _USUAL) / (1 - _USUAL)
    return np.asarray(np.clip(above, 0, 1), dtype=np.float32)


def window(pixels: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """The central part of images N×H×W×C."""
    top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
    if top < 0 or left < 0:
        raise InputError(
            f"images of {pixels.shape[1]}×{pixels.shape[2]} pixels are smaller than their "
            f"reconstructions, {height}×{width}"
        )
    return pixels[:, top : top + height, left : left + width]


def unit(pixels: NDArray[Any]) -> Floats:
    scaled = np.asarray(pixels, dtype=np.float32)
    return scaled / np.float32(255) if pixels.dtype == np.uint8 else scaled


def _blurred(error: Floats) -> Floats:
    """N×h×w, blurred along each axis by a matrix whose rows are normal curves of sum 1."""
    height, width = error.shape[1:]
    spread = max(_LEAST_BLUR, _BLUR * min(height, width))

    def curves(side: int) -> Floats:
        along = np.arange(side)
        curve = np.exp(-np.square((along[:, None] - along) / spread) / 2)
        return np.asarray(curve / curve.sum(axis=1, keepdims=True), dtype=np.float32)

    return np.asarray(curves(height) @ error @ curves(width).T)
