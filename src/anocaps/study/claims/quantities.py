"""Quantities of one cell that claims use, other than AUROCs."""

from collections.abc import Iterable, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anocaps.data import CATALOGUE, available, load_dataset
from anocaps.data.dataset import Split
from anocaps.judging.metrics import auroc
from anocaps.study.cell import LENGTH_BINS, CellResult
from anocaps.study.claims.words import NotMeasured

Floats: TypeAlias = NDArray[np.float64]
PP = "pp"  # the score
MOST_IN_FLEET = 16  # networks trained at once on a GPU
MEASURED = 200  # images of a class whose distance to the other classes is taken
_BLOCK = 2_000  # images that are compared with them at once


def looks_like(cell: CellResult, data_dir: Path | None = None) -> Floats:
    """[classes] share of the kept reconstructions that look like each class.

    The five nearest of all training images decide, including those of the held-out class.
    """
    if cell.reconstructions is None:
        raise NotMeasured(f"reconstructions of {cell.method}")
    votes = _nearest_classes(cell.dataset, data_dir, cell.reconstructions[:, 1].tobytes())
    shares = np.bincount(votes, minlength=len(cell.class_names)) / len(votes)
    return np.asarray(shares)


@cache
def _nearest_classes(dataset: str, data_dir: Path | None, pixels: bytes) -> NDArray[np.int64]:
    """The class of each image, by its five nearest training images."""
    train = _training_images(dataset, data_dir)
    images = train.images.reshape(len(train.images), -1).astype(np.float32)
    made = np.frombuffer(pixels, np.uint8).reshape(-1, images.shape[1]).astype(np.float32)
    distances = np.einsum("ij,ij->i", images, images) - 2 * (made @ images.T)
    nearest = train.labels[np.argsort(distances, axis=1)[:, :5]]
    return np.array([np.bincount(labels).argmax() for labels in nearest])


@cache
def _training_images(dataset: str, data_dir: Path | None) -> Split:
    """Those of a named dataset. Nothing is downloaded."""
    if dataset not in CATALOGUE or not available(dataset, data_dir):
        raise NotMeasured(f"the images of {dataset}")
    return load_dataset(dataset, data_dir, download=False).train


@cache
def distances_to_others(dataset: str, data_dir: Path | None = None) -> Floats:
    """[classes] mean distance of a class to the nearest training image of any other class.

    Of the first MEASURED training images of a class, each distance divided by the image's norm.
    """
    train = _training_images(dataset, data_dir)
    images = train.images.reshape(len(train.images), -1)
    classes = range(int(train.labels.max()) + 1)
    first = np.concatenate([np.flatnonzero(train.labels == c)[:MEASURED] for c in classes])
    measured, labels = images[first].astype(np.float32), train.labels[first]
    nearest = np.full(len(first), np.inf)
    for start in range(0, len(images), _BLOCK):
        block = images[start : start + _BLOCK].astype(np.float32)
        apart = np.einsum("ij,ij->i", block, block) - 2 * measured @ block.T  # less |measured|²
        apart[labels[:, None] == train.labels[start : start + _BLOCK]] = np.inf
        nearest = np.minimum(nearest, apart.min(axis=1))
    squares = np.einsum("ij,ij->i", measured, measured)
    distances = np.sqrt((nearest + squares).clip(0) / squares.clip(1))
    return np.array([distances[labels == c].mean() for c in classes])


def surely_taken_for(cell: CellResult, classes: Iterable[str], length: float) -> float:
    """Share of the anomalous images that a longer capsule takes for one of these classes."""
    if cell.predicted is None or PP not in cell.scores:
        raise NotMeasured(f"classes given by {cell.method}")
    among = np.isin(cell.predicted, [cell.class_names.index(name) for name in classes])
    return float(np.mean((among & (cell.scores[PP] > length))[cell.anomalous]))


def with_one_long_capsule(cell: CellResult, length: float) -> float:
    """Share of the normal images with exactly one class capsule of this length or more.

    It is a lower bound: an image with three such capsules counts twice against it.
    """
    longest, others = (_from(cell, "normal", which, length) for which in ("longest", "others"))
    return longest - others


def without_long_capsule(cell: CellResult, length: float) -> float:
    """Share of the anomalous images whose class capsules are all shorter than this."""
    return 1 - _from(cell, "anomalous", "longest", length)


def _from(cell: CellResult, kind: str, which: str, length: float) -> float:
    """Capsules of this length or more, per image. Lengths are counted in steps of 1/LENGTH_BINS."""
    if cell.lengths is None:
        raise NotMeasured(f"capsules of {cell.method}")
    counts = cell.lengths[kind]
    first = ceil(length * LENGTH_BINS - 1e-9)
    return sum(counts[which][first:]) / sum(counts["longest"])


def in_the_range_of_normals(cell: CellResult, score: str, central: float) -> float:
    """Share of the anomalous images whose score lies within the central share of the normals'."""
    if score not in cell.scores:
        raise NotMeasured(f"{score} of {cell.method}")
    values, anomalous = cell.scores[score], cell.anomalous
    low, high = np.quantile(values[~anomalous], [0.5 - central / 2, 0.5 + central / 2])
    return float(np.mean(((low <= values) & (values <= high))[anomalous]))


def most_in_fleet(cell: CellResult) -> int:
    """The most networks that may have been trained at once with that of a cell."""
    return 1 if str(cell.record.get("device")).endswith("CPU") else MOST_IN_FLEET


def svm_against_network(cell: CellResult) -> float:
    """Seconds of fitting the SVM, divided by those of training one network.

    The cells of the study record the seconds of a fleet of up to MOST_IN_FLEET networks, in which
    SVMs of other cells were fitted, too. So this is a rough estimate.
    """
    if "svm" not in cell.record:
        raise NotMeasured(f"an SVM of {cell.method}")
    network = cell.record["training_seconds"] / most_in_fleet(cell)
    return float(cell.record["svm"]["seconds"] / network)


def auroc_of_ranks(cells: Sequence[CellResult], scores: Sequence[str]) -> float:
    """AUROC of the mean rank among normal images of several scores, each of its cell.

    All cells have the same test images.
    """
    first, *_ = cells
    for cell, score in zip(cells, scores):
        if score not in cell.scores or not np.array_equal(cell.index, first.index):
            raise NotMeasured(f"{score} of {cell.method} on the same images")
    together = np.zeros(len(first.anomalous))
    for cell, score in zip(cells, scores):
        values = cell.scores[score]
        normal = np.sort(values[~first.anomalous])
        for side in ("left", "right"):  # twice the rank, with ties in the middle
            together += np.searchsorted(normal, values, side)
    return auroc(together[~first.anomalous], together[first.anomalous])
