"""Statistics over the classes of a dataset, from raw scores: errors, differences, rare anomalies.

`sd` is the standard deviation over the seeds: how much another seed would change the mean. `se` is
the standard error over the classes: how much other classes would change it. `se` is far larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from anocaps.judging.metrics import paired_interval, roc_curve
from anocaps.study.cell import CellResult
from anocaps.study.report.numbers import HeldOut, Numbers, Series

SHARES = (0.01, 0.10)  # of anomalies in a test set
FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Summary:
    """One series on one dataset."""

    mean: float  # AUROC, over classes and seeds
    sd: float | None  # over the seeds; None with one
    se: float | None  # over the classes; None with one
    classes: int
    seeds: int
    seeds_of_row: int  # of all scores of the same networks
    whole: bool  # all classes were held out
    found: float  # share of the anomalies that is flagged at FALSE_ALARMS
    aupr: dict[float, float]  # share of anomalies → area under precision and recall
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
    by_class = _by_class(numbers, dataset, series)
    spread = numbers.mean_auroc(dataset, series)
    every = [run for found in runs.values() for run in found]
    curves = [_curve(run, series.score) for run in every]
    return Summary(
        mean=fmean(by_class.values()),
        sd=None if spread is None else spread.sd,
        se=_error(list(by_class.values())),
        classes=len(by_class),
        seeds=len({run.seed for run in every}),
        seeds_of_row=numbers.seeds_of_row(dataset, series),
        whole=len(by_class) == len(held_out),
        found=fmean(found_at(*curve) for curve in curves),
        aupr={share: fmean(aupr_at(*curve, share) for curve in curves) for share in SHARES},
        difference=None if other is None else _difference(numbers, dataset, series, other),
    )


def mean_and_error(numbers: Numbers, dataset: str, series: Series) -> tuple[float, float | None]:
    """Mean AUROC over the classes and its standard error; the mean is NaN if a class is missing."""
    values = list(_by_class(numbers, dataset, series).values())
    whole = len(values) == len(numbers.class_cells(dataset))
    return (fmean(values), _error(values)) if whole else (nan, None)


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


def _by_class(numbers: Numbers, dataset: str, series: Series) -> dict[HeldOut, float]:
    """The AUROC of each class that was measured, mean over the seeds."""
    runs = {held: numbers.runs(dataset, held, series) for held in numbers.class_cells(dataset)}
    return {
        held: fmean(r.metrics[series.score].auroc for r in found)
        for held, found in runs.items()
        if found
    }


def _difference(
    numbers: Numbers, dataset: str, series: Series, other: Series
) -> tuple[float, float, float] | None:
    """Mean difference with Student's 95 % interval, paired by class and by the seeds of both."""
    pairs = []
    for held in numbers.class_cells(dataset):
        ours, theirs = (numbers.auroc(dataset, held, each) for each in (series, other))
        if ours and theirs and (seeds := ours.by_seed.keys() & theirs.by_seed.keys()):
            pairs.append(fmean(ours.by_seed[k] - theirs.by_seed[k] for k in sorted(seeds)))
    return paired_interval(pairs) if len(pairs) > 1 else None


def _error(values: Sequence[float]) -> float | None:
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None
