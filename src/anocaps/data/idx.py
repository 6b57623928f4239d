"""The idx format of MNIST and Fashion-MNIST: a big-endian magic number, the sizes, the data.

The magic number is 00 00, the type (08, unsigned bytes) and the number of dimensions: one for
labels, three for images.
"""

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import DataError
from anocaps.data.binary import first, whole
from anocaps.data.dataset import Split, checked_split

_DIMENSIONS = {0x00000801: 1, 0x00000803: 3}


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of an idx file, plain or gzipped: N labels or N×H×W images."""
    (magic,) = struct.unpack(">I", first(path, 4))
    if magic not in _DIMENSIONS:
        raise DataError(
            f"{path} is not an idx file of bytes (magic number {magic:#010x}); "
            "fetch it again or remove it."
        )
    ndim = _DIMENSIONS[magic]
    header = 4 + 4 * ndim
    shape = struct.unpack(f">{ndim}I", first(path, header)[4:])
    if 0 in shape:
        raise DataError(f"{path} contains no data (sizes {shape}); fetch it again.")
    content = whole(path, header + math.prod(shape))
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_split(images_path: Path, labels_path: Path, classes: int) -> Split:
    images, labels = read_idx(images_path), read_idx(labels_path)
    for path, array, ndim in ((images_path, images, 3), (labels_path, labels, 1)):
        if array.ndim != ndim:
            kind = "images" if ndim == 3 else "labels"
            raise DataError(f"{path} does not contain {kind}; fetch it again.")
    return checked_split(images, labels, classes, f"{images_path} and {labels_path.name}")
