"""Metrics against hand-computed cases and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from anocaps.base.errors import InputError
from anocaps.judging.metrics import aupr, auroc, auroc_interval, fpr95, measure, roc_curve


def test_fpr95_by_hand() -> None:
    normal = np.arange(20.0)  # 19 of 20 are accepted from 1 up
    assert fpr95(normal, [-1.0, 0.0, 0.5, 1.0]) == 0.25
    assert fpr95(normal, [0.0, 0.5]) == 0.0
    assert fpr95(np.arange(19.0), [-1.0, 0.0]) == 0.5  # 18 of 19 are under 95 %: all accepted
    assert fpr95([2.0, 3.0, 3.0, 4.0], [1.0, 2.0, 3.0]) == pytest.approx(2 / 3)


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
