"""Metrics against hand-computed cases and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from anocaps.base.errors import InputError
from anocaps.judging.metrics import aupr, auroc, auroc_interval, fpr95, measure, roc_curve

# Sorted: 1a 2a 2n 3a 3n 3n 4n — of 12 pairs 8 are won, 3 tied, 1 lost.
NORMAL = [2.0, 3.0, 3.0, 4.0]
ANOMALOUS = [1.0, 2.0, 3.0]


def test_auroc_with_ties_by_hand() -> None:
    # 2 beats 1 and ties 2: 1.5; 3 beats 1, 2 and ties 3: 2.5, twice; 4 beats all: 3
    assert auroc(NORMAL, ANOMALOUS) == pytest.approx(9.5 / 12, abs=1e-15)


def test_roc_curve_with_ties_by_hand() -> None:
    false_alarm, detected = roc_curve(NORMAL, ANOMALOUS)
    np.testing.assert_allclose(false_alarm, [0, 0, 1 / 4, 3 / 4, 1])
    np.testing.assert_allclose(detected, [0, 1 / 3, 2 / 3, 1, 1])


def test_aupr_with_ties_by_hand() -> None:
    # precision 1/1, 2/3, 3/6 at recall 1/3, 2/3, 1
    assert aupr(NORMAL, ANOMALOUS) == pytest.approx((1 + 2 / 3 + 1 / 2) / 3)


def test_fpr95_by_hand() -> None:
    normal = np.arange(20.0)  # 19 of 20 are accepted from 1 up
    assert fpr95(normal, [-1.0, 0.0, 0.5, 1.0]) == 0.25
    assert fpr95(normal, [0.0, 0.5]) == 0.0
    assert fpr95(np.arange(19.0), [-1.0, 0.0]) == 0.5  # 18 of 19 are under 95 %: all accepted
    assert fpr95(NORMAL, ANOMALOUS) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("normal", "anomalous", "area", "accepted"),
    [
        ([3.0, 4.0], [1.0, 2.0], 1.0, 0.0),
        ([1.0, 2.0], [3.0, 4.0], 0.0, 1.0),
        ([1.0, 1.0], [1.0], 0.5, 1.0),
        ([np.inf], [-np.inf, 0.0], 1.0, 0.0),
    ],
    ids=["perfect", "reversed", "constant", "infinite"],
)
def test_degenerate_cases(normal, anomalous, area, accepted) -> None:
    figures = measure(normal, anomalous)
    assert (figures.auroc, figures.auroc_low, figures.auroc_high) == (area, area, area)
    assert figures.fpr95 == accepted
    if area == 1.0:
        assert figures.aupr == 1.0


@pytest.mark.parametrize("levels", [3, 20, None])
@pytest.mark.parametrize("seed", range(2))
def test_agrees_with_sklearn(levels: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    normal, anomalous = rng.normal(0.5, 1, 137), rng.normal(0, 1.5, 61)
    if levels is not None:
        normal, anomalous = np.round(normal * levels / 6), np.round(anomalous * levels / 6)
    is_anomaly = np.r_[np.zeros(137), np.ones(61)]
    badness = -np.r_[normal, anomalous]
    assert auroc(normal, anomalous) == pytest.approx(roc_auc_score(is_anomaly, badness), abs=1e-12)
    assert aupr(normal, anomalous) == pytest.approx(
        average_precision_score(is_anomaly, badness), abs=1e-12
    )
    false_alarm, detected, _ = sklearn_roc_curve(is_anomaly, badness, drop_intermediate=False)
    np.testing.assert_allclose(roc_curve(normal, anomalous), (false_alarm, detected))
    area = np.trapezoid(*reversed(roc_curve(normal, anomalous)))
    assert auroc(normal, anomalous) == pytest.approx(area, abs=1e-12)


def test_interval_contains_the_estimate_and_narrows() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for count in (50, 500, 2500):
        normal, anomalous = rng.normal(1, 1, count), rng.normal(0, 1, count)
        low, high = auroc_interval(normal, anomalous, resamples=300)
        assert 0 <= low < auroc(normal, anomalous) < high <= 1
        widths.append(high - low)
    assert widths[0] > 2 * widths[1] > 3 * widths[2]


def test_interval_agrees_with_plain_resampling() -> None:
    rng = np.random.default_rng(1)
    normal, anomalous = np.round(rng.normal(1, 1, 60), 1), np.round(rng.normal(0, 1, 40), 1)
    plain = [auroc(rng.choice(normal, 60), rng.choice(anomalous, 40)) for _ in range(4000)]
    interval = auroc_interval(normal, anomalous, resamples=4000)
    np.testing.assert_allclose(interval, np.quantile(plain, [0.025, 0.975]), atol=0.008)


@pytest.mark.parametrize(
    ("normal", "anomalous", "culprit"),
    [
        ([], [1.0], "normal"),
        ([1.0], [], "anomalous"),
        ([np.nan, 1.0], [1.0], "normal"),
        ([1.0], [2.0, np.nan], "anomalous"),
        ([[1.0]], [1.0], "normal"),
    ],
)
def test_unusable_scores_are_refused(normal, anomalous, culprit) -> None:
    for function in (auroc, roc_curve, aupr, fpr95, auroc_interval, measure):
        with pytest.raises(InputError, match=culprit):
            function(normal, anomalous)
