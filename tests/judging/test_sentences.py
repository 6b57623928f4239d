"""The sentence under an image follows from which of its scores is odd."""

import numpy as np
import pytest

from anocaps.judging.calibration import p_values
from anocaps.judging.sentences import describe, more_anomalous_than, sentence_of


@pytest.mark.parametrize(
    ("odder", "odder_pp", "odder_re", "expected"),
    [
        (
            0.992,
            0.4,
            0.999,
            "looks like 4, but redrawn worse than 99 in 100 normal images: "
            "odder than 99.2 % of normal images",
        ),
        (
            0.123,
            0.2,
            0.1,
            "looks like 4, and redrawn well: odder than only 12.3 % of normal images",
        ),
        (0.70, 0.6, 0.8, "looks like 4, and redrawn as usual: odder than 70.0 % of normal images"),
        (
            0.96,
            0.94,
            0.89,
            "looks like 4, and redrawn as usual, but both only just: "
            "odder than 96.0 % of normal images",
        ),
        (
            0.96,
            0.94,
            0.94,
            "looks like 4, but redrawn worse than 9 in 10 normal images: "
            "odder than 96.0 % of normal images",
        ),
        (
            0.98,
            0.99,
            0.3,
            "does not look like any known class, closest is 4, though redrawn well: "
            "odder than 98.0 % of normal images",
        ),
        (
            0.98,
            0.99,
            0.95,
            "does not look like any known class, closest is 4, and redrawn worse than 19 in 20 "
            "normal images: odder than 98.0 % of normal images",
        ),
        (
            1.0,
            0.95,
            1.0,
            "does not look like any known class, closest is 4, and redrawn badly: "
            "odder than all normal images",
        ),
        (0.0, 0.0, 0.0, "looks like 4, and redrawn well: odder than none of the normal images"),
    ],
)
def test_each_case(odder: float, odder_pp: float, odder_re: float, expected: str) -> None:
    assert describe("4", odder, odder_pp, odder_re) == expected


def test_rounding_never_claims_all_or_none() -> None:
    assert "99.9 %" in describe("4", 0.99999, 1.0, 1.0)
    assert "only 0.1 %" in describe("4", 0.00001, 0.0, 0.0)


def test_an_odd_score_is_never_called_only() -> None:
    assert describe("boot", 0.3, 0.1, 0.97).endswith("odder than 30.0 % of normal images")


# ── from p-values ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 20, 99, 4999])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_p_value_says_exactly_how_many_score_higher(size: int, kind: type) -> None:
    calibration = np.arange(size)
    scores = np.unique([-1, 0, size // 2, size - 1, size])
    found = p_values(scores, calibration).astype(kind)
    higher = [(calibration > score).mean() for score in scores]
    assert [more_anomalous_than(p, size) for p in found] == higher
    assert higher[0] == 1 and higher[-1] == 0


@pytest.mark.parametrize(
    ("looks_like", "p_value", "p_values", "expected"),
    [
        (
            "cup",
            0.01,
            {"pp": 0.6, "re": 0.01},
            "looks like cup, but redrawn badly: odder than every one of the 99 calibration images",
        ),
        (
            "cup",
            0.02,
            {"pp": 0.6, "re": 0.02},
            "looks like cup, but redrawn worse than 19 in 20 normal images: odder than 99.0 % of "
            "normal images",
        ),
        ("cup", 0.1, {"re": 0.1}, "closest is cup: odder than 90.9 % of normal images"),
        ("cup", 0.01, {}, "closest is cup: odder than every one of the 99 calibration images"),
        ("", 0.1, {}, "odder than 90.9 % of normal images"),
        ("", 1.0, {}, "odder than none of the normal images"),
        (
            "cup",
            0.04,
            {"knn": 0.04},
            "lies far from all normal images, closest is cup: odder than 97.0 % of normal images",
        ),
        ("cup", 0.1, {"knn": 0.1}, "closest is cup: odder than 90.9 % of normal images"),
        (
            "",
            0.01,
            {"knn": 0.01},
            "lies far from all normal images: odder than every one of the 99 calibration images",
        ),
        ("cup", float("nan"), {}, "closest is cup"),
        ("", float("nan"), {}, ""),
    ],
)
def test_sentences(looks_like: str, p_value: float, p_values: dict, expected: str) -> None:
    assert sentence_of(looks_like, p_value, p_values, 99) == expected


def test_the_smallest_p_value_of_many_images() -> None:
    assert sentence_of("cup", 1 / 5001, {}, 5000).endswith(
        "every one of the 5,000 calibration images"
    )
