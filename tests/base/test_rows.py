"""Arrays that outgrow memory behave as arrays, and leave nothing behind."""

import os
import tempfile

import numpy as np

from anocaps.base import rows
from anocaps.base.rows import RowsOnDisk, first_rows, room_for


def test_rows_on_disk_are_those_of_an_array(monkeypatch, tmp_path):
    monkeypatch.setattr(rows, "MOST_IN_MEMORY", 100)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wanted = np.random.default_rng(0).normal(size=(20, 3, 2)).astype(np.float32)
    found = room_for(wanted.shape, np.float32)
    assert isinstance(found, RowsOnDisk)
    found[0:15], found[15:20] = wanted[:15], wanted[15:]
    np.testing.assert_array_equal(found[3:9], wanted[3:9])
    np.testing.assert_array_equal(found[np.array([7, 0, 19])], wanted[[7, 0, 19]])
    np.testing.assert_array_equal(np.asarray(first_rows(found, 5)), wanted[:5])
    assert os.listdir(tmp_path) == []  # the file has no name


def test_a_small_array_stays_in_memory():
    assert isinstance(room_for((4, 2), np.uint8), np.ndarray)
