"""Small-NORB and its binary-matrix format: stereo pairs of toys, 96×96 grey, five categories.

A file has little-endian int32 numbers (magic number, number of dimensions, at least three sizes,
padded with 1), then the data. Y. LeCun, F. J. Huang, L. Bottou, CVPR 2004.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import DataError
from anocaps.data.binary import first, is_gzip, whole
from anocaps.data.dataset import Split, checked_split

CLASSES = ("animal", "human", "airplane", "truck", "car")
_DTYPES: dict[int, np.dtype[Any]] = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}
_MOST_DIMENSIONS = 8
_PAIRS_AT_ONCE = 256


def read_mat(path: Path) -> NDArray[Any]:
    """The array of a plain or gzipped file. A plain file is mapped into memory."""
    dtype, shape, header = _read_header(path)
    size = header + math.prod(shape) * dtype.itemsize
    if path.stat().st_size == size and not is_gzip(path):
        return np.memmap(path, dtype, "r", offset=header, shape=shape)
    return np.frombuffer(whole(path, size), dtype, offset=header).reshape(shape)


def _read_header(path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Type, shape, and number of bytes before the data."""
    magic, ndim = struct.unpack("<Ii", first(path, 8))
    if magic not in _DTYPES:
        raise DataError(
            f"{path} is not a binary matrix of uint8 or int32 (magic number {magic:#010x}); "
            "fetch it again or remove it."
        )
    if not 1 <= ndim <= _MOST_DIMENSIONS:
        raise DataError(f"{path} is damaged: it has {ndim} dimensions; fetch it again.")
    stored = max(ndim, 3)
    header = 8 + 4 * stored
    sizes = struct.unpack(f"<{stored}i", first(path, header)[8:])
    if min(sizes) < 1 or any(size != 1 for size in sizes[ndim:]):
        raise DataError(f"{path} is damaged: it has sizes {sizes}; fetch it again.")
    return _DTYPES[magic], sizes[:ndim], header


def halve(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """N×2×2H×2W → N×H×W×2: the mean of each 2×2 block, rounded half up; the cameras come last."""
    wide = pairs.astype(np.uint16)
    rows = wide[:, :, 0::2] + wide[:, :, 1::2]  # N×2×H×2W
    blocks = rows[..., 0::2] + rows[..., 1::2]  # N×2×H×W
    return ((blocks + 2) // 4).astype(np.uint8).transpose(0, 2, 3, 1)


def read_split(dat: Path, cat: Path, info: Path) -> Split:
    """Images N×48×48×2, their categories, and the toys that they show (from `info`)."""
    pairs, categories, details = (read_mat(path) for path in (dat, cat, info))
    expected: Sequence[tuple[Path, NDArray[Any], str, tuple[int, ...]]] = (
        (dat, pairs, "uint8", (len(pairs), 2, 96, 96)),
        (cat, categories, "int32", (len(pairs),)),
        (info, details, "int32", (len(pairs), 4)),
    )
    for path, array, dtype, shape in expected:
        if array.shape != shape or array.dtype != dtype:
            raise DataError(
                f"{path} contains {array.dtype} {array.shape}, not {dtype} {shape}; "
                "fetch the files again."
            )
    images = np.empty((len(pairs), 48, 48, 2), np.uint8)
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        images[part] = halve(pairs[part])
    split = checked_split(images, np.asarray(categories), len(CLASSES), f"{dat} and {cat.name}")
    return replace(split, objects=details[:, 0].astype(np.int64))
