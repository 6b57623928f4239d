"""Where an image is odd: its error of reconstruction, pixel by pixel, on one fixed scale.

Heat is the squared error, so that a picture shows where a reconstruction score comes from. The
scale is set once, on normal images kept out of training, and never on the image at hand: scaled
by itself, every normal image would have a hot spot. It counts images: half heat is an error that 19
normal ones in 20 reach nowhere. A third of the scale is taken away as what normal images show as
well: a network that redraws all of them badly, as after little training, has calm maps too, and
where it can tell nothing, nothing is pointed at. Needs NumPy and Pillow.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError

Floats = NDArray[np.float32]

_ONE_IN = 20  # normal images, at most, has a place above half heat
_COLD = 0.95  # the share of their pixels, at least, that is to have no heat at all
_USUAL = 1 / 3  # of the scale: up to here, an error is none
_BLUR = 1 / 32  # of the shorter side: standard deviation of the blur
_LEAST_BLUR = 0.6  # pixels


def heat(pixels: NDArray[Any], redrawn: NDArray[Any]) -> Floats:
    """Squared error of every pixel, mean over channels, blurred a little: N×h×w.

    `pixels` N×H×W×C and `redrawn` N×h×w×C are uint8 or float in [0, 1]; of larger pixels the
    central window counts, which is what the network sees. The blur keeps single pixels, the noise
    of a camera or an edge redrawn one pixel off, from outshining a part that is odd as a whole; it
    grows with the image, as the parts do.
    """
    if pixels.ndim != 4 or redrawn.ndim != 4 or len(pixels) != len(redrawn):
        raise InputError(
            "heat: expected images and their reconstructions, N×h×w×C each, got shapes "
            f"{pixels.shape} and {redrawn.shape}"
        )
    height, width = redrawn.shape[1:3]
    error = unit(window(pixels, height, width)) - unit(redrawn)
    return _blurred(np.asarray(np.square(error).mean(axis=3)))


def scale_of(heats: NDArray[Any]) -> float:
    """The heat that counts as full, from the heat N×h×w of normal images kept out of training.

    Half heat is set by the hottest place of each image, as a verdict is by its score: of new normal
    images that come about as these did, one in 20 at most is above it anywhere, on average over
    draws of these. Fewer than 19 cannot promise so much: above the hottest of N is one in N + 1.
    And all but a twentieth of their pixels lie below the part of the scale that is not shown.
    """
    if heats.size == 0:
        raise InputError("the scale of heatmaps needs at least one normal image")
    hottest = np.sort(heats.max(axis=(1, 2)))  # N
    half = hottest[-max(1, (len(hottest) + 1) // _ONE_IN)]
    scale = max(half / ((1 + _USUAL) / 2), np.quantile(heats, _COLD) / _USUAL)
    return max(float(scale), 1e-12)  # the latter for images redrawn perfectly


def heatmaps(pixels: NDArray[Any], redrawn: NDArray[Any], scale: float) -> Floats:
    """Heat N×h×w in [0, 1]: 19 normal images in 20 are nowhere above 0.5. 0 is half the error that
    0.5 stands for, or less; 1 is one and a half times as much, or more."""
    if not 0 < scale < math.inf:
        raise InputError(f"the scale of heatmaps is a number above 0, not {scale!r}")
    above = (heat(pixels, redrawn) / scale - _USUAL) / (1 - _USUAL)
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
    """N×h×w; along each axis, one product with a matrix whose rows are bells of sum 1."""
    height, width = error.shape[1:]
    spread = max(_LEAST_BLUR, _BLUR * min(height, width))

    def bells(side: int) -> Floats:
        along = np.arange(side)
        bell = np.exp(-np.square((along[:, None] - along) / spread) / 2)
        return np.asarray(bell / bell.sum(axis=1, keepdims=True), dtype=np.float32)

    return np.asarray(bells(height) @ error @ bells(width).T)
