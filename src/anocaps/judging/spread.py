"""How far a figure that comes from few images may be off, from the numbers of images alone.

For the model card, which is read where neither SciPy nor the images are.
"""

from collections.abc import Callable
from math import exp, floor, lgamma, log, log1p, sqrt

_ERRORS = 1.96  # to either side: 19 times in 20


def auroc_range(auroc: float, odd: int, normal: int) -> tuple[float, float]:
    """The 95 % interval, about, of an AUROC of so many odd and normal images.

    Every value that lies within 1.96 standard errors, the error being that of the value (Hanley
    and McNeil, 1982) and not of the AUROC that was found, as in Wilson's interval of a share: an
    AUROC of 1 has no error of its own, however few images it comes from. Numbers that differ take
    part by their mean, as Newcombe (2006) proposes: else a few normal images among many odd ones
    would be thought to tell more than they do.
    """
    others = (odd + normal) / 2 - 1

    def error(true: float) -> float:
        pairs = 1 + others * ((1 - true) / (2 - true) + true / (1 + true))  # that share an image
        return sqrt(true * (1 - true) * pairs / (odd * normal))

    low = _where(lambda true: auroc - true < _ERRORS * error(true), 0.0, auroc)
    high = _where(lambda true: true - auroc > _ERRORS * error(true), auroc, 1.0)
    return low, high


def rate_range(alpha: float, images: int) -> tuple[float, float]:
    """Where the rate of false alarms at `alpha` lies nine times in ten, over the draw of the n
    `images` that calibrate.

    A normal image is called anomalous if it scores below the k-th lowest of these n,
    k = ⌊alpha (n + 1)⌋, so that the rate is beta-distributed with k and n + 1 − k: it is less than
    r if k of them or more have a place among the lowest share r of all normal images.
    """
    k = floor(alpha * (images + 1) + 1e-9)

    def fewer(r: float) -> float:
        """Chance that fewer than k have, by the binomial distribution."""
        logs = (
            lgamma(images + 1) - lgamma(j + 1) - lgamma(images - j + 1)
            + j * log(r) + (images - j) * log1p(-r)
            for j in range(k)
        )  # fmt: skip
        return sum(map(exp, logs))

    return _where(lambda r: fewer(r) < 0.95, 0.0, 1.0), _where(lambda r: fewer(r) < 0.05, 0.0, 1.0)


def _where(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The place between `low` and `high` from which on it holds."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
