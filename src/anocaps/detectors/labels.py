"""The one gate for labels: whole numbers or text, one per image."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anocaps.base.errors import InputError
from anocaps.base.text import shown


def indexed(labels: ArrayLike, images: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The sorted classes and each image's index into them."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise InputError(f"labels: expected one label per image, got shape {array.shape}")
    if len(array) != images:
        raise InputError(f"labels: {len(array)} labels for {images} images")
    if array.dtype == object:
        array = np.array(array.tolist())  # whole numbers stay whole numbers, text text
    if array.dtype.kind not in "iufbU":
        raise InputError(f"labels: expected whole numbers or text, got {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError("labels: a label is not a finite number")
    classes, index, counts = np.unique(array, return_inverse=True, return_counts=True)
    if counts.min() < 2:
        rare = shown(str(classes[counts.argmin()]))
        raise InputError(f"class {rare} has one image; every class needs at least two")
    return classes, index.astype(np.int64)
