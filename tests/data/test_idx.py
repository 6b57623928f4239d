"""The idx format: memory is bounded, and images and labels must fit."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from data_writers import gzip_bytes, idx_bytes

from anocaps.base.errors import DataError
from anocaps.data.idx import read_idx, read_split


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "some-idx-file"


@pytest.mark.parametrize("pack", [bytes, gzip_bytes])
def test_a_header_that_promises_too_much_costs_no_memory(path, pack):
    header = struct.pack(">IIII", 0x00000803, 60_000, 2_000, 2_000)
    path.write_bytes(pack(header + bytes(1000)))
    assert _peak_of_refusal(path) < 16 << 20


def test_a_gzip_that_holds_too_much_costs_no_memory(path):
    header = struct.pack(">IIII", 0x00000803, 10, 10, 10)
    path.write_bytes(gzip_bytes(header + bytes(64 << 20)))
    assert _peak_of_refusal(path) < 16 << 20


def _peak_of_refusal(path: Path) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            read_idx(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_images_and_labels_must_belong_together(tmp_path):
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx_bytes(np.zeros((3, 2, 2), np.uint8)))

    labels.write_bytes(idx_bytes(np.array([0, 1, 9], np.uint8)))
    split = read_split(images, labels, classes=10)
    assert split.labels.dtype == np.int64
    assert split.labels.tolist() == [0, 1, 9]

    labels.write_bytes(idx_bytes(np.array([0, 1], np.uint8)))
    with pytest.raises(DataError, match="labels"):
        read_split(images, labels, classes=10)
    labels.write_bytes(idx_bytes(np.array([0, 1, 10], np.uint8)))
    with pytest.raises(DataError, match="labels"):
        read_split(images, labels, classes=10)
    with pytest.raises(DataError, match="labels"):
        read_split(labels, images, classes=10)
