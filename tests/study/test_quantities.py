"""What claims read from the images of a dataset."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import BY_KEY, CLASSES, cell

from anocaps.data.dataset import Dataset, Split
from anocaps.study.claims import quantities
from anocaps.study.claims.judge import judge
from anocaps.study.claims.words import NotMeasured

CACHED = (
    quantities._nearest_classes, quantities.distances_to_others, quantities._training_images,
)  # fmt: skip


def test_nearest_training_images_say_what_a_reconstruction_looks_like(monkeypatch):
    labels = np.repeat(np.arange(10), 6)
    images = (labels * 25)[:, None, None] + np.arange(6)[None, :].repeat(10, 0).reshape(60, 1, 1)
    images = np.broadcast_to(images, (60, 4, 4)).astype(np.uint8)
    train = Split(images, labels)
    dataset = Dataset("mnist", train, train, CLASSES["mnist"], {}, official=False)
    given(monkeypatch, dataset)
    made = np.zeros((4, 2, 4, 4, 1), np.uint8)
    made[:, 1] = np.array([26, 102, 103, 228]).reshape(4, 1, 1, 1)  # like 1, 4, 4, 9
    found = quantities.looks_like(replace(cell(held_out="9", pp=0.9), reconstructions=made))
    assert found.tolist() == [0, 0.25, 0, 0, 0.5, 0, 0, 0, 0, 0.25]
    with pytest.raises(NotMeasured):
        quantities.looks_like(cell(pp=0.9))


def test_the_distance_to_other_classes_ignores_images_of_the_own_class(monkeypatch):
    images = np.array([[3, 4], [30, 40], [30, 40], [60, 80]], np.uint8).reshape(4, 1, 2, 1)
    train = Split(images, np.array([0, 1, 1, 2]))
    dataset = Dataset("mnist", train, train, tuple("abc"), {}, official=False)
    given(monkeypatch, dataset)
    monkeypatch.setattr(quantities, "_BLOCK", 3)
    assert quantities.distances_to_others("mnist") == pytest.approx([45 / 5, 45 / 50, 50 / 100])


def test_missing_images_are_named_and_not_downloaded(monkeypatch, tmp_path):
    """A study of other data needs none of them."""
    monkeypatch.setattr("anocaps.data.catalogue.download_files", None)
    made = np.zeros((4, 2, 28, 28, 1), np.uint8)
    nines = replace(cell(held_out="9", pp=0.9), reconstructions=made)
    (found,) = judge([nines], [BY_KEY["digit-9-as-4"]], tmp_path)
    assert found.verdict == "not measured" and "images of mnist" in found.numbers
    read = []
    monkeypatch.setattr(quantities, "available", lambda *names: read.append(names))
    assert judge([cell("small-norb", held_out="car", pp=0.9)], data_dir=tmp_path)
    assert not read
    judge([nines], data_dir=tmp_path)
    assert set(read) == {("mnist", tmp_path)}


def given(monkeypatch, dataset):
    """Let the rules read this dataset."""
    monkeypatch.setattr(quantities, "available", lambda *_: True)
    monkeypatch.setattr(quantities, "load_dataset", lambda *_, **__: dataset)


@pytest.fixture(autouse=True)
def images_are_forgotten():
    yield
    for function in CACHED:
        function.cache_clear()
