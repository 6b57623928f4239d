"""Statistics over the classes of a dataset, from raw scores: errors, differences, rare anomalies.

`sd` is the standard deviation over the seeds: how much another seed would change the mean. `se` is
the standard error over the classes: how much other classes would change it. `se` is far larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from anocaps.judging.metrics import roc_curve
from anocaps.study.cell import CellResult
from anocaps.study.report.numbers import Numbers, Series

SHARES = (0.01, 0.10)  # of anomalies in a test set
FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Summary:
    """One series on one dataset."""

    mean: float  # AUROC, over classes and seeds
    sd: float | None  # over the seeds; None with one
    se: float | None  # over the classes; None with one
    classes: int
    whole: bool  # all classes were held out
    found: float  # share of the anomalies that is flagged at FALSE_ALARMS
    aupr: dict[float, float]  # share of anomalies → area under precision and recall
    seconds: float | None  # of training a cell
    difference: tuple[float, float, float] | None  # from another series: mean, and 95 % interval


def summarise(
    numbers: Numbers, dataset: str, series: Series, other: Series | None = None
) -> Summary | None:
    """Summarise a series; None if no single class was measured. `other`: series to compare with."""
    held_out = numbers.class_cells(dataset)
    runs = {held: numbers.runs(dataset, held, series) for held in held_out}
    runs = {held: found for held, found in runs.items() if found}
    if not runs:
        return None
    by_class = {held: fmean(r.metrics[series.score].auroc for r in found)
                for held, found in runs.items()}  # fmt: skip
    spread = numbers.mean_auroc(dataset, series)
    every = [run for found in runs.values() for run in found]
    curves = [_curve(run, series.score) for run in every]
    seconds = [r.record["training_seconds"] for r in every if "training_seconds" in r.record]
    return Summary(
        mean=fmean(by_class.values()),
        sd=None if spread is None else spread.sd,
        se=_error(list(by_class.values())),
        classes=len(by_class),
        whole=len(by_class) == len(held_out),
        found=fmean(found_at(*curve) for curve in curves),
        aupr={share: fmean(aupr_at(*curve, share) for curve in curves) for share in SHARES},
        seconds=fmean(seconds) if seconds else None,
        difference=None if other is None else _difference(numbers, dataset, by_class, other),
    )


def found_at(false_alarms: NDArray[np.float64], hits: NDArray[np.float64]) -> float:
    """The share of anomalies that is flagged with at most FALSE_ALARMS of the normal images."""
    return float(hits[false_alarms <= FALSE_ALARMS].max())


def aupr_at(false_alarms: NDArray[np.float64], hits: NDArray[np.float64], share: float) -> float:
    """The area under precision and recall where this share of the images is anomalous."""
    flagged = share * hits + (1 - share) * false_alarms
    precision = np.divide(share * hits, flagged, out=np.zeros_like(hits), where=flagged > 0)
    return float(np.sum(precision[1:] * np.diff(hits)))


def _curve(run: CellResult, score: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    values, anomalous = run.scores[score], run.anomalous
    return roc_curve(values[~anomalous], values[anomalous])


def _difference(
    numbers: Numbers, dataset: str, by_class: dict[tuple[str, ...], float], other: Series
) -> tuple[float, float, float] | None:
    """Mean difference with Student's 95 % interval, paired by class."""
    pairs = []
    for held, value in by_class.items():
        theirs = numbers.runs(dataset, held, other)
        if theirs:
            pairs.append(value - fmean(r.metrics[other.score].auroc for r in theirs))
    error = _error(pairs)
    if error is None:
        return None
    mean = fmean(pairs)
    wide = float(stdtrit(len(pairs) - 1, 0.975)) * error
    return mean, mean - wide, mean + wide


def _error(values: Sequence[float]) -> float | None:
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None
