"""The uncertainty of rates and AUROCs from few images, against SciPy and simulation."""

import numpy as np
import pytest
from scipy.stats import beta, binomtest, norm

from anocaps.judging.metrics import auroc, auroc_interval
from anocaps.judging.spread import auroc_range, rate_range, share_range


@pytest.mark.parametrize(
    ("alpha", "images"), [(0.05, 19), (0.05, 20), (0.05, 100), (0.091, 10), (0.05, 5000), (0.5, 7)]
)
def test_the_rate_is_beta_distributed(alpha, images):
    k = int(np.sum(np.arange(1, images + 1) / (images + 1) <= alpha))  # p-values that alarm
    wanted = beta(k, images + 1 - k).ppf([0.05, 0.95])
    assert rate_range(alpha, images) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("true", [0.6, 0.9, 0.99])
def test_the_range_contains_the_true_auroc_19_times_in_20(true):
    generator = np.random.default_rng(0)
    anomalous, normal, held = 12, 14, 0
    for _ in range(500):
        high_scores = generator.normal(norm.ppf(true) * 2**0.5, 1, normal)
        scores = high_scores, generator.normal(size=anomalous)
        low, high = auroc_range(auroc(*scores), anomalous, normal)
        held += low <= true <= high
    assert 0.93 < held / 500 < 0.99


def test_with_many_images_the_range_is_that_of_the_bootstrap():
    generator = np.random.default_rng(0)
    scores = generator.normal(1.5, 1, 1000), generator.normal(size=1000)
    found = auroc_range(auroc(*scores), 1000, 1000)
    assert found == pytest.approx(auroc_interval(*scores), abs=0.005)


def test_few_images_do_not_prove_a_perfect_auroc():
    low, high = auroc_range(1.0, 12, 14)
    assert 0.8 < low < 0.88 and high == 1
    assert auroc_range(0.0, 14, 12) == pytest.approx((0, 1 - low), abs=0.05)
    assert auroc_range(1.0, 1000, 1000)[0] > 0.99


@pytest.mark.parametrize(("count", "images"), [(0, 10), (3, 10), (52, 52), (17, 1000)])
def test_the_range_of_a_share_is_wilsons(count, images):
    wanted = binomtest(count, images).proportion_ci(0.95, method="wilson")
    assert share_range(count, images) == pytest.approx((wanted.low, wanted.high), abs=1e-4)
