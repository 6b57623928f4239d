"""Heatmaps as images: the image in grey, warm where it is anomalous; one PNG per file."""

import hashlib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError
from anocaps.base.files import check_writable, replacing
from anocaps.base.text import shown
from anocaps.judging.heat import Floats, unit, window

Bytes = NDArray[np.uint8]

_WARM = np.array([230, 159, 0])  # Okabe–Ito orange
_HOT = np.array([213, 94, 0])  # and vermillion
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # as in Pillow's grey
_SMALLEST_FILE = 128  # pixels of the shorter side
_LONGEST_NAME = 200  # bytes: a file system takes 255, and a temporary name is longer


def overlay(pixels: NDArray[Any], heat: NDArray[Any]) -> Bytes:
    """The image in grey, warm where it is hot: N×h×w×3 for heat N×h×w in [0, 1].

    Colour is hardly visible up to a fifth of full heat and strong from half of it on, which few
    normal images reach anywhere. It turns from orange to vermillion, so that it differs from black,
    white and grey for every kind of colour vision.
    """
    grey = 255 * _grey(unit(window(pixels, *heat.shape[1:3])))[..., None]  # N×h×w×1
    strength = np.clip(heat, 0, 1)[..., None]
    strength = strength * strength * (3 - 2 * strength)  # slow at both ends
    colour = _WARM + strength * (_HOT - _WARM)
    return np.asarray(np.rint(grey + strength * (colour - grey)), dtype=np.uint8)


def _grey(pixels: Floats) -> Floats:
    """N×h×w: luma of three channels, the first of one or two (a stereo pair)."""
    return np.asarray(pixels @ _LUMA if pixels.shape[3] == 3 else pixels[..., 0])


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
        """The path of a file's heatmap, unique for each file."""
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
    """A name that is too long is cut and ends in a hash of the whole name."""
    code = os.fsencode(name)
    if len(code) <= _LONGEST_NAME:
        return name
    start = code[: _LONGEST_NAME - 20].decode("utf-8", "ignore")
    return f"{start}~{hashlib.sha256(code).hexdigest()[:16]}"
