"""Small-NORB: its six files are read, and its images are halved."""

from pathlib import Path

import numpy as np
import pytest
from data_writers import gzip_bytes, mat_bytes

from anocaps.base.errors import DataError
from anocaps.data import load_dataset
from anocaps.data.norb import halve, read_mat, read_split

TRAIN = "smallnorb-5x46789x9x18x6x2x96x96-training"
TEST = "smallnorb-5x01235x9x18x6x2x96x96-testing"


def test_a_plain_file_is_mapped_into_memory(tmp_path):
    (tmp_path / "a.mat").write_bytes(mat_bytes(np.arange(60, dtype=np.int32)))
    assert isinstance(read_mat(tmp_path / "a.mat"), np.memmap)


def test_two_by_two_mean_by_hand():
    left = [[0, 1, 255, 255], [0, 1, 255, 254], [0, 0, 0, 2], [0, 1, 0, 0]]
    right = [[10, 20, 1, 2], [30, 40, 3, 4], [0, 3, 7, 7], [0, 3, 7, 8]]
    found = halve(np.array([[left, right]], np.uint8))  # 1×2×4×4
    assert found.shape == (1, 2, 2, 2)
    # 2/4 → 1 (halves go up), 1019/4 → 255, 1/4 → 0, 2/4 → 1
    assert found[0, :, :, 0].tolist() == [[1, 255], [0, 1]]
    # 100/4, 10/4 = 2.5 → 3, 6/4 = 1.5 → 2, 29/4 = 7.25
    assert found[0, :, :, 1].tolist() == [[25, 3], [2, 7]]


def write_norb(folder: Path, prefix: str, pairs, categories, details, packed=False) -> None:
    parts = {"dat": pairs.astype(np.uint8), "cat": categories, "info": details}
    for part, array in parts.items():
        content = mat_bytes(array if part == "dat" else array.astype(np.int32))
        name = f"{prefix}-{part}.mat" + (".gz" if packed else "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip_bytes(content) if packed else content)


@pytest.fixture(scope="module")
def toys():
    """300 random pairs: more than one chunk, and the last chunk is not full."""
    random = np.random.default_rng(0)
    pairs = random.integers(0, 256, (300, 2, 96, 96), np.uint8)
    details = np.zeros((300, 4), int)
    details[:, 0] = np.arange(300) // 60 + 4  # the toy
    return pairs, np.arange(300) % 5, details


@pytest.mark.parametrize("folder", ["small-norb", "smallnorb"])
@pytest.mark.parametrize("packed", [False, True])
def test_small_norb_from_its_six_files(tmp_path, toys, folder, packed):
    pairs, categories, details = toys
    write_norb(tmp_path / folder, TRAIN, *toys, packed)
    write_norb(tmp_path / folder, TEST, pairs[:7], categories[:7], details[:7], packed)
    norb = load_dataset("small-norb", tmp_path, download=False)
    assert norb.class_names == ("animal", "human", "airplane", "truck", "car")
    assert norb.train.images.shape == (300, 48, 48, 2)
    assert norb.test.images.shape == (7, 48, 48, 2)
    assert norb.train.images.dtype == np.uint8
    assert norb.train.labels.tolist() == categories.tolist()
    assert norb.train.objects.tolist() == details[:, 0].tolist()
    assert not norb.official
    assert len(norb.hashes) == 6
    mean = pairs.reshape(300, 2, 48, 2, 48, 2).mean(axis=(3, 5))  # an independent way
    for camera in range(2):
        np.testing.assert_array_equal(
            norb.train.images[..., camera], np.floor(mean[:, camera] + 0.5).astype(np.uint8)
        )


def test_parts_that_do_not_fit_are_refused(tmp_path, toys):
    pairs, categories, details = (part[:5] for part in toys)
    dat, cat, info = (tmp_path / f"{TRAIN}-{part}.mat" for part in ("dat", "cat", "info"))
    wrong = {
        "cat": (pairs, categories[:4], details),
        "info": (pairs, categories, details[:, :3]),
        "dat": (pairs[:, :1], categories, details),
        "labels": (pairs, np.array([0, 1, 2, 3, 5]), details),
    }
    for culprit, parts in wrong.items():
        write_norb(tmp_path, TRAIN, *parts)
        with pytest.raises(DataError, match=culprit):
            read_split(dat, cat, info)
