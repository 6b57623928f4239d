"""Loading datasets leaves the data folder as it was."""

import pytest

from anocaps.data import CATALOGUE, available, load_dataset


def test_loading_changes_nothing_in_the_data_folder(real_root):
    names = [name for name, entry in CATALOGUE.items() if entry.files and available(name)]
    if not names:
        pytest.skip("ANOCAPS_DATA holds no dataset of the catalogue")

    def state():
        return {
            path: (path.stat().st_size, path.stat().st_mtime_ns) for path in real_root.rglob("*")
        }

    before = state()
    for name in names:
        load_dataset(name, download=False)
    assert state() == before
