"""The sentence under an image follows from which of its scores is odd."""

import pytest

from anocaps.report.sentences import describe


@pytest.mark.parametrize(
    ("odder", "odder_pp", "odder_re", "expected"),
    [
        (0.992, 0.4, 0.999, "looks like 4, but redrawn badly: odder than 99.2 % of normal images"),
        (
            0.123,
            0.2,
            0.1,
            "looks like 4, and redrawn well: odder than only 12.3 % of normal images",
        ),
        (
            0.70,
            0.6,
            0.8,
            "looks like 4, and redrawn fairly well: odder than 70.0 % of normal images",
        ),
        (
            0.96,
            0.94,
            0.94,
            "looks like 4, and redrawn fairly well, but both only just: "
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
            1.0,
            0.95,
            0.95,
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
