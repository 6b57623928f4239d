"""The table of the whole field: every score of every method on every dataset, with its cost."""

from typing import Any

from anocaps.study.budgets import FIELD
from anocaps.study.report.numbers import Numbers, Series, dataset_title
from anocaps.study.report.runlog import RunLog
from anocaps.study.report.statistics import SHARES, Summary, summarise
from anocaps.study.tuning import TUNED

_TUNED = "settings chosen on mock anomalies"


def field_rows(numbers: Numbers, log: RunLog) -> list[dict[str, Any]]:
    """One row per series: its label, one entry per dataset, size of a model and note."""
    first, *_ = every = numbers.every()
    rows = []
    for series in every:
        found = {d: summarise(numbers, d, series, first) for d in numbers.datasets}
        sizes = [s.megabytes for s in found.values() if s and s.megabytes is not None]
        ends = [f"{end:.1f}" for end in (min(sizes), max(sizes))] if sizes else []
        rows.append(
            {
                "label": series.look.label,
                "cells": [
                    _cell(found[d], log.seconds_per_cell(series.row, d), series == first)
                    for d in numbers.datasets
                ],
                "megabytes": "–".join(dict.fromkeys(ends)),
                "largest": ends[-1] if ends else "",
                "note": _note(series),
            }
        )
    return rows


def _note(series: Series) -> str:
    notes = {row.label: row.note for row in FIELD}
    return _TUNED if series.variant == TUNED else notes.get(series.row, "")


def _cell(found: Summary | None, seconds: float | None, is_first: bool) -> dict[str, Any] | None:
    """The texts of one series on one dataset."""
    if found is None:
        return None
    lines = ["one seed" if found.sd is None else f"± {found.sd:.3f} seeds"]
    if found.se is not None:
        lines.append(f"± {found.se:.3f} classes")
    if not found.whole:
        lines.append(f"{found.classes} classes only")
    if found.difference is not None and not is_first:
        mean, low, high = map(_signed, found.difference)
        lines.append(f"{mean} [{low}, {high}]")
    lines.append(f"found {100 * found.found:.0f}\u00a0%")
    lines.append(f"AUPR {', '.join(f'{found.aupr[share]:.3f}' for share in SHARES)}")
    if seconds is not None:
        lines.append(f"{seconds:.1f}\u00a0s" if seconds < 10 else f"{seconds:.0f}\u00a0s")
    return {"mean": f"{found.mean:.3f}", "lines": lines}


def _signed(value: float) -> str:
    text = f"{value:+.3f}"
    return text.replace("-", "−") if float(text) else "0.000"


def field_csv(numbers: Numbers, log: RunLog) -> list[list[str]]:
    """Titles, then one line per series and dataset; numbers with six digits."""
    first, *_ = every = numbers.every()
    lines = [
        ["dataset", "method", "mean", "sd over seeds", "se over classes", "classes",
         "difference from " + first.look.label, "low", "high", "found at 5 %",
         *(f"AUPR at {share:.0%}" for share in SHARES), "seconds per cell", "MB", "seeds", "note"]
    ]  # fmt: skip
    for dataset in numbers.datasets:
        for series in every:
            found = summarise(numbers, dataset, series, first)
            if found is not None:
                values = [found.mean, found.sd, found.se, found.classes,
                          *(found.difference or (None,) * 3), found.found,
                          *(found.aupr[share] for share in SHARES),
                          log.seconds_per_cell(series.row, dataset), found.megabytes,
                          found.seeds]  # fmt: skip
                texts = ["" if v is None else f"{v:.6g}" for v in values]
                lines.append([dataset, series.look.label, *texts, _note(series)])
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
