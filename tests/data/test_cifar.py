"""CIFAR-10: records without a header are read exactly, and damaged files are refused by name."""

import numpy as np
import pytest
from data_writers import cifar_bytes, gzip_bytes

from anocaps.base.errors import DataError
from anocaps.data import available, load_dataset
from anocaps.data.cifar import CLASSES, read_batch

FILES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")


@pytest.fixture
def photos():
    """Two random images for each file."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (6, 2, 32, 32, 3), np.uint8), np.arange(12).reshape(6, 2) % 10


@pytest.mark.parametrize("folder", ["cifar10", "cifar-10-batches-bin"])
@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip_bytes, ".gz")])
def test_the_six_files_become_two_splits(tmp_path, photos, folder, pack, suffix):
    images, labels = photos
    (tmp_path / folder).mkdir()
    for k, name in enumerate(FILES):
        content = cifar_bytes(images[k], labels[k])
        (tmp_path / folder / f"{name}{suffix}").write_bytes(pack(content))
    data = load_dataset("cifar10", tmp_path, download=False)
    np.testing.assert_array_equal(data.train.images, images[:5].reshape(10, 32, 32, 3), strict=True)
    np.testing.assert_array_equal(data.test.images, images[5], strict=True)
    assert data.train.labels.tolist() == labels[:5].ravel().tolist()
    assert data.test.labels.tolist() == labels[5].tolist()
    assert not data.official and list(data.hashes) == list(FILES)


def test_damaged_files_are_refused_by_name(tmp_path, photos):
    whole = cifar_bytes(photos[0][0], photos[1][0])
    path = tmp_path / "data_batch_1.bin"
    no_label = whole[:3073] + b"\x0a" + whole[3074:]
    for content in (b"", whole[:-1], whole + b"\0", no_label, gzip_bytes(whole)[:-20]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"data_batch_1\.bin"):
            read_batch(path)


def test_a_gzip_that_never_ends_is_refused(tmp_path, photos, monkeypatch):
    monkeypatch.setattr("anocaps.data.cifar._MOST_RECORDS", 3)
    path = tmp_path / "test_batch.bin.gz"
    path.write_bytes(gzip_bytes(4 * cifar_bytes(photos[0][0][:1], photos[1][0][:1])))
    with pytest.raises(DataError, match="test_batch"):
        read_batch(path)


def test_real_data(real_root):
    if not available("cifar10", real_root):
        pytest.skip("cifar10 is not in ANOCAPS_DATA")
    data = load_dataset("cifar10", real_root, download=False)
    assert data.train.images.shape == (50_000, 32, 32, 3)
    assert data.test.images.shape == (10_000, 32, 32, 3)
    assert np.bincount(data.train.labels).tolist() == [5000] * 10
    assert np.bincount(data.test.labels).tolist() == [1000] * 10
    red, _, blue = data.train.images[data.train.labels == CLASSES.index("airplane")].mean((0, 1, 2))
    assert blue > red  # the sky
