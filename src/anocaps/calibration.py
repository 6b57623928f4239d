"""From scores of normal images kept out of training to p-values and verdicts.

Split-conformal: if a new normal image is exchangeable with the calibration images, its p-value
is at most alpha with probability at most alpha. Nothing is said about anomalies.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anocaps.errors import InputError


def p_values(scores: ArrayLike, calibration: ArrayLike) -> NDArray[np.float64]:
    """(1 + number of calibration scores ≤ this score) / (n + 1) for each score."""
    ordered = np.sort(np.asarray(calibration, dtype=np.float64))
    not_above = np.searchsorted(ordered, np.asarray(scores, dtype=np.float64), side="right")
    return np.asarray((1 + not_above) / (len(ordered) + 1), dtype=np.float64)


def check_alpha(alpha: float, calibration_size: int) -> None:
    """Refuse a false-alarm rate that is no rate, or that so few images cannot resolve."""
    if not (isinstance(alpha, int | float) and 0 < alpha < 1):
        raise InputError(f"alpha is a false-alarm rate between 0 and 1, not {alpha}")
    smallest = 1 / (calibration_size + 1)
    if alpha < smallest:
        raise InputError(
            f"alpha={alpha} needs at least {int(np.ceil(1 / alpha)) - 1} calibration images, this "
            f"detector has {calibration_size}: use alpha ≥ {smallest:.3g} or calibrate with more"
        )


def split(
    labels: NDArray[np.int64], share: float, seed: int, purpose: int = 0xCA11
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices to train on and to calibrate with: `share` of each class, drawn with the seed.

    At least one image of every class is left to train on. Another `purpose` is another draw.
    """
    generator = np.random.default_rng([seed, purpose])
    kept: list[NDArray[np.int64]] = []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        kept.append(members[: min(round(share * len(members)), len(members) - 1)])
    calibration = np.sort(np.concatenate(kept))
    return np.setdiff1d(np.arange(len(labels)), calibration), calibration
