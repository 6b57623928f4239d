"""Calibration: exact p-values, thresholds, and the guarantee of the false-alarm rate."""

import numpy as np
import pytest

from anocaps.base.errors import InputError
from anocaps.judging.calibration import (
    check_alpha,
    class_p_values,
    needed_for,
    p_values,
    rounded_up,
    share_for,
    smallest_alpha,
    split,
    threshold,
)


def test_p_values_by_hand_with_ties():
    got = p_values([0.0, 1.0, 2.0, 3.5], [3.0, 1.0, 2.0, 2.0])
    assert got.tolist() == [1 / 5, 2 / 5, 4 / 5, 5 / 5]


def test_false_alarms_stay_at_alpha():
    """Over many draws the mean false-alarm rate of exchangeable scores is floor(α(n+1))/(n+1)."""
    generator = np.random.default_rng(0)
    rates = []
    for _ in range(400):
        scores = generator.normal(size=99 + 50)
        rates.append(np.mean(p_values(scores[99:], scores[:99]) <= 0.1))
    error = 3 * np.std(rates) / np.sqrt(len(rates))
    assert abs(np.mean(rates) - 0.1) < error


@pytest.mark.parametrize("alpha", [0, 1.0, np.float32(np.nan), np.int64(1), 0.01])
def test_an_impossible_alpha_is_refused(alpha):
    check_alpha(np.float16(0.05), 50)
    with pytest.raises(InputError):
        check_alpha(alpha, 50)


def test_split_takes_its_share_of_each_class():
    labels = np.repeat([0, 1, 2], [100, 40, 10])
    training, kept = split(labels, 0.1, seed=5)
    assert np.bincount(labels[kept]).tolist() == [10, 4, 1]
    assert sorted([*training, *kept]) == list(range(150))
    again = split(labels, 0.1, seed=5)[1]
    assert kept.tolist() == again.tolist()
    assert kept.tolist() != split(labels, 0.1, seed=6)[1].tolist()
    assert len(split(labels, 0.0, seed=5)[1]) == 0
    assert np.bincount(labels[split(labels, 0.99, seed=5)[0]]).tolist() == [1, 1, 1]


def test_nan_is_the_lowest_score():
    nan, inf = float("nan"), float("inf")
    assert p_values([nan, -inf, 0.0, inf], [1.0, 2.0, 3.0]).tolist() == [0.25, 0.25, 0.25, 1.0]
    assert p_values([nan, 0.0], [nan, 1.0, 2.0]).tolist() == [0.5, 0.5]
    assert class_p_values([nan], [0], np.arange(20.0), np.zeros(20)).tolist() == [1 / 21]


def test_p_values_within_a_class():
    calibration = np.arange(60.0)
    classes = np.repeat([0, 1, 2], [20, 21, 19])
    got = class_p_values([-1.0, 30.0, 50.0, 30.0, 5.0], [0, 1, 2, 0, 7], calibration, classes)
    want = [1 / 21, (1 + 11) / 22, np.nan, 21 / 21, np.nan]  # class 2 has 19, class 7 none
    np.testing.assert_allclose(got, want)


def test_class_p_values_are_valid_given_the_prediction():
    """In each class, the p-values of a share alpha of its images are at most alpha."""
    generator = np.random.default_rng(0)
    false_alarms = {0: [], 1: []}
    for _ in range(400):
        classes = generator.integers(0, 2, 120)
        scores = generator.normal(loc=5 * classes, scale=1 + classes)
        p = class_p_values(scores[80:], classes[80:], scores[:80], classes[:80])
        for each in (0, 1):
            false_alarms[each].append(np.mean(p[classes[80:] == each] <= 0.1))
    for rates in false_alarms.values():
        error = 3 * np.std(rates) / np.sqrt(len(rates))
        assert 0.07 < np.mean(rates) < 0.1 + error


@pytest.mark.parametrize("size", [1, 7, 19, 20, 99, 300])
def test_the_threshold_and_the_p_values_agree(size):
    generator = np.random.default_rng(size)
    calibration = generator.integers(0, size, size).astype(float)
    scores = np.arange(-1.0, size + 2)
    for alpha in (0.05, 0.1, 0.29, 0.5, 0.999):
        if alpha >= smallest_alpha(size):
            flagged = p_values(scores, calibration) <= alpha
            np.testing.assert_array_equal(scores < threshold(calibration, alpha), flagged)
        else:
            with pytest.raises(InputError):
                threshold(calibration, alpha)


def test_the_images_needed_for_an_alpha():
    for alpha, images in ((0.05, 19), (0.01, 99), (0.001, 999), (0.07, 14), (0.3, 3)):
        assert needed_for(alpha) == images
        check_alpha(alpha, images)
        with pytest.raises(InputError, match=str(images)):
            check_alpha(alpha, images - 1)
    for images in (1, 9, 10, 20, 123, 5000, 10_000):
        check_alpha(rounded_up(smallest_alpha(images)), images)
    assert rounded_up(1 / 11) == 0.091 and rounded_up(1 / 20) == 0.05


@pytest.mark.parametrize("alpha", [5e-324, 1e-320, 1e-300, 1e-10, 0, 1, float("nan")])
def test_an_alpha_that_no_calibration_set_allows(alpha):
    with pytest.raises(InputError) as refused:
        check_alpha(alpha, 100)
    assert len(str(refused.value)) < 120


def test_the_default_share_makes_common_alphas_usable():
    assert [share_for(n) for n in (20, 56, 57, 76, 100, 500, 1000, 50_000, 10**5)] == [
        0.2, 0.2, 1 / 3, 0.25, 0.2, 0.2, 0.1, 0.1, 0.05,
    ]  # fmt: skip
    for images, alpha in ((57, 0.05), (91, 0.05), (95, 0.05), (500, 0.01), (1000, 0.01)):
        labels = np.arange(images) % 5
        for seed in range(5):
            check_alpha(alpha, len(split(labels, share_for(images), seed)[1]))


def test_every_image_is_kept_with_the_same_chance():
    """Also in classes too small for one whole image."""
    labels = np.repeat([0, 1, 2, 3], [50, 5, 3, 12])
    kept = np.zeros(len(labels))
    for seed in range(1000):
        training, chosen = split(labels, 0.1, seed)
        kept[chosen] += 1
        assert len(chosen) == 7
        assert set(labels[training]) == {0, 1, 2, 3}
    assert abs(kept / 1000 - 0.1).max() < 5 * np.sqrt(0.09 / 1000)
    many = np.repeat(np.arange(40), 5)  # 40 classes of 5: half an image of each
    assert len(split(many, 0.1, 0)[1]) == 20


def test_another_purpose_is_another_draw():
    labels = np.zeros(100, dtype=np.int64)
    assert split(labels, 0.1, 0)[1].tolist() != split(labels, 0.1, 0, purpose=1)[1].tolist()


def test_copies_stay_on_one_side_of_the_split():
    labels = np.repeat([0, 1], 60)
    copies = np.arange(120) // 4
    training, kept = split(labels, 0.2, seed=0, copies=copies)
    assert not set(copies[training]) & set(copies[kept])
    assert 12 <= len(kept) <= 36 and len(training) + len(kept) == 120
    alone = split(labels, 0.2, seed=0, copies=np.arange(120))
    for with_numbers, without in zip(alone, split(labels, 0.2, seed=0)):
        np.testing.assert_array_equal(with_numbers, without)
