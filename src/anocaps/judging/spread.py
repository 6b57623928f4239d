"""Confidence intervals for the model card, from the number of images alone. No SciPy."""

from collections.abc import Callable
from math import exp, floor, lgamma, log, log1p, sqrt

_ERRORS = 1.96  # standard errors on each side of a 95 % interval


def auroc_range(auroc: float, anomalous: int, normal: int) -> tuple[float, float]:
    """An approximate 95 % interval of an AUROC, from the numbers of images.

    Like Wilson's interval of a proportion, it contains every true value whose distance from `auroc`
    is at most 1.96 of its own standard errors (Hanley and McNeil, 1982). It is therefore not empty
    for an AUROC of 1. As Newcombe (2006) proposes, the error uses the mean of both numbers of
    images. Otherwise the interval would be too narrow for very unequal numbers.
    """
    others = (anomalous + normal) / 2 - 1

    def error(true: float) -> float:
        pairs = 1 + others * ((1 - true) / (2 - true) + true / (1 + true))  # with a common image
        return sqrt(true * (1 - true) * pairs / (anomalous * normal))

    low = _first_where(lambda true: auroc - true < _ERRORS * error(true), 0.0, auroc)
    high = _first_where(lambda true: true - auroc > _ERRORS * error(true), auroc, 1.0)
    return low, high


def share_range(count: int, images: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, from `count` of `images` images."""
    share, weight = count / images, _ERRORS**2 / images
    middle = (share + weight / 2) / (1 + weight)
    half = sqrt(share * (1 - share) * weight + weight**2 / 4) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


def rate_range(alpha: float, images: int) -> tuple[float, float]:
    """The 90 % interval of the false-alarm rate at `alpha`, over draws of n calibration images.

    A normal image is a false alarm if it scores below the k-th lowest of n calibration scores,
    where k = ⌊alpha (n + 1)⌋. The rate is below r if at least k of these scores are in the lowest
    share r of all normal scores. It therefore has the distribution Beta(k, n + 1 − k).
    """
    k = floor(alpha * (images + 1) + 1e-9)

    def fewer(r: float) -> float:
        """The binomial probability that fewer than k scores are in the lowest share r."""
        logs = (
            lgamma(images + 1) - lgamma(j + 1) - lgamma(images - j + 1)
            + j * log(r) + (images - j) * log1p(-r)
            for j in range(k)
        )  # fmt: skip
        return sum(map(exp, logs))

    low = _first_where(lambda r: fewer(r) < 0.95, 0.0, 1.0)
    return low, _first_where(lambda r: fewer(r) < 0.05, 0.0, 1.0)


def _first_where(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest value from `low` to `high` for which the condition holds, by bisection."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
