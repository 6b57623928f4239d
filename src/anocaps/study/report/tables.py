"""The tables of a study: as data for the templates, and as CSV files."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import NamedTuple

from anocaps.base.text import text_cell
from anocaps.study.cell import LONG
from anocaps.study.report.numbers import (
    HeldOut,
    Numbers,
    Spread,
    dataset_title,
    held_out_title,
    section_id,
)
from anocaps.study.report.statistics import mean_and_error

_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?")


class Cell(NamedTuple):
    text: str  # empty if not measured
    aside: str = ""  # small text after it
    best: bool = False


class Row(NamedTuple):
    name: str
    cells: Sequence[Cell]
    link: str = ""  # id of a section of the page


class Table(NamedTuple):
    titles: Sequence[str]
    rows: Sequence[Row]
    foot: Sequence[Row] = ()
    kind: str = "study"  # a class of style.css


def settings_table(values: Mapping[str, str]) -> Table:
    """Names and values, without titles."""
    rows = [Row(name, [Cell(value)]) for name, value in values.items()]
    return Table([], rows, kind="settings")


def auroc_table(numbers: Numbers, dataset: str) -> Table:
    """AUROCs, held-out classes by methods. Below: the mean, then cells of several classes."""
    headlines = numbers.headlines(dataset)
    classes = numbers.class_cells(dataset)

    def row(held_out: HeldOut) -> Row:
        spreads = [numbers.auroc(dataset, held_out, series) for series in headlines]
        return Row(held_out_title(held_out), _cells(spreads))

    last = [row(held) for held in numbers.cells(dataset) if held not in classes]
    if len(classes) > 1:
        means = [numbers.mean_auroc(dataset, series) for series in headlines]
        last.insert(0, Row("mean", _cells(means)))
    titles = ["held out", *(series.look.label for series in headlines)]
    return Table(titles, [row(held) for held in classes], last)


def mean_table(numbers: Numbers) -> Table:
    """Datasets by methods: mean and standard error over the classes."""
    headlines = numbers.headlines()
    rows = []
    for dataset in numbers.datasets:
        found = [mean_and_error(numbers, dataset, series) for series in headlines]
        best = max((f"{mean:.3f}" for mean, _ in found if not isnan(mean)), default="")
        cells = [_mean_cell(mean, error, best) for mean, error in found]
        rows.append(Row(dataset_title(dataset), cells, section_id(dataset)))
    return Table(["mean AUROC", *(series.look.label for series in headlines)], rows)


def long_table(numbers: Numbers) -> Table:
    """Shares of images with no, one and several long class capsules."""
    rows = []
    for dataset in numbers.datasets:
        for kind, parts in (numbers.lengths(dataset) or {}).items():
            long = parts["long"]
            counts = (long[0], long[1], long[2:].sum())
            cells = [Cell(f"{100 * count / long.sum():.2f}\u00a0%") for count in counts]
            rows.append(Row(f"{dataset_title(dataset)}, {kind}", cells))
    titles = [f"capsules over {LONG}", "none", "one", "several"]
    return Table(titles, rows, kind="study small")


def dataset_csv(numbers: Numbers, dataset: str) -> str:
    """The numbers of `auroc_table` and of the further scores."""
    every = [*numbers.headlines(dataset), *numbers.further(dataset)]
    titles = [f"{s.look.label} {what}" for s in every for what in ("mean", "sd", "seeds")]

    def row(name: str, spreads: Iterable[Spread | None]) -> list[str]:
        return [name, *(text for spread in spreads for text in _csv_cells(spread))]

    def rows() -> Iterator[list[str]]:
        for held in numbers.cells(dataset):
            spreads = [numbers.auroc(dataset, held, series) for series in every]
            yield row(held_out_title(held), spreads)
        yield row("mean of classes", [numbers.mean_auroc(dataset, series) for series in every])

    return as_csv(["held_out", *titles], *rows())


def metrics_csv(numbers: Numbers) -> str:
    """One row per network and score."""
    titles = (
        "dataset method variant held_out seed score auroc low high aupr fpr95 auroc_all accuracy"
    )
    ordered = sorted(
        numbers.results, key=lambda r: (r.dataset, r.method, r.variant, r.held_out, r.seed)
    )
    rows = (
        [
            r.dataset,
            r.method,
            r.variant,
            "+".join(r.held_out),
            r.seed,
            score,
            *(f"{v:.6f}" for v in (m.auroc, m.auroc_low, m.auroc_high, m.aupr, m.fpr95)),
            f"{r.auroc_all[score]:.6f}",
            "" if r.accuracy is None else f"{r.accuracy:.6f}",
        ]
        for r in ordered
        for score, m in r.metrics.items()
    )
    return as_csv(titles.split(), *rows)


def _mean_cell(mean: float, error: float | None, best: str) -> Cell:
    text = "" if isnan(mean) else f"{mean:.3f}"
    return Cell(text, "" if error is None else f"± {error:.3f}", bool(text) and text == best)


def _cells(spreads: Sequence[Spread | None]) -> list[Cell]:
    """The cells of a row; the highest mean is marked as best."""
    best = max((round(spread.mean, 3) for spread in spreads if spread), default=None)
    return [_cell(spread, best) for spread in spreads]


def _cell(spread: Spread | None, best: float | None) -> Cell:
    if spread is None:
        return Cell("")
    sd = "" if spread.sd is None else f"± {spread.sd:.3f}"
    return Cell(f"{spread.mean:.3f}", sd, round(spread.mean, 3) == best)


def _csv_cells(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return "", "", "0"
    sd = "" if spread.sd is None else f"{spread.sd:.6f}"
    return f"{spread.mean:.6f}", sd, str(len(spread.by_seed))


def as_csv(titles: Sequence[str], *rows: Sequence[object]) -> str:
    """No cell is a formula: names of classes and methods can be anything."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_csv_cell(str(cell)) for cell in row] for row in (titles, *rows))
    return text.getvalue()


def _csv_cell(text: str) -> str:
    """A number as it is, -0.05 too; any other text is marked where it looks like a formula."""
    return text if _NUMBER.fullmatch(text) else text_cell(text)
