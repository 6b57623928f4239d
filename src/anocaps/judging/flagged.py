"""Test whether more images are flagged than the false-alarm rate explains. No SciPy."""

from collections import deque
from collections.abc import Iterable, Sequence
from math import exp, floor, lgamma

import numpy as np
from numpy.typing import NDArray

FAR = 0.001  # "far more": less probable than this if all images are normal
WINDOW = 100  # images in a rolling share


def chance_of(flagged: int, images: int, alpha: float, calibration_size: int) -> float:
    """The probability that at least `flagged` of `images` normal images are flagged at `alpha`.

    The calibration images are a random draw too. Sort new and calibration images by score, the
    lowest first: every order is equally likely. A new image is flagged if it comes before the k-th
    calibration image, k = ⌊alpha (n + 1)⌋. So at least `flagged` images are flagged if fewer than k
    of the first (flagged + k − 1) images are calibration images. This is a hypergeometric tail.
    """
    k = floor(alpha * (calibration_size + 1) + 1e-9)
    if flagged <= 0:
        return 1.0
    first, everyone = flagged + k - 1, _log_ways(images + calibration_size, flagged + k - 1)
    return sum(
        exp(_log_ways(calibration_size, j) + _log_ways(images, first - j) - everyone)
        for j in range(k)
        if first - j <= images
    )


def far_more(flagged: int, images: int, alpha: float, calibration_size: int) -> bool:
    """Whether far more images are flagged than expected if all were normal."""
    return chance_of(flagged, images, alpha, calibration_size) < FAR


def many_flagged(
    flagged: int, images: int, alpha: float, calibration_size: int, last: bool = False
) -> str:
    """A message if far more images are flagged than alpha, otherwise an empty text."""
    if not (calibration_size and far_more(flagged, images, alpha, calibration_size)):
        return ""
    among = f"{'the last ' if last else ''}{images:,} images"
    return (
        f"{flagged:,} of {among} are flagged, far more than {100 * alpha:g} %. There are many "
        "anomalies, or camera, light or objects have changed. To find out, run anocaps test MODEL "
        "--normal DIR with today's normal photos."
    )


def rolling_share(
    flagged: Sequence[bool] | NDArray[np.bool_], window: int = WINDOW
) -> NDArray[np.float64]:
    """The share of flagged images in each window: images 1 to `window`, 2 to `window` + 1, …

    If there are fewer images than `window`, they are one window.
    """
    window = max(1, min(window, len(flagged)))
    counts = np.concatenate([[0], np.cumsum(np.asarray(flagged, dtype=np.int64))])
    return np.asarray((counts[window:] - counts[:-window]) / window, dtype=np.float64)


class Recent:
    """Notices when far more of the last images are flagged than alpha."""

    def __init__(self, alpha: float, calibration_size: int, window: int = WINDOW) -> None:
        self.alpha, self.calibration_size = alpha, calibration_size
        self._last = deque[bool](maxlen=window)
        self._many = False

    def add(self, flagged: Iterable[bool]) -> str:
        """The message of `many_flagged` on the last images; empty if the last call gave it too."""
        self._last.extend(flagged)
        count, images = sum(self._last), len(self._last)
        said = many_flagged(count, images, self.alpha, self.calibration_size, last=True)
        before, self._many = self._many, bool(said)
        return "" if before else said


def limit_of(images: int, alpha: float, calibration_size: int) -> float:
    """The smallest share of flagged images that is far more than alpha; above 1 if none is."""
    counts = range(floor(alpha * images), images + 1)
    far = (each for each in counts if far_more(each, images, alpha, calibration_size))
    return next(far, images + 1) / images


def _log_ways(of: int, chosen: int) -> float:
    """The logarithm of a binomial coefficient."""
    return lgamma(of + 1) - lgamma(chosen + 1) - lgamma(of - chosen + 1)
