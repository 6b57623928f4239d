"""scikit-learn's bundled digits: 1,797 images of 8×8 pixels, without a download.

They have no official split. A fixed half of each class is for training, the other half for testing.
"""

import numpy as np
from numpy.typing import NDArray

from anocaps.data.dataset import Split

CLASSES = tuple("0123456789")
_SEED = 0


def halves(labels: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices of two stratified halves. NumPy guarantees that PCG64 never changes."""
    keys = np.random.PCG64(_SEED).random_raw(len(labels))
    order = np.lexsort((keys, labels))  # class by class, shuffled within a class
    return np.sort(order[0::2]), np.sort(order[1::2])


def read_digits() -> tuple[Split, Split]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)  # N×8×8, values were 0 to 16
    labels = digits.target.astype(np.int64)
    train, test = (Split(images[part], labels[part]) for part in halves(labels))
    return train, test
