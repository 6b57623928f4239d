"""Heatmaps show where an image is anomalous, on one fixed scale. They need only NumPy.

Raw heat is the squared error of each pixel of a reconstruction, or the squared distance of each
patch to normal patches. The scale is set once, on calibration images, or on training images if
there are none. If each image had its own scale, every normal image would have a hot spot. 19 in 20
normal images are below half heat everywhere. The lowest third of the scale is shown as no heat,
because normal images have such errors too.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError
from anocaps.images.resampling import resampling

Floats = NDArray[np.float32]

_LEAST_SCALE, _MOST_SCALE = 1e-12, 1e12
_ONE_IN = 20  # at most one in 20 normal images exceeds half heat anywhere
_COLD = 0.95  # at least this share of their pixels has no heat
_USUAL = 1 / 3  # share of the scale without heat
_BLUR = 1 / 32  # standard deviation of the blur, as a share of the shorter side
_LEAST_BLUR = 0.6  # pixels


def raw_heat(pixels: NDArray[Any], source: NDArray[Any]) -> Floats:
    """Raw heat of images N×H×W×C, from reconstructions N×h×w×C or from coarse raw heat N×h×w."""
    if source.ndim == 4:
        return errors(pixels, source)
    rows, columns = (resampling(*sides) for sides in zip(source.shape[1:], pixels.shape[1:3]))
    return np.asarray(rows @ np.asarray(source, dtype=np.float32) @ columns.T)


def errors(pixels: NDArray[Any], reconstructed: NDArray[Any]) -> Floats:
    """Squared error of every pixel, mean over channels, slightly blurred: N×h×w.

    `pixels` N×H×W×C and `reconstructed` N×h×w×C are uint8 or float in [0, 1]. Larger images are
    cropped to the central window that the network sees. The blur grows with the image. It
    suppresses camera noise and edges that are shifted by one pixel.
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
    """The raw heat to show as full heat, from raw heat N×h×w of normal images.

    Half heat is a quantile of the hottest pixels of the images. On average at most one in 20 new
    normal images exceeds it anywhere (one in N + 1 if N is below 19). At most one in 20 of the
    given pixels shows any heat.
    """
    if heats.size == 0:
        raise InputError("the scale of heatmaps needs at least one normal image")
    hottest = np.sort(heats.max(axis=(1, 2)))  # N
    half = hottest[-max(1, (len(hottest) + 1) // _ONE_IN)]
    scale = max(half / ((1 + _USUAL) / 2), np.quantile(heats, _COLD) / _USUAL)
    return max(float(scale), _LEAST_SCALE)  # above 0 even for perfect reconstructions


def check_scale(scale: object) -> None:
    """Raise an error if `scale_of` does not give such a number."""
    if not (isinstance(scale, float) and _LEAST_SCALE <= scale <= _MOST_SCALE):
        raise InputError(f"its scale of heatmaps is {scale!r}, which calibration does not give")


def heatmaps(pixels: NDArray[Any], source: NDArray[Any], scale: float) -> Floats:
    """Heat N×h×w in [0, 1]. 19 in 20 normal images are below 0.5 everywhere.

    If e is the raw heat at 0.5, heat is 0 up to e/2 and rises linearly up to e. Then it approaches
    1 ever more slowly, so that the hottest place stays the hottest.
    """
    if not 0 < scale < math.inf:
        raise InputError(f"the scale of heatmaps must be above 0, not {scale!r}")
    above = (raw_heat(pixels, source) / scale - _USUAL) / (1 - _USUAL)
    above = np.clip(above, 0, None)
    return np.asarray(np.where(above < 0.5, above, 1 - 0.25 / above.clip(min=0.5)), np.float32)


def window(pixels: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """The central part of images N×H×W×C."""
    top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
    if top < 0 or left < 0:
        raise InputError(
            f"images of {pixels.shape[1]}×{pixels.shape[2]} pixels are smaller than their "
            f"reconstructions of {height}×{width}"
        )
    return pixels[:, top : top + height, left : left + width]


def unit(pixels: NDArray[Any]) -> Floats:
    scaled = np.asarray(pixels, dtype=np.float32)
    return scaled / np.float32(255) if pixels.dtype == np.uint8 else scaled


def _blurred(error: Floats) -> Floats:
    """Blur N×h×w along both axes by matrices whose rows are Gaussians of sum 1."""
    height, width = error.shape[1:]
    spread = max(_LEAST_BLUR, _BLUR * min(height, width))

    def curves(side: int) -> Floats:
        along = np.arange(side)
        curve = np.exp(-np.square((along[:, None] - along) / spread) / 2)
        return np.asarray(curve / curve.sum(axis=1, keepdims=True), dtype=np.float32)

    return np.asarray(curves(height) @ error @ curves(width).T)
