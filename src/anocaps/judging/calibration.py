"""From the scores of the calibration set to p-values and verdicts.

This is split-conformal prediction. If a new normal image is exchangeable with the calibration
images, its p-value is at most alpha with probability at most alpha. This holds for any network that
was not trained on the calibration images. There is no guarantee for anomalous images.

NaN counts as the lowest score.
"""

from math import ceil, floor, inf, log10
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anocaps.base.errors import InputError

USUAL_ALPHA = 0.05
_SMALLEST_ALPHA = 1e-9  # no calibration set is large enough for less
FEWEST_OF_CLASS = 20  # calibration images that p-values within a class need
_SHARE, _LARGEST_SHARE = 0.1, 0.2  # usual and largest share of images in the calibration set
_LARGEST_FOR_USUAL = 1 / 3  # largest share if USUAL_ALPHA needs it
_ROUNDING = 0.01  # of a score, if capsules are rounded to bf16
_ENOUGH, _PLENTY = 100, 5000  # calibration images for an alpha of 0.01, and for any alpha

_SMALLEST_NORM = 1 / 255  # that RE divides by: one grey level
_FARTHEST = 1.1e6  # surprise of a patch; judging.combining ends its tail there
_EXACT = 1e-6  # relative rounding of a score that follows from others


def score_range(name: str, numbers: int) -> tuple[float, float]:
    """The lowest and the highest possible value of a score of CapsNet, if it is known.

    `numbers` is how many numbers in [0, 1] an image has.
    """
    known = {
        "pp": (0.0, 1.0),
        "re": (-numbers / _SMALLEST_NORM, 0.0),
        "mse": (-float(numbers), 0.0),
        "knn": (-2.0, 0.0),
        "stem-knn": (-2.0, 0.0),
        "patch": (-_FARTHEST, 1.0),
    }
    return known.get(name, (-inf, inf))


def check_finite(stored: Any) -> None:
    """Raise an error if NaN or infinity is in an array, or in JSON, where Python accepts it."""
    if isinstance(stored, float | np.ndarray) and not np.isfinite(stored).all():
        raise InputError("one of its numbers is not finite")
    if isinstance(stored, dict | list):
        for each in stored.values() if isinstance(stored, dict) else stored:
            check_finite(each)


def check_card(card: Any, images: int) -> None:
    """Raise an error if a model card speaks of another number of calibration images."""
    if card and card.get("calibration_images", images) != images:
        raise InputError("its card has another number of calibration images than the model")


def check_joined(name: str, scores: NDArray[np.float64], follows: NDArray[np.float64]) -> None:
    """Raise an error if the calibration scores are not those that follow from other scores."""
    if not np.allclose(scores, follows, rtol=_EXACT, atol=_EXACT):
        raise InputError(f"its calibration scores of {name} do not follow from its other scores")


def check_scores(
    scores: NDArray[np.float64], images: int, limits: tuple[float, float] = (-inf, inf)
) -> None:
    """Raise an error if the scores of so many images cannot be what a model gives."""
    if scores.dtype != np.float64 or scores.shape != (images,):
        raise InputError(f"its scores are not {images:,} float64 numbers")
    low, high = limits[0] - _ROUNDING, limits[1] + _ROUNDING
    if not (np.isfinite(scores) & (scores >= low) & (scores <= high)).all():
        raise InputError("a score is not finite or out of range")


def p_values(scores: ArrayLike, calibration: ArrayLike) -> NDArray[np.float64]:
    """(1 + number of calibration scores ≤ this score) / (n + 1) for each score."""
    ordered = np.sort(_numbers(calibration))
    not_above = np.searchsorted(ordered, _numbers(scores), side="right")
    return np.asarray((1 + not_above) / (len(ordered) + 1), dtype=np.float64)


def class_p_values(
    scores: ArrayLike,
    predicted: ArrayLike,  # predicted class of each image
    calibration: ArrayLike,
    calibration_predicted: ArrayLike,  # not the true classes: a new image has none
) -> NDArray[np.float64]:
    """p-values among the calibration images of the same predicted class.

    A normal image is exchangeable with the normal images of the same prediction. The p-value is NaN
    if there are fewer than FEWEST_OF_CLASS of them.
    """
    scores, predicted = _numbers(scores), np.asarray(predicted)
    calibration, known = _numbers(calibration), np.asarray(calibration_predicted)
    found = np.full(len(scores), np.nan)
    for each in np.unique(predicted):
        alike = calibration[known == each]
        if len(alike) >= FEWEST_OF_CLASS:
            members = predicted == each
            found[members] = p_values(scores[members], alike)
    return found


def threshold(calibration: ArrayLike, alpha: float) -> float:
    """The score below which the p-value is at most `alpha`."""
    ordered = np.sort(_numbers(calibration))
    check_alpha(alpha, len(ordered))
    ranks = np.arange(1, len(ordered) + 1) / (len(ordered) + 1)
    return float(ordered[np.searchsorted(ranks, alpha, side="right") - 1])


def smallest_alpha(calibration_size: int) -> float:
    """The smallest possible p-value."""
    return 1 / (calibration_size + 1)


def needed_for(alpha: float) -> int:
    """How many calibration images this alpha needs."""
    return ceil(1 / alpha) - 1


def check_alpha(alpha: float, calibration_size: int) -> None:
    """Raise an error if alpha is not a rate, or too small for the number of calibration images."""
    if not (isinstance(alpha, int | float | np.number) and _SMALLEST_ALPHA <= alpha < 1):
        raise InputError(
            f"alpha, the false-alarm rate, must be between 0 and 1, and at least "
            f"{_SMALLEST_ALPHA:g}, not {alpha!r}"
        )
    if calibration_size and alpha < smallest_alpha(calibration_size):
        raise InputError(
            f"alpha={alpha} needs at least {needed_for(alpha)} calibration images, but this "
            f"detector has {calibration_size}: use alpha ≥ "
            f"{rounded_up(smallest_alpha(calibration_size))} or more images"
        )


def rounded_up(alpha: float) -> float:
    """Round up to two digits, since a smaller alpha would be refused."""
    digits = 1 - floor(log10(alpha))
    scale = 10.0**digits
    return round(ceil(alpha * scale - 1e-9) / scale, digits)


def share_for(images: int) -> float:
    """The share of the images that becomes the calibration set.

    500 images or more allow an alpha of 0.01; 57 images or more allow USUAL_ALPHA. The set has at
    most 5,000 images.
    """
    share = min(_LARGEST_SHARE, max(_SHARE, _ENOUGH / images), _PLENTY / images)
    usual = needed_for(USUAL_ALPHA) / images
    return max(share, usual) if usual <= _LARGEST_FOR_USUAL else share


def split(
    labels: NDArray[np.int64],
    share: float,
    seed: int,
    purpose: int = 0xCA11,
    copies: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the training set and of the calibration set, drawn with the seed.

    The calibration set gets `share` of each class, rounded up or down at random. At least one image
    of every class stays in training. Another `purpose` gives another draw. Images of one class with
    the same number in `copies` stay together.
    """
    numbers = np.arange(len(labels)) if copies is None else copies
    _, first, group = np.unique(numbers, return_index=True, return_inverse=True)
    of_group = labels[first]
    generator = np.random.default_rng([seed, purpose])
    # class by class, shuffled
    order = np.lexsort((generator.permutation(len(of_group)), of_group))
    marks = np.floor(generator.random() + share * np.arange(len(of_group) + 1))
    kept = order[np.diff(marks) > 0]
    for label in set(np.unique(of_group)) - set(np.delete(of_group, kept)):
        kept = np.delete(kept, np.flatnonzero(of_group[kept] == label)[0])
    calibrates = np.isin(group, kept)
    return np.flatnonzero(~calibrates), np.flatnonzero(calibrates)


def _numbers(scores: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(scores, dtype=np.float64)
    return np.where(np.isnan(array), -np.inf, array)
