"""The images of a study: a dataset by name, or a folder as `folder:PATH`."""

import hashlib
from pathlib import Path

import numpy as np

from anocaps.data.catalogue import load_dataset
from anocaps.data.dataset import Dataset, Split
from anocaps.images.folder import ImageFolder

FOLDER = "folder:"
_MEND = "Move them away; 'anocaps check' lists them."
_TEST_EVERY = 6


def load_source(name: str, data_dir: str | Path | None = None) -> Dataset:
    if name.startswith(FOLDER):
        return _from_folder(Path(name.removeprefix(FOLDER)))
    return load_dataset(name, data_dir)


def _from_folder(path: Path) -> Dataset:
    """One sub-folder per class. Every sixth file of a class is a test image."""
    found = ImageFolder(path, photo=False, mend=_MEND)
    images = np.asarray(found.images)
    labels = np.searchsorted(found.class_names, found.labels).astype(np.int64)
    within = np.zeros(len(labels), dtype=np.int64)  # position of an image in its class
    for index in range(len(found.class_names)):
        within[labels == index] = np.arange(int((labels == index).sum()))
    test = within % _TEST_EVERY == 0
    digest = hashlib.sha256(images.data)
    digest.update(labels.astype("<i8").tobytes())
    return Dataset(
        # the hash distinguishes folders of the same name
        name=f"{FOLDER}{path.resolve().name}-{digest.hexdigest()[:6]}",
        train=Split(images[~test], labels[~test]),
        test=Split(images[test], labels[test]),
        class_names=found.class_names,
        hashes={path.resolve().name: digest.hexdigest()},
        official=True,
    )
