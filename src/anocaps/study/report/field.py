"""The table of the whole field: every score of every method on every dataset, with its cost."""

from typing import Any

from anocaps.study.budgets import FIELD
from anocaps.study.report.costs import Cost, Costs, short
from anocaps.study.report.numbers import Numbers, Series, dataset_title
from anocaps.study.report.statistics import SHARES, Summary, summarise
from anocaps.study.tuning import TUNED

_TUNED = "settings chosen on mock anomalies"


def field_rows(numbers: Numbers, costs: Costs) -> list[dict[str, Any]]:
    """One row per series: its label, one entry per dataset, seconds, size of a model and note."""
    first, *_ = every = numbers.every()
    rows = []
    for series in every:
        found = {d: summarise(numbers, d, series, first) for d in numbers.datasets}
        measured = [dataset for dataset, each in found.items() if each]
        seconds = costs.mean(series.row, measured)
        sizes = [size for d in measured if (size := costs.megabytes(series.row, d)) is not None]
        largest = max(sizes, default=None)
        rows.append(
            {
                "label": series.look.label,
                "cells": [
                    _cell(each, series == first, _cost_lines(series.row, dataset, costs))
                    for dataset, each in found.items()
                ],
                "costs": [
                    {
                        "text": str(seconds or "?"),
                        "value": "" if seconds is None else f"{seconds.seconds:.3f}",
                        "part": _part(len(seconds.datasets) if seconds else 0, numbers),
                    },
                    {
                        "text": "?" if largest is None else short(largest),
                        "value": "" if largest is None else f"{largest:.3f}",
                        "part": _part(len(sizes), numbers),
                    },
                ],
                "note": note_of(series),
            }
        )
    return rows


def _cost_lines(row: str, dataset: str, costs: Costs) -> list[str]:
    """Seconds and MB on one dataset."""
    cost, size = costs.on(row, dataset), costs.megabytes(row, dataset)
    lines = [f"{cost or '?'}\u00a0s, {'?' if size is None else short(size)}\u00a0MB"]
    others = [dataset_title(d) for d in cost.datasets if d != dataset] if cost else []
    return lines + [f"s: mean with {' and '.join(others)}"] * bool(others)


def _part(known: int, numbers: Numbers) -> str:
    """On how many datasets, if not on all."""
    every = len(numbers.datasets)
    return f"{known}/{every}" if 0 < known < every else ""


def note_of(series: Series) -> str:
    """What differs from the paper or from the other rows; empty if nothing does."""
    notes = {row.label: row.note for row in FIELD}
    return _TUNED if series.variant == TUNED else notes.get(series.row, "")


def _cell(found: Summary | None, is_first: bool, costs: list[str]) -> dict[str, Any] | None:
    """The texts of one series on one dataset."""
    if found is None:
        return None
    lines = ["one seed" if found.sd is None else f"± {found.sd:.3f} seeds"]
    if found.se is not None:
        lines.append(f"± {found.se:.3f} classes")
    if found.difference is not None and not is_first:
        mean, low, high = map(signed, found.difference)
        lines.append(f"{mean} [{low}, {high}]")
    lines.append(f"found {100 * found.found:.0f}\u00a0%")
    lines.append(f"AUPR {', '.join(f'{found.aupr[share]:.3f}' for share in SHARES)}")
    return {"mean": f"{found.mean:.3f}", "part": ", ".join(_lacks(found)), "lines": lines + costs}


def _lacks(found: Summary) -> list[str]:
    """What a mean does not cover."""
    classes = [] if found.whole else [f"{found.classes} classes"]
    fewer = found.seeds < found.seeds_of_row
    return classes + [f"{found.seeds} of {found.seeds_of_row} seeds"] * fewer


def signed(value: float) -> str:
    """Three digits, or four if three would hide the sign."""
    for digits in (3, 4):
        text = f"{value:+.{digits}f}"
        if float(text):
            return text.replace("-", "−")
    return "0.000"


def field_csv(numbers: Numbers, costs: Costs) -> list[list[str]]:
    """Titles, then one line per series and dataset; numbers with six digits."""
    first, *_ = every = numbers.every()
    lines = [
        ["dataset", "method", "mean", "sd over seeds", "se over classes", "classes",
         "difference from " + first.look.label, "low", "high", "found at 5 %",
         *(f"AUPR at {share:.0%}" for share in SHARES), "seconds per cell", "seconds are", "MB",
         "seeds", "note"]
    ]  # fmt: skip
    for dataset in numbers.datasets:
        for series in every:
            found = summarise(numbers, dataset, series, first)
            if found is not None:
                cost = costs.on(series.row, dataset)
                values = [found.mean, found.sd, found.se, found.classes,
                          *(found.difference or (None,) * 3), found.found,
                          *(found.aupr[share] for share in SHARES), cost and cost.seconds,
                          costs.megabytes(series.row, dataset), found.seeds]  # fmt: skip
                texts = ["" if v is None else f"{v:.6g}" for v in values]
                texts.insert(-2, _what(cost))
                lines.append([dataset, series.look.label, *texts, note_of(series)])
    return lines


def _what(cost: Cost | None) -> str:
    """What the seconds of a cost are, in words."""
    if cost is None:
        return ""
    if cost.at_least:
        return "training only"
    return "training and scoring" + (
        f", mean of {' and '.join(cost.datasets)}" if len(cost.datasets) > 1 else ""
    )


def field_latex(numbers: Numbers) -> str:
    """Methods by datasets: mean AUROC and standard error over the classes."""
    columns = 1 + len(numbers.datasets)
    titles = " & ".join(["method", *map(dataset_title, numbers.datasets)])
    lines = [f"\\begin{{tabular}}{{l{'r' * (columns - 1)}}}", titles + r" \\ \hline"]
    for series in numbers.every():
        found = [summarise(numbers, dataset, series) for dataset in numbers.datasets]
        texts = [_latex(each) for each in found]
        lines.append(" & ".join([_tex(series.look.label), *texts]) + r" \\")
    note = (
        rf"\hline \multicolumn{{{columns}}}{{l}}{{\footnotesize Mean AUROC over the held-out "
        r"classes $\pm$ its standard error over the classes.}"
    )
    return "\n".join([*lines, note, r"\end{tabular}", ""])


_ESCAPES: dict[str, str] = {each: f"\\{each}" for each in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def _tex(name: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in name)


def _latex(found: Summary | None) -> str:
    if found is None:
        return "--"
    error = "" if found.se is None else f" \\pm {found.se:.3f}"
    lacks = ", ".join(_lacks(found))
    return f"${found.mean:.3f}{error}$" + (f" ({lacks})" if lacks else "")
