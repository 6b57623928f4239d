"""Heatmaps over photos: the photo in grey, orange where it is anomalous. Two files per photo.

The overlay is a PNG of the photo's size, with at most 2,048 pixels per side. Beside it, the heat
itself is an array of the same size. The array compresses well, because most of it is zero.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError
from anocaps.base.files import check_writable, replacing
from anocaps.base.text import shown
from anocaps.images.decode import Fit, ImageError, place_of, read_photo
from anocaps.judging.heat import Floats, unit, window

Bytes = NDArray[np.uint8]

_WARM = np.array([230, 159, 0])  # Okabe–Ito orange
_HOT = np.array([213, 94, 0])  # and vermillion
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # as in Pillow's grey
_LONGEST = 2048  # pixels of the longer side of an overlay
_STRIP = 1 << 18  # pixels painted at once; each takes about 100 bytes meanwhile
_LONGEST_NAME = 200  # bytes: a file system takes 255, and a temporary name is longer


def overlay(pixels: NDArray[Any], heat: NDArray[Any]) -> Bytes:
    """The image in grey, with heat in colour: N×h×w×3 for heat N×h×w in [0, 1].

    Colour is hardly visible up to a fifth of full heat, and strong from half heat on. Few normal
    images reach half heat anywhere. The colour turns from orange to vermillion, which differ from
    grey for every kind of colour vision.
    """
    seen = window(pixels, *heat.shape[1:3])
    painted = np.empty((*heat.shape, 3), np.uint8)
    rows = max(1, _STRIP // max(1, heat.shape[0] * heat.shape[2]))
    for top in range(0, heat.shape[1], rows):
        part = slice(top, top + rows)
        painted[:, part] = _painted(seen[:, part], heat[:, part])
    return painted


def _painted(pixels: NDArray[Any], heat: NDArray[Any]) -> Floats:
    grey = 255 * _grey(unit(pixels))[..., None]  # N×h×w×1
    strength = np.clip(heat, 0, 1)[..., None]
    strength = strength * strength * (3 - 2 * strength)  # slow at both ends
    colour = _WARM + strength * (_HOT - _WARM)
    return np.asarray(np.rint(grey + strength * (colour - grey)))


def _grey(pixels: Floats) -> Floats:
    """N×h×w: the luma of three channels, or the first of one or two channels (a stereo pair)."""
    return np.asarray(pixels @ _LUMA if pixels.shape[3] == 3 else pixels[..., 0])


def layer(heat: NDArray[Any]) -> Bytes:
    """The colours of `overlay` without the image, h×w×4: transparent where there is no heat."""
    black, white = (
        overlay(np.full((1, *heat.shape, 1), v, np.uint8), heat[None]) for v in (0, 255)
    )
    strength = 1 - (white[0].astype(np.float32) - black[0]).mean(axis=2, keepdims=True) / 255
    colour = np.clip(black[0] / np.maximum(strength, 1e-3), 0, 255)
    pixels = np.concatenate([colour, 255 * strength], axis=2)
    return np.asarray(np.rint(pixels), dtype=np.uint8)


def over_photo(heat: NDArray[Any], fit: Fit, width: int, height: int) -> Floats:
    """Resize heat h×w of a fitted image to the photo that it came from: height×width.

    Parts of the photo that the network did not see have no heat. Linear interpolation never
    overshoots.
    """
    from PIL import Image

    seen = np.zeros((fit.height, fit.width), np.float32)
    top, left = (fit.height - heat.shape[0]) // 2, (fit.width - heat.shape[1]) // 2
    seen[top : top + heat.shape[0], left : left + heat.shape[1]] = heat  # the network's window
    used, placed = place_of((width, height), fit)
    across, down = ((placed[k + 2] - placed[k]) / (used[k + 2] - used[k]) for k in (0, 1))
    to_fit = (across, 0, placed[0] - across * used[0], 0, down, placed[1] - down * used[1])
    found = Image.fromarray(seen).transform(
        (width, height), Image.Transform.AFFINE, to_fit, Image.Resampling.BILINEAR
    )
    return np.clip(np.asarray(found, dtype=np.float32), 0, 1)


class HeatmapWriter:
    """Writes two files per image file. For `new/cup/7.jpg` they are the overlay
    `maps/cup/7.jpg.png` and the heat `maps/cup/7.jpg.npz`, float32 in [0, 1] named "heat".

    `paths` are the files and folders to score. The files have the same paths below `folder` as the
    images have below their deepest common folder. The extension stays in the name, so that 7.jpg
    and 7.png differ. A second run writes the same names.
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

    def add(self, file: str | Path, heat: NDArray[Any], fit: Fit) -> Path | None:
        """Write the heat h×w of a photo that was fitted with `fit`; return the overlay's path.

        None if the photo is gone.
        """
        from PIL import Image

        path = self.place(file)
        try:
            photo = read_photo(Path(file), _LONGEST, fit.white)
        except ImageError:
            return None
        whole = over_photo(heat, fit, photo.shape[1], photo.shape[0])
        with replacing(path.with_suffix(".npz")) as temporary, open(temporary, "wb") as out:
            np.savez_compressed(out, heat=whole)
        with replacing(path) as temporary:
            Image.fromarray(overlay(photo[None], whole[None])[0]).save(temporary, "PNG")
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
    """Shorten a long name: cut it, and add a hash of the whole name."""
    code = os.fsencode(name)
    if len(code) <= _LONGEST_NAME:
        return name
    start = code[: _LONGEST_NAME - 20].decode("utf-8", "ignore")
    return f"{start}~{hashlib.sha256(code).hexdigest()[:16]}"
