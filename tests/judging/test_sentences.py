"""The sentence about an image names its class and how many normal images score higher."""

import numpy as np
import pytest

from anocaps.judging.calibration import p_values
from anocaps.judging.sentences import describe, sentence_of, share_above


@pytest.mark.parametrize(
    ("above", "above_pp", "above_re", "share"),
    [
        (0.992, 0.4, 0.999, "99.2 %"),
        (0.123, 0.2, 0.1, "12.3 %"),
        (0.99999, 1.0, 1.0, "99.9 %"),  # rounding never claims all or none
        (0.00001, 0.0, 0.0, "0.1 %"),
        (1.0, 0.95, 1.0, "all normal images"),
        (0.0, 0.0, 0.0, "none of the normal images"),
    ],
)
def test_the_share_of_normal_images_that_score_higher(above, above_pp, above_re, share):
    said = describe("4", above, above_pp, above_re)
    assert share in said and "4" in said


def test_a_low_class_score_and_a_low_reconstruction_score_are_told_apart():
    said = {(pp, re): describe("4", 0.98, pp, re) for pp in (0.4, 0.99) for re in (0.3, 0.999)}
    assert len(set(said.values())) == 4


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
    ("looks_like", "p_value", "p_values", "part"),
    [
        ("cup", 0.01, {"pp": 0.6, "re": 0.01}, "the 99 calibration images"),
        ("cup", 0.02, {"pp": 0.6, "re": 0.02}, "99.0 %"),
        ("cup", 0.1, {"re": 0.1}, "90.9 %"),
        ("", 0.1, {}, "90.9 %"),
        ("cup", 0.04, {"knn": 0.04}, "97.0 %"),
        ("cup", float("nan"), {}, "cup"),
        ("", float("nan"), {}, ""),
    ],
)
def test_sentences(looks_like, p_value, p_values, part):
    said = sentence_of(looks_like, p_value, p_values, 99)
    assert part in said and looks_like in said and bool(said) == bool(part)
