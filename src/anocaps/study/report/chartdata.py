"""The data of the charts that the page's script draws: dots by class, and ROC curves."""

from typing import Any

import numpy as np

from anocaps.judging.metrics import roc_curve
from anocaps.study.report.numbers import (
    EXTRA_COLOURS,
    HeldOut,
    Numbers,
    Series,
    Spread,
    dataset_title,
    held_out_title,
    section_id,
)

_POINTS = 40  # of a ROC curve
# Looks of series that are not shown at first.
_COLOURS = [*(f"extra-{k}" for k in range(EXTRA_COLOURS)), "pp", "re", "cnn-ocsvm", "vae", "dbn"]
_SHAPES = ("square", "diamond", "triangle", "cross", "wedge")


def chart_data(numbers: Numbers) -> dict[str, Any]:
    """Series by number, the dots of every dataset, and the ROC curves of every cell."""
    every = numbers.every()
    return {
        "series": _looks(numbers),
        "dots": {section_id(d): _dots(numbers, d, every) for d in numbers.datasets},
        "cells": [
            {
                "title": f"{dataset_title(dataset)}, held out: {held_out_title(held_out)}",
                "curves": _curves(numbers, dataset, held_out, every),
            }
            for dataset in numbers.datasets
            for held_out in numbers.cells(dataset)
        ],
    }


def _looks(numbers: Numbers) -> list[dict[str, Any]]:
    """Name, colour and shape of each series. The headlines are shown at first."""
    first, looks, others = numbers.headlines(), [], 0
    for series in numbers.every():
        colour, shape = series.look.colour, "circle"
        if series not in first:
            colour = _COLOURS[others % len(_COLOURS)]
            shape = _SHAPES[others // len(_COLOURS) % len(_SHAPES)]
            others += 1
        looks.append(
            {"name": series.look.label, "colour": f"var(--{colour})", "shape": shape,
             "first": series in first}
        )  # fmt: skip
    return looks


def _dots(numbers: Numbers, dataset: str, every: list[Series]) -> dict[str, Any]:
    """Classes, and for each measured series its AUROC by class; last, the mean of the classes."""
    classes = numbers.class_cells(dataset)
    values = {}
    for k, series in enumerate(every):
        spreads = [numbers.auroc(dataset, held, series) for held in classes]
        if any(spreads):
            means = [numbers.mean_auroc(dataset, series)] if len(classes) > 1 else []
            values[k] = [_numbers(spread) for spread in spreads + means]
    return {"classes": [held_out_title(held) for held in classes], "values": values}


def _numbers(spread: Spread | None) -> list[float | None] | None:
    """Mean, and standard deviation over the seeds."""
    if spread is None:
        return None
    return [round(spread.mean, 4), None if spread.sd is None else round(spread.sd, 4)]


def _curves(
    numbers: Numbers, dataset: str, held_out: HeldOut, every: list[Series]
) -> dict[int, dict[str, Any]]:
    """The AUROC of each measured series, and x and y in turn, of the first seed."""
    curves = {}
    for k, series in enumerate(every):
        for run in numbers.runs(dataset, held_out, series)[:1]:
            scores, anomalous = run.scores[series.score], run.anomalous
            x, y = roc_curve(scores[~anomalous], scores[anomalous])
            at = np.linspace(0, 1, _POINTS) ** 2  # denser where false alarms are few
            points = np.stack([at, np.interp(at, x, y)], axis=1).round(3)
            auroc = round(run.metrics[series.score].auroc, 4)
            curves[k] = {"auroc": auroc, "points": [0, 0, *points.ravel().tolist()]}
    return curves
