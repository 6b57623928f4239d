"""Datasets by name and images from folders: pixels and labels, nothing about networks."""

from anocaps.data.catalogue import (
    CATALOGUE,
    Entry,
    available,
    dataset_entry,
    fetch_dataset,
    load_dataset,
)
from anocaps.data.dataset import Dataset, Split
from anocaps.data.folder import ImageFolder
from anocaps.data.store import data_dir

__all__ = [
    "CATALOGUE",
    "Dataset",
    "Entry",
    "ImageFolder",
    "Split",
    "available",
    "data_dir",
    "dataset_entry",
    "fetch_dataset",
    "load_dataset",
]
