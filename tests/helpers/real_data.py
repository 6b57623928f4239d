"""Real datasets, where they are."""

import os
from pathlib import Path

import pytest

from anocaps.data import Dataset, available, load_dataset


def real(name: str) -> Dataset:
    """A real dataset from ANOCAPS_DATA, or a skip that says what is missing."""
    folder = os.environ.get("ANOCAPS_DATA")
    if not folder or not available(name, Path(folder)):
        pytest.skip(f"{name} is not in ANOCAPS_DATA")
    return load_dataset(name, Path(folder), download=False)
