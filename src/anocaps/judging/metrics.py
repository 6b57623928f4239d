"""Measure how well a score separates normal from anomalous images.

Every function takes the normality scores of normal and of anomalous images. An image is flagged as
anomalous if its score is at or below a threshold. The curves use every distinct score as a
threshold, from the lowest to the highest.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anocaps.base.errors import InputError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Metrics:
    """The metrics of one score function on one test set."""

    auroc: float
    auroc_low: float
    auroc_high: float
    aupr: float
    fpr95: float


def measure(normal: npt.ArrayLike, anomalous: npt.ArrayLike, seed: int = 0) -> Metrics:
    """All metrics. `seed` is for the bootstrap interval of the AUROC."""
    low, high = auroc_interval(normal, anomalous, seed)
    return Metrics(
        auroc=auroc(normal, anomalous),
        auroc_low=low,
        auroc_high=high,
        aupr=aupr(normal, anomalous),
        fpr95=fpr95(normal, anomalous),
    )


def auroc(normal: npt.ArrayLike, anomalous: npt.ArrayLike) -> float:
    """Chance that a random normal image scores above a random anomalous one. A tie counts half."""
    normals, anomalies = _scores(normal, anomalous)
    below = np.searchsorted(anomalies, normals, side="left").sum()
    not_above = np.searchsorted(anomalies, normals, side="right").sum()
    return float(below + not_above) / (2 * len(normals) * len(anomalies))


def roc_curve(normal: npt.ArrayLike, anomalous: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Shares of flagged normals and of flagged anomalies, from (0, 0) to (1, 1)."""
    normals, anomalies = _scores(normal, anomalous)
    false_alarms, hits = _flagged(normals, anomalies)
    start = np.zeros(1)
    return (
        np.concatenate([start, false_alarms / len(normals)]),
        np.concatenate([start, hits / len(anomalies)]),
    )


def aupr(normal: npt.ArrayLike, anomalous: npt.ArrayLike) -> float:
    """Average precision with the anomaly as the positive class: Σ precision × step in recall."""
    normals, anomalies = _scores(normal, anomalous)
    false_alarms, hits = _flagged(normals, anomalies)
    precision = hits / (hits + false_alarms)
    return float(np.sum(precision * np.diff(hits, prepend=0)) / len(anomalies))


def fpr95(normal: npt.ArrayLike, anomalous: npt.ArrayLike) -> float:
    """Share of anomalies accepted at the threshold that accepts 95 % of the normal images."""
    normals, anomalies = _scores(normal, anomalous)
    accepted = -(-19 * len(normals) // 20)  # ⌈0.95 n⌉ without rounding
    threshold = normals[len(normals) - accepted]
    return float(np.mean(anomalies >= threshold))


def auroc_interval(
    normal: npt.ArrayLike, anomalous: npt.ArrayLike, seed: int = 0, resamples: int = 1000
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the AUROC.

    Normals and anomalies are resampled separately. Anomalies are resampled as counts, so that no
    resample is sorted.
    """
    normals, anomalies = _scores(normal, anomalous)
    n, m = len(normals), len(anomalies)
    left = np.searchsorted(anomalies, normals, side="left")
    right = np.searchsorted(anomalies, normals, side="right")

    rng = np.random.default_rng(seed)
    below = np.zeros(m + 1, dtype=np.int64)  # drawn anomalies below each rank
    drawn = []
    for _ in range(resamples):
        np.cumsum(np.bincount(rng.integers(0, m, m), minlength=m), out=below[1:])
        wins = (below[left] + below[right])[rng.integers(0, n, n)]
        drawn.append(float(wins.sum()) / (2 * n * m))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def paired_interval(differences: npt.ArrayLike) -> tuple[float, float, float]:
    """The mean of paired differences with Student's 95 % interval: mean, low, high."""
    from scipy.special import stdtrit

    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2:
        raise InputError("an interval needs two differences or more")
    mean = float(values.mean())
    wide = float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values)))
    return mean, mean - wide, mean + wide


def _flagged(normals: Floats, anomalies: Floats) -> tuple[Floats, Floats]:
    """Numbers of normals and of anomalies at or below each distinct score."""
    thresholds = np.unique(np.concatenate([normals, anomalies]))
    return (
        np.searchsorted(normals, thresholds, side="right").astype(np.float64),
        np.searchsorted(anomalies, thresholds, side="right").astype(np.float64),
    )


def _scores(normal: npt.ArrayLike, anomalous: npt.ArrayLike) -> tuple[Floats, Floats]:
    """The scores of both groups, checked and sorted."""
    return _sorted("normal", normal), _sorted("anomalous", anomalous)


def _sorted(kind: str, values: npt.ArrayLike) -> Floats:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or scores.size == 0:
        raise InputError(f"scores of {kind} images: expected a flat list, got shape {scores.shape}")
    if np.isnan(scores).any():
        raise InputError(
            f"scores of {kind} images: {np.isnan(scores).sum()} are NaN; check the method"
        )
    return np.sort(scores)
