"""The bundled digits and their fixed split."""

import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from anocaps.data import available, fetch_dataset, load_dataset
from anocaps.data.digits import halves


def test_halves_are_disjoint_whole_and_stratified():
    labels = load_digits().target
    train, test = halves(labels)
    assert len(train) + len(test) == len(labels)
    assert set(train).isdisjoint(test)
    assert abs(len(train) - len(test)) <= 1
    assert np.abs(np.bincount(labels[train]) - np.bincount(labels[test])).max() <= 1


def test_halves_never_change():
    train, _ = halves(load_digits().target)
    assert train[:12].tolist() == [1, 2, 4, 6, 10, 11, 14, 15, 17, 19, 21, 23]


def test_pixels_are_scaled_to_bytes():
    source = load_digits()
    digits = load_dataset("digits")
    train, _ = halves(source.target)
    assert digits.train.images.dtype == np.uint8
    assert digits.train.images.shape[1:] == (8, 8)
    assert digits.train.labels.dtype == np.int64
    assert digits.train.images.max() == 255
    np.testing.assert_array_equal(np.round(digits.train.images / 255 * 16), source.images[train])
    np.testing.assert_array_equal(digits.train.labels, source.target[train])


def test_digits_need_nothing_that_downloads(monkeypatch):
    monkeypatch.undo()  # the cache folder of the tests
    monkeypatch.delenv("ANOCAPS_DATA", raising=False)
    for name in ("pooch", "platformdirs", "requests"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    with pytest.raises(ImportError):
        import pooch  # noqa: F401
    assert available("digits") and fetch_dataset("digits") == []
    assert load_dataset("digits").official
