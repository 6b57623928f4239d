"""The table of the whole field: every score of every method on every dataset, with its cost."""

import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from anocaps.judging.metrics import roc_curve
from anocaps.study.budgets import FIELD
from anocaps.study.report.numbers import Numbers, Series, dataset_title, held_out_title
from anocaps.study.report.statistics import SHARES, Summary, summarise

_POINTS = 40  # of a ROC curve in the page
_TUNED = "settings chosen on mock anomalies"


def field_rows(numbers: Numbers) -> list[dict[str, Any]]:
    """One row per series: its label, one entry per dataset, cost and note."""
    first, *_ = every = numbers.every()
    notes = {row.label: row.note for row in FIELD}
    rows = []
    for series in every:
        label = f"{series.method}-{series.variant}" if series.variant else series.method
        found = {d: summarise(numbers, d, series, first) for d in numbers.datasets}
        sizes = [
            r.record["model_bytes"] / 1e6
            for r in numbers.results
            if (r.method, r.variant) == (series.method, series.variant)
            and "model_bytes" in r.record
        ]
        seconds = [each.seconds for each in found.values() if each and each.seconds is not None]
        rows.append(
            {
                "label": series.look.label,
                "cells": [_cell(found[dataset], series == first) for dataset in numbers.datasets],
                "seconds": f"{fmean(seconds):,.1f}" if seconds else "",
                "megabytes": f"{fmean(sizes):.1f}" if sizes else "",
                "note": _TUNED if series.variant == "tuned" else notes.get(label, ""),
            }
        )
    return rows


def _cell(found: Summary | None, is_first: bool) -> dict[str, Any] | None:
    """The texts of one series on one dataset."""
    if found is None:
        return None
    lines = ["one seed" if found.sd is None else f"± {found.sd:.3f} seeds"]
    if found.se is not None:
        lines.append(f"± {found.se:.3f} classes")
    if not found.whole:
        lines.append(f"{found.classes} classes only")
    if found.difference is not None and not is_first:
        mean, low, high = (f"{each:+.3f}".replace("-", "−") for each in found.difference)
        lines.append(f"{mean} [{low}, {high}]")
    lines.append(f"found {100 * found.found:.0f}\u00a0%")
    lines.append(f"AUPR {', '.join(f'{found.aupr[share]:.3f}' for share in SHARES)}")
    return {"mean": f"{found.mean:.3f}", "lines": lines}


def field_csv(numbers: Numbers) -> list[list[str]]:
    """Titles, then one line per series and dataset; numbers with six digits."""
    first, *_ = every = numbers.every()
    lines = [
        ["dataset", "method", "mean", "sd over seeds", "se over classes", "classes",
         "difference from " + first.look.label, "low", "high", "found at 5 %",
         *(f"AUPR at {share:.0%}" for share in SHARES), "seconds"]
    ]  # fmt: skip
    for dataset in numbers.datasets:
        for series in every:
            found = summarise(numbers, dataset, series, first)
            if found is not None:
                values = [found.mean, found.sd, found.se, found.classes,
                          *(found.difference or (None,) * 3), found.found,
                          *(found.aupr[share] for share in SHARES), found.seconds]  # fmt: skip
                texts = ["" if v is None else f"{v:.6g}" for v in values]
                lines.append([dataset, series.look.label, *texts])
    return lines


def field_latex(numbers: Numbers) -> str:
    """Methods by datasets: mean AUROC and standard error over the classes."""
    titles = " & ".join(["method", *map(dataset_title, numbers.datasets)])
    lines = [f"\\begin{{tabular}}{{l{'r' * len(numbers.datasets)}}}", titles + r" \\ \hline"]
    for series in numbers.every():
        found = [summarise(numbers, dataset, series) for dataset in numbers.datasets]
        texts = [_latex(each) for each in found]
        lines.append(" & ".join([series.look.label.replace("_", r"\_"), *texts]) + r" \\")
    return "\n".join([*lines, r"\end{tabular}", ""])


def _latex(found: Summary | None) -> str:
    if found is None:
        return "--"
    return f"{found.mean:.3f}" if found.se is None else f"${found.mean:.3f} \\pm {found.se:.3f}$"


def roc_data(numbers: Numbers) -> str:
    """ROC curves of the first seed, as JSON for the page's script."""
    every = numbers.every()
    cells = []
    for dataset in numbers.datasets:
        for held_out in numbers.cells(dataset):
            curves = {str(k): _thin(numbers, dataset, held_out, s) for k, s in enumerate(every)}
            title = f"{dataset_title(dataset)}, held out: {held_out_title(held_out)}"
            cells.append([title, {k: curve for k, curve in curves.items() if curve}])
    return json.dumps({"names": [series.look.label for series in every], "cells": cells})


def _thin(
    numbers: Numbers, dataset: str, held_out: tuple[str, ...], series: Series
) -> Sequence[float]:
    """x and y in turn, at _POINTS false-alarm rates; empty if not measured."""
    runs = numbers.runs(dataset, held_out, series)
    if not runs:
        return []
    scores, anomalous = runs[0].scores[series.score], runs[0].anomalous
    x, y = roc_curve(scores[~anomalous], scores[anomalous])
    at = np.linspace(0, 1, _POINTS) ** 2  # denser where false alarms are few
    points = zip(at, np.interp(at, x, y))
    return [0.0, 0.0, *(round(float(v), 3) for point in points for v in point)]
