"""Confidence intervals from the number of images alone, without SciPy, for the model card."""

from collections.abc import Callable
from math import exp, floor, lgamma, log, log1p, sqrt

_ERRORS = 1.96  # standard errors to each side of a 95 % interval


def auroc_range(auroc: float, anomalous: int, normal: int) -> tuple[float, float]:
    """An approximate 95 % interval of an AUROC, from the numbers of images.

    The interval holds every true value within 1.96 of its own standard errors (Hanley and McNeil,
    1982) of `auroc`, as in Wilson's interval of a proportion. So it is not empty for an AUROC of 1.
    As Newcombe (2006) proposes, the error uses the mean of both numbers of images: with very
    unequal numbers the interval would be too narrow otherwise.
    """
    others = (anomalous + normal) / 2 - 1

    def error(true: float) -> float:
        pairs = 1 + others * ((1 - true) / (2 - true) + true / (1 + true))  # that share an image
        return sqrt(true * (1 - true) * pairs / (anomalous * normal))

    low = _first_where(lambda true: auroc - true < _ERRORS * error(true), 0.0, auroc)
    high = _first_where(lambda true: true - auroc > _ERRORS * error(true), auroc, 1.0)
    return low, high


def share_range(count: int, images: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of which `count` of `images` images were seen."""
    share, weight = count / images, _ERRORS**2 / images
    middle = (share + weight / 2) / (1 + weight)
    half = sqrt(share * (1 - share) * weight + weight**2 / 4) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


def rate_range(alpha: float, images: int) -> tuple[float, float]:
    """The 90 % interval of the false-alarm rate at `alpha`, over draws of n calibration images.

    A normal image is a false alarm if it scores below the k-th lowest of n scores, where
    k = ⌊alpha (n + 1)⌋. So the rate has the distribution Beta(k, n + 1 − k): it is below r if at
    least k of the n scores are in the lowest share r of all normal scores.
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
    """The smallest value between `low` and `high` for which the condition holds, by bisection."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
