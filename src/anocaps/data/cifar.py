"""The binary version of CIFAR-10: colour photos of 32×32 pixels, ten classes.

A record has 3,073 bytes: the label, then the red, green and blue plane, row by row. There is no
header, so length and labels are all that can be checked. A. Krizhevsky, 2009.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anocaps.base.errors import DataError
from anocaps.data.binary import chunks
from anocaps.data.dataset import Split, checked_split

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE  # bytes
_MOST_RECORDS = 100_000  # per file; an official file has a tenth


def read_batch(path: Path) -> Split:
    """The images N×32×32×3 and labels of one file, plain or gzipped."""
    content = bytearray()
    for chunk in chunks(path):
        content += chunk
        if len(content) > _MOST_RECORDS * _RECORD:
            break
    count, rest = divmod(len(content), _RECORD)
    if rest or not 1 <= count <= _MOST_RECORDS:
        raise DataError(
            f"{path} does not consist of records of {_RECORD:,} bytes; fetch or copy it again."
        )
    records = np.frombuffer(content, np.uint8).reshape(count, _RECORD)
    planes = records[:, 1:].reshape(count, 3, _SIDE, _SIDE)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return checked_split(images, records[:, 0], len(CLASSES), str(path))


def read_split(paths: Sequence[Path]) -> Split:
    """The records of several files, one after the other."""
    batches = [read_batch(path) for path in paths]
    return Split(
        np.concatenate([batch.images for batch in batches]),
        np.concatenate([batch.labels for batch in batches]),
    )
