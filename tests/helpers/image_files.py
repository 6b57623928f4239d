"""Image files for the tests: arrays, folders of digits, and a disk that is nearly full."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anocaps.data import Dataset


def save(path: Path, array: np.ndarray | Image.Image, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    image.save(path, **options)
    return path


def write_digits(
    folder: Path, digits: Dataset, classes: Iterable[int], count: int, enlarge: int = 1
) -> Path:
    """PNG files: FOLDER/digit 0/00.png, FOLDER/digit 0/01.png, …"""
    for label in classes:
        for number, index in enumerate(np.flatnonzero(digits.train.labels == label)[:count]):
            image = digits.train.images[index].repeat(enlarge, 0).repeat(enlarge, 1)
            save(folder / f"digit {label}" / f"{number:02}.png", image)
    return folder


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """No file can grow beyond this many bytes, as on a full disk."""
    resource = pytest.importorskip("resource", reason="only Unix limits file sizes")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
