"""Where an image is odd: its error of reconstruction, pixel by pixel, on one fixed scale.

Heat is the squared error, so that a picture shows where a reconstruction score comes from. The
scale is set once, on normal images kept out of training, and never on the image at hand: scaled
by itself, every normal image would have a hot spot. It counts images: half heat is an error that 19
normal ones in 20 reach nowhere. A third of the scale is taken away as what normal images show as
well: a network that redraws all of them badly, as after little training, has calm maps too, and
where it can tell nothing, nothing is pointed at. Needs NumPy and Pillow.
"""

import hashlib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.errors import InputError
from anocaps.files import check_writable, replacing
from anocaps.pictures import shown

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_ONE_IN = 20  # normal images, at most, has a place above half heat
_COLD = 0.95  # the share of their pixels, at least, that is to have no heat at all
_USUAL = 1 / 3  # of the scale: up to here, an error is none
_BLUR = 1 / 32  # of the shorter side: standard deviation of the blur
_LEAST_BLUR = 0.6  # pixels
_WARM = np.array([230, 159, 0])  # Okabe–Ito orange
_HOT = np.array([213, 94, 0])  # and vermillion
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # as in Pillow's grey
_SMALLEST_FILE = 128  # pixels of the shorter side
_LONGEST_NAME = 200  # bytes: a file system takes 255, and a temporary name is longer


# ── from pixels to heat ──────────────────────────────────────────────────────────────────────


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
    error = _unit(window(pixels, height, width)) - _unit(redrawn)
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


def overlay(pixels: NDArray[Any], heat: NDArray[Any]) -> Bytes:
    """The picture in grey, warm where it is hot: N×h×w×3 for heat N×h×w in [0, 1].

    No heat, no colour, hardly any up to a fifth of full heat, and a strong one from half of it,
    which few normal images reach anywhere. Orange turns into vermillion as it covers the grey: on
    black it grows lighter, on white darker, and every kind of colour vision tells it from greys.
    """
    grey = 255 * _grey(_unit(window(pixels, *heat.shape[1:3])))[..., None]  # N×h×w×1
    strength = np.clip(heat, 0, 1)[..., None]
    strength = strength * strength * (3 - 2 * strength)  # slow at both ends
    colour = _WARM + strength * (_HOT - _WARM)
    return np.asarray(np.rint(grey + strength * (colour - grey)), dtype=np.uint8)


def window(pixels: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """The central part of images N×H×W×C."""
    top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
    if top < 0 or left < 0:
        raise InputError(
            f"images of {pixels.shape[1]}×{pixels.shape[2]} pixels are smaller than their "
            f"reconstructions, {height}×{width}"
        )
    return pixels[:, top : top + height, left : left + width]


def _grey(pixels: Floats) -> Floats:
    """N×h×w: luma of three channels, the first of one or two (a stereo pair)."""
    return np.asarray(pixels @ _LUMA if pixels.shape[3] == 3 else pixels[..., 0])


def _unit(pixels: NDArray[Any]) -> Floats:
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


# ── from heat to files ───────────────────────────────────────────────────────────────────────


class HeatmapWriter:
    """One PNG per image file, in folders as theirs: `new/cup/7.jpg` → `maps/cup/7.jpg.png`.

    `paths` are the files and folders to score; names are kept from the deepest folder that holds
    them all. An image keeps its whole name, so that 7.jpg and 7.png do not meet, and a second run
    writes the same names.
    """

    def __init__(self, folder: Path, paths: Iterable[Path]) -> None:
        named = [Path(os.path.abspath(path)) for path in paths]
        self.folder = Path(os.path.abspath(folder))
        check_writable(self.folder / ".heatmap")  # before hours of scoring
        for place in named:
            inside = Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(place))
            if inside and place.is_dir():
                raise InputError(
                    f"{shown(folder)} lies inside {shown(place)}, where the heatmaps would be "
                    "scored as images; name a folder outside"
                )
        self._above = _common_folder([p if p.is_dir() else p.parent for p in named])

    def add(self, file: str | Path, image: NDArray[Any], heat: NDArray[Any]) -> Path:
        """Write the overlay of one image H×W×C and its heat h×w; the path of the new file."""
        from PIL import Image

        path = self.place(file)
        pixels = overlay(image[None], heat[None])[0]
        times = max(1, math.ceil(_SMALLEST_FILE / min(pixels.shape[:2])))
        with replacing(path) as temporary:
            Image.fromarray(pixels.repeat(times, axis=0).repeat(times, axis=1)).save(
                temporary, "PNG"
            )
        return path

    def place(self, file: str | Path) -> Path:
        """Where the heatmap of a file goes; another file's goes elsewhere."""
        whole = Path(os.path.abspath(file))
        if self._above is None:  # several drives
            *parts, name = [whole.drive.strip("\\/:"), *whole.relative_to(whole.anchor).parts]
        elif whole.is_relative_to(self._above):
            *parts, name = whole.relative_to(self._above).parts
        else:
            raise InputError(f"{shown(file)} is not among the files to score")
        return self.folder.joinpath(*parts, f"{_short(name)}.png")


def _common_folder(folders: list[Path]) -> Path | None:
    try:
        return Path(os.path.commonpath(folders))
    except ValueError:
        return None


def _short(name: str) -> str:
    """Names too long to be made longer end in a fingerprint of the whole."""
    code = os.fsencode(name)
    if len(code) <= _LONGEST_NAME:
        return name
    start = code[: _LONGEST_NAME - 20].decode("utf-8", "ignore")
    return f"{start}~{hashlib.sha256(code).hexdigest()[:16]}"
