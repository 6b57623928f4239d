"""The sentence under an image follows from the places of its scores."""

import numpy as np
import pytest

from anocaps.judging.calibration import p_values
from anocaps.judging.sentences import describe, sentence_of, share_above

KNOWN, UNKNOWN = "looks like 4", "does not look like any known class, closest is 4"


@pytest.mark.parametrize(
    ("above", "above_pp", "above_re", "kind", "quality", "share"),
    [
        (0.992, 0.4, 0.999, KNOWN, "but reconstructed worse than 99 in 100", "99.2 %"),
        (0.123, 0.2, 0.1, KNOWN, "and reconstructed well", "only 12.3 %"),
        (0.70, 0.6, 0.8, KNOWN, "and reconstructed as usual", "70.0 %"),
        (0.96, 0.94, 0.89, KNOWN, "reconstructed as usual, but both only just", "96.0 %"),
        (0.96, 0.94, 0.94, KNOWN, "but reconstructed worse than 9 in 10", "96.0 %"),
        (0.98, 0.99, 0.3, UNKNOWN, "though reconstructed well", "98.0 %"),
        (0.98, 0.99, 0.95, UNKNOWN, "and reconstructed worse than 19 in 20", "98.0 %"),
        (1.0, 0.95, 1.0, UNKNOWN, "and reconstructed badly", "all normal images"),
        (0.0, 0.0, 0.0, KNOWN, "and reconstructed well", "none of the normal images"),
        (0.99999, 1.0, 1.0, UNKNOWN, "badly", "than 99.9 %"),  # rounding never claims all or none
        (0.00001, 0.0, 0.0, KNOWN, "well", "only 0.1 %"),
        (0.3, 0.1, 0.97, KNOWN, "19 in 20", "than 30.0 %"),  # a bad score is never called "only"
    ],
)
def test_each_case(above, above_pp, above_re, kind, quality, share):
    said = describe("4", above, above_pp, above_re)
    assert said.startswith(kind) and quality in said and share in said


@pytest.mark.parametrize("size", [1, 20, 99, 4999])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_p_value_says_exactly_how_many_score_higher(size, kind):
    calibration = np.arange(size)
    scores = np.unique([-1, 0, size // 2, size - 1, size])
    found = p_values(scores, calibration).astype(kind)
    higher = [(calibration > score).mean() for score in scores]
    assert [share_above(p, size) for p in found] == higher
    assert higher[0] == 1 and higher[-1] == 0


@pytest.mark.parametrize(
    ("looks_like", "p_value", "p_values", "begins", "ends"),
    [
        ("cup", 0.01, {"pp": 0.6, "re": 0.01}, "looks like cup, but", "the 99 calibration images"),
        ("cup", 0.02, {"pp": 0.6, "re": 0.02}, "looks like cup, but", "99.0 % of normal images"),
        ("cup", 0.1, {"re": 0.1}, "closest is cup: more", "90.9 % of normal images"),
        ("", 0.1, {}, "more anomalous than", "90.9 % of normal images"),
        ("", 1.0, {}, "more anomalous than", "none of the normal images"),
        ("cup", 0.04, {"knn": 0.04}, "lies far from all normal", "97.0 % of normal images"),
        ("cup", 0.1, {"knn": 0.1}, "closest is cup: more", "90.9 % of normal images"),
        ("", 0.01, {"knn": 0.01}, "lies far from all normal images: more", "calibration images"),
        ("cup", float("nan"), {}, "closest is cup", "closest is cup"),
        ("", float("nan"), {}, "", ""),
    ],
)  # fmt: skip
def test_sentences(looks_like, p_value, p_values, begins, ends):
    said = sentence_of(looks_like, p_value, p_values, 99)
    assert said.startswith(begins) and said.endswith(ends) and bool(said) == bool(begins)
