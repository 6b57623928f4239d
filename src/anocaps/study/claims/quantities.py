"""Quantities of one cell that claims use, other than AUROCs."""

from collections.abc import Iterable
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import AnocapsError
from anocaps.data.sources import load_source
from anocaps.study.cell import LONG, CellResult
from anocaps.study.claims.words import NotMeasured

Floats: TypeAlias = NDArray[np.float64]
PP = "pp"  # the score


def looks_like(cell: CellResult) -> Floats:
    """[classes] share of the kept reconstructions that look like each class.

    The five nearest of all training images decide, including those of the held-out class.
    """
    if cell.reconstructions is None:
        raise NotMeasured(f"reconstructions of {cell.method}")
    votes = _nearest_classes(cell.dataset, cell.reconstructions[:, 1].tobytes())
    shares = np.bincount(votes, minlength=len(cell.class_names)) / len(votes)
    return np.asarray(shares)


@cache
def _nearest_classes(dataset: str, pixels: bytes) -> NDArray[np.int64]:
    """The class of each image, by its five nearest training images."""
    try:
        train = load_source(dataset, None).train
    except AnocapsError as error:
        raise NotMeasured(f"the images of {dataset}") from error
    images = train.images.reshape(len(train.images), -1).astype(np.float32)
    made = np.frombuffer(pixels, np.uint8).reshape(-1, images.shape[1]).astype(np.float32)
    distances = np.einsum("ij,ij->i", images, images) - 2 * (made @ images.T)
    nearest = train.labels[np.argsort(distances, axis=1)[:, :5]]
    return np.array([np.bincount(labels).argmax() for labels in nearest])


def surely_taken_for(cell: CellResult, classes: Iterable[str]) -> float:
    """Share of the anomalous images that a long capsule takes for one of these classes."""
    if cell.predicted is None or PP not in cell.scores:
        raise NotMeasured(f"classes given by {cell.method}")
    among = np.isin(cell.predicted, [cell.class_names.index(name) for name in classes])
    return float(np.mean((among & (cell.scores[PP] > LONG))[cell.anomalous]))


def with_long_capsules(cell: CellResult, kind: str, count: int) -> float:
    """Share of the "normal" or "anomalous" images with exactly this many long class capsules."""
    if cell.lengths is None:
        raise NotMeasured(f"capsules of {cell.method}")
    long = cell.lengths[kind]["long"]
    return long[count] / sum(long)


def in_the_range_of_normals(cell: CellResult, score: str) -> float:
    """Share of the anomalous images whose score lies within the central 95 % of the normals'."""
    if score not in cell.scores:
        raise NotMeasured(f"{score} of {cell.method}")
    values, anomalous = cell.scores[score], cell.anomalous
    low, high = np.quantile(values[~anomalous], [0.025, 0.975])
    return float(np.mean(((low <= values) & (values <= high))[anomalous]))


def svm_against_network(cell: CellResult) -> float:
    """Seconds of fitting the SVM, divided by those of training the network."""
    if "svm" not in cell.record:
        raise NotMeasured(f"an SVM of {cell.method}")
    return float(cell.record["svm"]["seconds"] / cell.record["training_seconds"])
