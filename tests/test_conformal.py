"""benchmarks/conformal.py: the false-alarm rate on real normal images, and on others."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from real_data import real

from anocaps.data.dataset import Split

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
QUICK = {"preset": "quick", "score": "knn", "epochs": 1, "device": "cpu"}


@pytest.fixture
def conformal(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import conformal

    return conformal


def assert_kept(found):
    rows = found["resplits"]
    assert [row["alpha"] for row in rows] == [0.01, 0.05, 0.1]
    for row in rows:
        assert row["splits"] == 200
        assert row["mean_within"] and row["variance_within"], row


def test_the_rate_is_kept_on_digits(conformal, monkeypatch, tmp_path, capsys):
    out = tmp_path / "conformal.json"
    out.write_text('{"other": 1}')
    words = ("--dataset", "digits", "--epochs", "1", "--out", str(out))
    monkeypatch.setattr(sys, "argv", ["conformal.py", *words])
    conformal.main()
    stored = json.loads(out.read_text())
    assert stored["other"] == 1
    assert_kept(stored["digits"])
    once = stored["digits"]["calibrated_once"]
    assert once["test_images"] == 898 and 0.02 < once["rates"]["0.1"] < 0.25
    assert capsys.readouterr().out.count("mean_within") == 3


@pytest.mark.parametrize("name", ["fashion-mnist"])
def test_the_rate_is_kept_on_real_images(conformal, name):
    data = real(name)
    few = Split(data.test.images[:3000], data.test.labels[:3000])
    data = type(data)(**(vars(data) | {"test": few}))
    assert_kept(conformal.measured(data, QUICK, limit=100))


def test_rates_that_are_not_kept_are_told(conformal):
    generator = np.random.default_rng(0)
    scores = generator.normal(size=2000)
    assert all(row["mean_within"] and row["variance_within"] for row in conformal.resplits(scores))

    def rows(rates):
        return conformal.row(0.05, tuple(rates), 999, 1000)

    law = generator.beta(50, 950, 200)
    kept = rows(generator.binomial(1000, law) / 1000)
    assert kept["mean_within"] and kept["variance_within"] and kept["expected"] == 0.05
    assert not rows(generator.binomial(1000, law + 0.01) / 1000)["mean_within"]
    assert not rows(generator.binomial(1000, law - 0.01) / 1000)["mean_within"]
    assert not rows(generator.binomial(1000, 0.05, 200) / 1000)["variance_within"]


def test_the_spread_is_that_of_the_formula(conformal):
    """Against moments counted by hand: every split of 7 scores into 3 and 4."""
    from itertools import combinations

    rates = []
    for kept in combinations(range(7), 3):
        rest = np.array([score for score in range(7) if score not in kept])
        rates.append(np.mean(rest < sorted(kept)[0]))  # alpha 0.25: below the lowest of three
    row = conformal.row(0.25, tuple(rates), 3, 4)
    assert np.mean(rates) == pytest.approx(row["expected"]) == 0.25
    assert np.var(rates) == pytest.approx(row["beta_binomial"])
    fourth = np.mean((np.array(rates) - 0.25) ** 4) / np.var(rates) ** 2
    assert row["ratio_error"] == pytest.approx(((fourth - 1) / len(rates)) ** 0.5, abs=1e-4)
    many = conformal.row(0.05, (0.05, 0.06), 1000, 50_000)  # numbers that overflow in a hurry
    assert 0.9 < many["ratio_error"] < 1.1
