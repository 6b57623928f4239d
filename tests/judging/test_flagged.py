"""Far more flagged images than alpha: the exact tail, against SciPy and simulation."""

import numpy as np
import pytest
from scipy.stats import betabinom, binom

from anocaps.judging.calibration import p_values
from anocaps.judging.flagged import (
    FAR,
    Recent,
    chance_of,
    far_more,
    limit_of,
    many_flagged,
    rolling_share,
)


@pytest.mark.parametrize(("alpha", "n"), [(0.05, 19), (0.05, 100), (0.01, 99), (0.1, 5000)])
@pytest.mark.parametrize("images", [1, 40, 3000])
def test_the_chance_is_that_of_a_beta_binomial(alpha, n, images):
    k = int(np.sum(np.arange(1, n + 1) / (n + 1) <= alpha))  # p-values that alarm
    for flagged in {0, 1, images // 10, images // 3, images}:
        wanted = betabinom(images, k, n + 1 - k).sf(flagged - 1)
        assert chance_of(flagged, images, alpha, n) == pytest.approx(wanted, rel=1e-6, abs=1e-10)


def test_with_many_calibration_images_it_is_the_binomial_test():
    wanted = binom(200, 0.05).sf(19)
    assert chance_of(20, 200, 0.05, 10**6 - 1) == pytest.approx(wanted, rel=0.02)


def test_normal_images_are_hardly_ever_far_more():
    """Also where a small calibration set gives a rate well above alpha."""
    generator = np.random.default_rng(0)
    runs = [
        int((p_values(generator.normal(size=500), generator.normal(size=40)) <= 0.05).sum())
        for _ in range(2000)
    ]
    assert np.mean([far_more(flagged, 500, 0.05, 40) for flagged in runs]) < 3 * FAR
    assert np.mean([binom(500, 0.05).sf(flagged - 1) < FAR for flagged in runs]) > 0.1


def test_a_sentence_only_where_there_are_far_more():
    assert many_flagged(6, 100, 0.05, 99) == ""
    assert many_flagged(50, 100, 0.05, 0) == ""
    assert "50 of 100" in many_flagged(50, 100, 0.05, 99)


def test_ten_million_images_take_no_time():
    assert chance_of(5_000_000, 10**7, 0.05, 5000) < 1e-100
    assert chance_of(400_000, 10**7, 0.05, 5000) > 0.99


def test_the_rolling_share():
    found = rolling_share([True, False, False, True, True], window=2)
    assert found.tolist() == [0.5, 0, 0.5, 1]
    assert rolling_share([True, False], window=100).tolist() == [0.5]
    assert rolling_share([]).tolist() == []


def test_the_limit_is_the_first_share_that_is_far_more():
    limit = limit_of(100, 0.05, 500)
    assert far_more(round(100 * limit), 100, 0.05, 500)
    assert not far_more(round(100 * limit) - 1, 100, 0.05, 500)
    assert limit_of(1, 0.05, 99) > 1


def test_the_last_images_are_warned_of_once_until_it_has_passed():
    recent = Recent(0.05, 99, window=20)
    assert recent.add([False] * 50) == ""
    assert "10 of the last 20" in recent.add([True] * 10)
    assert recent.add([True] * 5) == ""
    assert recent.add([False] * 20) == ""
    assert recent.add([True] * 12) != ""
