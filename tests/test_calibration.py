import numpy as np
import pytest

from anocaps.calibration import check_alpha, p_values, split
from anocaps.errors import InputError


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


@pytest.mark.parametrize(("alpha", "match"), [(0, "between"), (1.0, "between"), (0.01, "99")])
def test_alpha_that_cannot_be(alpha, match):
    with pytest.raises(InputError, match=match):
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
