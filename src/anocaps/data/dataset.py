"""The result of every loader: training and test images, their labels, and hashes of the files."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import DataError


@dataclass(frozen=True)
class Split:
    images: NDArray[np.uint8]  # N×H×W or N×H×W×C
    labels: NDArray[np.int64]  # N, indices into the dataset's class names
    objects: NDArray[np.int64] | None = None  # N, which object of its class an image shows


@dataclass(frozen=True)
class Dataset:
    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    hashes: dict[str, str]  # file → sha256 of its decompressed content
    official: bool  # every file has the published content

    def class_index(self, name_or_number: str) -> int:
        """The index of a class, from its name or from its number as text."""
        text = name_or_number.strip()
        if text in self.class_names:
            return self.class_names.index(text)
        numbers = [str(number) for number in range(len(self.class_names))]
        if text in numbers:
            return numbers.index(text)
        known = ", ".join(f"{i} {name}" for i, name in enumerate(self.class_names))
        raise DataError(f"{self.name} has no class {name_or_number!r}; choose one of: {known}.")


def checked_split(
    images: NDArray[np.uint8], labels: NDArray[np.integer], classes: int, source: str
) -> Split:
    """Check labels and make a split. `source` names the files in an error."""
    if len(images) != len(labels):
        raise DataError(
            f"{source}: {len(images)} images but {len(labels)} labels; fetch both files again."
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"{source}: the labels are {labels.min()} to {labels.max()}, not 0 to {classes - 1}; "
            "fetch the file again."
        )
    return Split(images, labels.astype(np.int64))
