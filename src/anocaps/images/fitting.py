"""Choose from the files themselves how they become images of one size."""

import math
import random
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError
from anocaps.base.extras import pretrained_available
from anocaps.base.threads import in_order
from anocaps.images.decode import (
    SIXTEEN_BITS,
    Bars,
    Fit,
    Header,
    How,
    ImageError,
    largest_value,
)
from anocaps.images.reading import read_images
from anocaps.images.resampling import working_size

SIDES = (32, 48, 64, 96, 128)  # possible longer sides
_SMALLEST, _LARGEST = 28, 128  # sides that preset "deep" is made for
_SMALLEST_QUICK = 8  # pixels a side
_SMALLEST_PHOTO = 48  # pixels of the shorter side, for preset "photo" with several classes
_A_FEW = 0.02  # share of files that may differ from the others
_SAME_SHAPE = 1.1  # aspect ratios within this factor of the median count as the same
_MOST_THUMBNAILS = 50
_MOST_DEEP = 200  # 16-bit files that are searched for their largest value
_THUMBNAIL = Fit(64, 64, 3, "resize")
_TINT = 16  # largest difference of channels, of 255, that is a scanner's tint and not colour
_COLOURED_PIXELS = 0.01  # a colour image has a larger share of coloured pixels


def choose_fit(
    seen: Iterable[Header],
    size: int | None = None,
    how: How | None = None,
    channels: int | None = None,
    photo: bool = False,
) -> Fit:
    """Choose size, way of fitting and channels for these files. Given arguments are kept.

    - Preset `photo` reduces large files to its working size and keeps the size of small ones. Here
      `size` is the shorter side.
    - Without it, files of one size from 28 to 128 pixels keep their size. Smaller files get their
      median size, for preset `quick`. For all others, the longer side becomes the smallest of SIDES
      that reaches the median, or the largest of SIDES. Here `size` is the side of a square.
    - Files of one aspect ratio are resized and nearly keep it. Files of several ratios are fitted
      into a square, with bars in the colour of their border.
    - Images are read in colour if more than 2 % of the files show colour in their thumbnails.
    - White in 16-bit grey is the largest value of the bits that the files use: 4095 for 12 bits.
    """
    widths, heights = array("I"), array("I")  # 8 bytes per file
    coloured, deep = _Draw(_MOST_THUMBNAILS), _Draw(_MOST_DEEP)
    for one in seen:
        widths.append(one.width)
        heights.append(one.height)
        if one.colour:
            coloured.add(one.path)
        if one.deep:
            deep.add(one.path)
    if not widths:
        raise InputError("no image can be read, so no size can be chosen; add images")
    if channels is None:
        in_colour = coloured.count / len(widths) * _share_in_colour(coloured.drawn)
        channels = 3 if in_colour > _A_FEW else 1
    sizes = np.stack([heights, widths]).astype(np.int64)  # [2, files]
    same_shape = _same_shape(sizes)
    if photo:
        height, width = _photo_size(sizes, same_shape, size)
    elif size is None:
        height, width = _working_size(sizes, same_shape)
    else:
        height = width = size
    way = how or ("resize" if same_shape else "letterbox")
    bars: Bars = "border" if way == "letterbox" else "black"  # "black" if there are no bars
    return Fit(height, width, channels, way, _white_point(deep.drawn), bars)


def suits_photo(classes: int, height: float, width: float) -> bool:
    """Whether preset "auto" chooses `photo` for images of this size, if it is installed."""
    return classes == 1 or min(height, width) >= _SMALLEST_PHOTO or max(height, width) > _LARGEST


def photo_chosen(classes: int, seen: Iterable[Header]) -> bool:
    """Whether preset "auto" chooses `photo` for these files, by their median size."""
    sides = np.array([(one.height, one.width) for one in seen])
    height, width = (float(side) for side in np.median(sides, axis=0))
    return pretrained_available() and suits_photo(classes, height, width)


def _photo_size(sizes: NDArray[np.int64], same_shape: bool, shorter: int | None) -> tuple[int, int]:
    """The working size, or the median size if it is smaller; a square for several ratios."""
    height, width = (float(side) for side in np.median(sizes, axis=1))
    if not same_shape:
        height = width = max(height, width)
    working = working_size(height, width, shorter)
    return (round(height), round(width)) if working[0] > height else working


class _Draw:
    """A uniform random sample of files from a stream of unknown length."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0  # files seen so far
        self.drawn: list[Path] = []
        self._random = random.Random(0)

    def add(self, file: Path) -> None:
        self.count += 1
        if len(self.drawn) < self.most:
            self.drawn.append(file)
        elif (place := self._random.randrange(self.count)) < self.most:
            self.drawn[place] = file


def _same_shape(sizes: NDArray[np.int64]) -> bool:
    shapes = np.log(sizes[1] / sizes[0])
    differ = np.abs(shapes - np.median(shapes)) > math.log(_SAME_SHAPE)
    return bool(differ.mean() <= _A_FEW)


def _working_size(sizes: NDArray[np.int64], same_shape: bool) -> tuple[int, int]:
    distinct, counts = np.unique(sizes, axis=1, return_counts=True)
    common = distinct[:, counts.argmax()]
    alike = counts.max() >= (1 - _A_FEW) * counts.sum()
    if alike and common.min() >= _SMALLEST and common.max() <= _LARGEST:
        return int(common[0]), int(common[1])
    height, width = (max(_SMALLEST_QUICK, int(side)) for side in np.median(sizes, axis=1))
    if max(height, width) < _SMALLEST:
        return (height, width) if same_shape else (max(height, width),) * 2
    median = np.median(sizes.max(axis=0))
    long = next((side for side in SIDES if side >= median), SIDES[-1])
    if not same_shape:
        return long, long
    aspect = float(np.median(sizes[1] / sizes[0]))
    short = max(_SMALLEST, 4 * round(long * min(aspect, 1 / aspect) / 4))
    return (short, long) if aspect > 1 else (long, short)


def _share_in_colour(files: list[Path]) -> float:
    readable = [p for _, p in read_images(files, _THUMBNAIL) if not isinstance(p, ImageError)]
    shown = [(np.ptp(pixels, axis=2) > _TINT).mean() > _COLOURED_PIXELS for pixels in readable]
    return float(np.mean(shown)) if shown else 0.0


def _white_point(files: list[Path]) -> int:
    """2^k − 1, where k is the number of bits of the largest value in 16-bit files, 8 to 16."""
    largest = max((value for value in in_order(_largest, files) if value is not None), default=None)
    return SIXTEEN_BITS if largest is None else (1 << max(8, largest.bit_length())) - 1


def _largest(file: Path) -> int | None:
    try:
        return largest_value(file)
    except ImageError:  # reported when all files are read
        return None
