"""The training and test images of a cell. They are the same for every method.

Held-out classes are never trained on. The balanced test set has as many normal as anomalous images:
all of the smaller group, usually the anomalous one, and a random draw from the other. The draw
depends on dataset, held-out classes and seed only.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError
from anocaps.data import Dataset
from anocaps.data.dataset import Split

PROTOCOL_VERSION = 1


@dataclass(frozen=True)
class CellData:
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.str_]  # class names
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.str_]
    anomalous: NDArray[np.bool_]  # per test image
    balanced: NDArray[np.int64]  # indices into the test images
    numbers: NDArray[np.int64] | None = None  # of the test images in the dataset; None: all


def held_out_classes(dataset: Dataset, text: str) -> tuple[int, ...]:
    """The class indices of '2', '0,3,5' or 'sandal', sorted and without repeats."""
    chosen = tuple(sorted({dataset.class_index(part) for part in text.split(",")}))
    if len(chosen) == len(dataset.class_names):
        raise InputError("every class is held out, so nothing is left to train on: name fewer")
    return chosen


def cell_data(
    dataset: Dataset, held_out: Sequence[int], seed: int, limit: int | None = None
) -> CellData:
    """The images of one cell; `limit` keeps the first images of each training class."""
    if limit is not None and limit < 2:
        raise InputError(f"limit must be at least 2 training images per class, not {limit}")
    names = np.asarray(dataset.class_names)
    train, test = dataset.train, dataset.test
    normal = np.flatnonzero(~np.isin(train.labels, held_out))
    if limit is not None:
        normal = np.sort(
            np.concatenate(
                [normal[train.labels[normal] == c][:limit] for c in np.unique(train.labels[normal])]
            )
        )
    anomalous = np.isin(test.labels, held_out)
    return CellData(
        train.images[normal],
        names[train.labels[normal]],
        test.images,
        names[test.labels],
        anomalous,
        _balanced(anomalous, dataset.name, [dataset.class_names[c] for c in held_out], seed),
    )


def _balanced(
    anomalous: NDArray[np.bool_], dataset: str, held_out: Sequence[str], seed: int
) -> NDArray[np.int64]:
    """All images of the smaller group, normal or anomalous, and as many drawn from the other."""
    described: list[Any] = [dataset, sorted(held_out), seed]
    digest = hashlib.sha256(repr(described).encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    groups = np.flatnonzero(~anomalous), np.flatnonzero(anomalous)
    count = min(map(len, groups))
    return np.sort(np.concatenate([generator.permutation(group)[:count] for group in groups]))


def mock_dataset(dataset: Dataset) -> Dataset:
    """Make a dataset from training images alone, so that no choice uses a test image.

    Images of the last object of every class become the mock test set, because the real test images
    of Small-NORB show other objects than its training images. If objects are unknown, every sixth
    image is taken.
    """
    images, labels, objects = dataset.train.images, dataset.train.labels, dataset.train.objects
    if objects is None:
        is_test = np.arange(len(labels)) % 6 == 0
    else:
        last = np.full(len(dataset.class_names), -1)
        np.maximum.at(last, labels, objects)
        is_test = objects == last[labels]
    return replace(
        dataset,
        train=Split(images[~is_test], labels[~is_test]),
        test=Split(images[is_test], labels[is_test]),
    )


def balanced_part(data: CellData) -> CellData:
    """The cell with its balanced test set alone. `numbers` are indices into the whole test set."""
    part = data.balanced
    return replace(
        data,
        test_images=data.test_images[part],
        test_labels=data.test_labels[part],
        anomalous=data.anomalous[part],
        balanced=np.arange(len(part)),
        numbers=part,
    )
