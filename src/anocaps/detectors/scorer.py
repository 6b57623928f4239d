"""A scorer for scikit-learn that measures how well a detector finds anomalies."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anocaps.base.errors import InputError
from anocaps.detectors.gate import ImagesLike, marked
from anocaps.judging.metrics import auroc

if TYPE_CHECKING:
    from anocaps.detectors.base import Detector

Metric = Callable[[NDArray[np.float64], NDArray[np.float64]], float]


def anomaly_scorer(
    detector: "Detector",
    X: ImagesLike,
    y: ArrayLike,
    metric: Metric = auroc,
    score_function: str | None = None,
) -> float:
    """Measure how well a fitted detector separates anomalies from normal images.

    Pass it as `scoring` to scikit-learn's `cross_val_score` or `GridSearchCV`, with folds that have
    images of every class. The number −1 in y marks anomalies. `fit` leaves them out, and the scorer
    compares their scores with all others.

    Parameters
    ----------
    detector : Detector
        A fitted detector.
    X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
        Images that were not trained on.
    y : array of shape (N,)
        The number −1 for anomalies, any other label for normal images.
    metric : callable, default=anocaps.judging.metrics.auroc
        Takes the scores of normal and of anomalous images; higher = better. Change it with
        `functools.partial(anomaly_scorer, metric=...)`.
    score_function : str, default=None
        One of the detector's `score_names`. None: `score_function_`.

    Returns
    -------
    value : float
        By default the AUROC: 0.5 is guessing, 1 is perfect.

    Examples
    --------
    >>> from anocaps import CapsNetDetector, anomaly_scorer
    >>> from sklearn.model_selection import StratifiedKFold, cross_val_score
    >>> y[is_anomaly] = -1  # doctest: +SKIP
    >>> folds = StratifiedKFold(shuffle=True)
    >>> cross_val_score(
    ...     CapsNetDetector(), X, y, cv=folds, scoring=anomaly_scorer
    ... )  # doctest: +SKIP
    """
    anomalous = marked(y)
    if anomalous.all() or not anomalous.any():
        raise InputError("y must have both normal labels and anomalies, which are marked −1")
    scores = detector.score_samples(X, score_function)
    return float(metric(scores[~anomalous], scores[anomalous]))
