from dataclasses import replace

import numpy as np
import pytest

from anocaps.base.errors import DataError, InputError
from anocaps.data import Dataset, Split
from anocaps.study.protocol import balanced_part, cell_data, held_out_classes, mock_dataset


@pytest.fixture
def toy():
    """Four classes; pixel values carry the image's number so that images can be recognised."""

    def split(first, counts):
        labels = np.repeat(np.arange(4), counts)
        numbers = np.arange(first, first + len(labels), dtype=np.uint8)
        return Split(np.tile(numbers[:, None, None], (1, 2, 2)), labels)

    return Dataset("toy", split(0, [9] * 4), split(100, [5, 20, 3, 8]), tuple("abcd"), {}, True)


def test_held_out_classes_are_never_trained_on(toy):
    data = cell_data(toy, (1, 3), seed=0)
    assert set(data.train_labels) == {"a", "c"}
    assert data.train_images[:, 0, 0].tolist() == [*range(9), *range(18, 27)]
    assert set(data.test_labels[data.anomalous]) == {"b", "d"}
    assert len(data.test_images) == 36


def test_the_balanced_set_is_all_anomalies_and_as_many_normals(toy):
    data = cell_data(toy, (2,), seed=0)
    chosen = data.anomalous[data.balanced]
    assert chosen.sum() == 3 and (~chosen).sum() == 3
    assert len(set(data.balanced)) == 6


def test_the_draw_knows_dataset_classes_and_seed_only(toy):
    def draw(dataset=toy, held_out=(2,), seed=0, limit=None):
        return cell_data(dataset, held_out, seed, limit).balanced.tolist()

    assert draw() == draw() == draw(limit=3)
    assert draw() != draw(seed=1)
    renamed = Dataset("other", toy.train, toy.test, toy.class_names, {}, True)
    assert draw() != draw(renamed)


def test_more_anomalies_than_normals_still_balance(toy):
    data = cell_data(toy, (1, 3), seed=0)  # 28 anomalous, 8 normal
    assert data.anomalous[data.balanced].sum() == 8 and len(data.balanced) == 16


def test_limit_touches_training_only(toy):
    data = cell_data(toy, (0,), seed=0, limit=2)
    assert data.train_images[:, 0, 0].tolist() == [9, 10, 18, 19, 27, 28]
    assert len(data.test_images) == 36
    with pytest.raises(InputError, match="limit"):
        cell_data(toy, (0,), seed=0, limit=1)


def test_held_out_by_name_number_or_list(toy):
    assert held_out_classes(toy, "b") == (1,)
    assert held_out_classes(toy, "3,0,3") == (0, 3)
    with pytest.raises(DataError, match="'z'"):
        held_out_classes(toy, "z")
    with pytest.raises(InputError, match="nothing is left"):
        held_out_classes(toy, "a,b,c,d")


def test_mock_tests_are_of_training_images_alone(toy):
    mock = mock_dataset(toy)
    assert mock.test.images[:, 0, 0].tolist() == [0, 6, 12, 18, 24, 30]
    assert sorted([*mock.train.images[:, 0, 0], *mock.test.images[:, 0, 0]]) == [*range(36)]


def test_mock_tests_show_objects_that_training_does_not(toy):
    objects = np.tile([4, 6, 9], 12)
    objects[:9] = np.tile([0, 1, 2], 3)  # the first class counts otherwise
    known = replace(toy, train=replace(toy.train, objects=objects))
    mock = mock_dataset(known)
    assert mock.test.images[:, 0, 0].tolist() == [*range(2, 36, 3)]
    assert set(mock.train.images[:, 0, 0]) == set(range(36)) - set(range(2, 36, 3))
    assert set(mock.test.labels) == set(mock.train.labels) == {0, 1, 2, 3}


def test_only_the_balanced_set_may_be_scored(toy):
    whole = cell_data(toy, (1,), 0)
    part = balanced_part(whole)
    np.testing.assert_array_equal(part.test_images, whole.test_images[whole.balanced])
    np.testing.assert_array_equal(part.anomalous, whole.anomalous[whole.balanced])
    np.testing.assert_array_equal(part.numbers[part.balanced], whole.balanced)
