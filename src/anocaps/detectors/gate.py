"""Check X and y of every detector and turn them into arrays.

X is an array of images, a list of paths or an `ImageFolder`. y has the normal class of each image.
The number −1 marks an anomaly. Text is always the name of a class, even "-1".
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anocaps.base.errors import DataError, InputError
from anocaps.base.text import shown
from anocaps.detectors.photo.features import Features
from anocaps.images import ImageFolder
from anocaps.training.preprocessing import Preprocessing, as_images

if TYPE_CHECKING:
    from anocaps.images.decode import Fit

ANOMALY = -1  # label of images that training leaves out
_UNNAMED = "normal"  # class of images without labels

ImagesLike: TypeAlias = ArrayLike | Sequence[str | os.PathLike[str]] | ImageFolder | Features


@dataclass(frozen=True)
class Given:
    """The images and labels of a fit."""

    images: Any  # N×H×W×C: an array, `RowsOnDisk` or, for preset photo, `Features`
    classes: NDArray[Any]  # sorted
    index: NDArray[np.int64]  # N, into the classes; ANOMALY for images to leave out
    fit: "Fit | None"  # how files became images; None for arrays


def given(images: ImagesLike, labels: ArrayLike | None) -> Given:
    """The images and labels to fit on."""
    fit = None
    if isinstance(images, ImageFolder):
        fit = images.fit
        labels = images.labels if labels is None else labels
        array: Any = images.images
    elif isinstance(images, Features):
        array = images
    elif (files := _files(images)) is not None:
        fit = _chosen_fit(files, 1 if labels is None else len(set(np.asarray(labels).tolist())))
        array = _read(files, fit)
    else:
        array = as_images(images)
    known = [_UNNAMED] * len(array) if labels is None else labels
    return Given(array, *indexed(known, len(array)), fit)


def to_score(images: ImagesLike, shape: Preprocessing, record: dict[str, Any]) -> NDArray[Any]:
    """The images to score, N×H×W×C, of the size that the detector was fitted on."""
    if isinstance(images, ImageFolder):
        fit = fit_of(shape, record)
        array = np.asarray(images.images) if images.fit == fit else _read(images.files, fit)
    elif (files := _files(images)) is not None:
        array = _read(files, fit_of(shape, record))
    else:
        array = as_images(images)
    wanted = (shape.height, shape.width, shape.channels)
    if array.shape[1:] != wanted:
        raise InputError(
            f"X: this detector takes {_by(wanted)} images, not {_by(array.shape[1:])}; "
            "bring them to this size and number of channels"
        )
    return array


def without_channels(images: ImagesLike) -> bool:
    """Whether images have no channel axis, so that reconstructions need none."""
    return not isinstance(images, ImageFolder) and np.ndim(cast(ArrayLike, images)) == 3


def fit_of(shape: Preprocessing, record: dict[str, Any]) -> "Fit":
    """How files become the detector's images: as in training, or else resized to its size."""
    from anocaps.images.decode import Fit

    if (stored := record.get("fit")) is not None:
        try:
            return Fit(**stored)
        except TypeError as error:
            raise InputError("the stored image size is damaged; train the model again") from error
    if shape.channels not in (1, 3):
        raise InputError(
            f"this model takes images of {shape.channels} channels, but an image file has 1 or 3: "
            "score arrays with its score_samples in Python"
        )
    return Fit(shape.height, shape.width, shape.channels, "resize")


def indexed(labels: ArrayLike, images: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The sorted classes, and each image's index into them, or ANOMALY if its label is −1."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise InputError(f"y: expected one label per image, got shape {array.shape}")
    if len(array) != images:
        raise InputError(f"y: {len(array)} labels for {images} images; give one per image")
    normal = ~marked(array)
    if not normal.any():
        raise InputError("y: every label is −1, the mark of anomalies; add normal images")
    kept = array[normal]
    if kept.dtype == object:
        kept = np.array(kept.tolist())  # infers integers or text
    if kept.dtype.kind not in "iufbU":
        raise InputError(f"y: expected numbers or text, got {kept.dtype}")
    if kept.dtype.kind == "f" and not np.isfinite(kept).all():
        raise InputError("y: a label is not a finite number; use finite numbers or text")
    classes, of_kept, counts = np.unique(kept, return_inverse=True, return_counts=True)
    if counts.min() < 2:
        rare = shown(str(classes[counts.argmin()]))
        raise InputError(f"y: class {rare} has one image; every class needs at least two")
    index = np.full(images, ANOMALY, dtype=np.int64)
    index[normal] = of_kept
    return classes, index


def marked(labels: ArrayLike) -> NDArray[np.bool_]:
    """Whether each label is the number −1, the mark of an anomaly."""
    array = np.asarray(labels)
    if array.dtype == object:
        return np.array([isinstance(each, Real) and each == ANOMALY for each in array], dtype=bool)
    return array == ANOMALY if array.dtype.kind in "if" else np.zeros(len(array), dtype=bool)


# ── files ────────────────────────────────────────────────────────────────────────────────────


def _files(images: ImagesLike) -> list[Path] | None:
    """The paths, if the images are given as paths."""
    if isinstance(images, str | os.PathLike):
        raise InputError("X is a single path: give a list of paths, or ImageFolder(path)")
    if isinstance(images, np.ndarray) and images.ndim == 1:
        images = images.tolist()
    if not isinstance(images, Sequence) or not images:
        return None
    paths = [Path(each) for each in images if isinstance(each, str | os.PathLike)]
    return paths if len(paths) == len(images) else None


def _chosen_fit(files: list[Path], classes: int) -> "Fit":
    from anocaps.images.fitting import choose_fit, photo_chosen
    from anocaps.images.folder import headers

    seen, reasons = headers(files)
    if reasons:
        raise DataError(next(iter(reasons.values())))
    return choose_fit(seen.values(), photo=photo_chosen(classes, seen.values()))


def _read(files: Sequence[Path], fit: "Fit") -> NDArray[np.uint8]:
    from anocaps.images.reading import read_images

    images = np.empty((len(files), fit.height, fit.width, fit.channels), dtype=np.uint8)
    for place, (_, found) in enumerate(read_images(files, fit)):
        if not isinstance(found, np.ndarray):
            raise found
        images[place] = found
    return images


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
