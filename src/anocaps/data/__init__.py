"""Named datasets: where they come from, how to download and how to read them. No torch.

Other rooms use the names below and `sources.load_source`.
"""

from anocaps.data.catalogue import (
    CATALOGUE,
    Entry,
    available,
    dataset_entry,
    fetch_dataset,
    load_dataset,
)
from anocaps.data.dataset import Dataset, Split
from anocaps.data.store import data_dir

__all__ = [
    "CATALOGUE",
    "Dataset",
    "Entry",
    "Split",
    "available",
    "data_dir",
    "dataset_entry",
    "fetch_dataset",
    "load_dataset",
]
