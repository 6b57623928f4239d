"""The demo's report: one self-contained page with the results of each held-out class."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anocaps.base.files import write_text
from anocaps.judging.metrics import Metrics, roc_curve
from anocaps.judging.sentences import describe
from anocaps.pages.charts import histogram, line_chart
from anocaps.pages.rendering import render
from anocaps.study.report.tables import Cell, Row, Table, settings_table

SCORES = {"pp": "PP", "re": "RE", "pp+re": "PP+RE"}
STRIP = 20  # originals and reconstructions shown of normal and of anomalous images
EXTREMES = 6  # most normal and most anomalous images shown


@dataclass(frozen=True)
class ReportCell:
    """One cell: the held-out class, and the scores and reconstruction of each test image."""

    held_out: str
    scores: dict[str, npt.NDArray[np.float64]]  # "pp", "re", "pp+re": higher = more normal
    anomalous: npt.NDArray[np.bool_]
    metrics: dict[str, Metrics]  # by score function
    accuracy: float  # on the normal test images
    looks_like: list[str]  # class of the longest capsule
    images: npt.NDArray[np.uint8]  # N×H×W or N×H×W×C
    reconstructions: npt.NDArray[np.uint8]  # same shape


def write_report(
    path: Path, title: str, lead: str, cells: Sequence[ReportCell], settings: Mapping[str, str]
) -> None:
    """Write the page; `lead` is the paragraph under its title."""
    page = render(
        "demo.html",
        title=title,
        lead=lead,
        summary=_summary(cells),
        cells=[_shown(cell) for cell in cells],
        settings=settings_table(settings),
    )
    write_text(path, page)


def _summary(cells: Sequence[ReportCell]) -> Table:
    rows = []
    for index, cell in enumerate(cells):
        best = max(round(cell.metrics[score].auroc, 3) for score in SCORES)
        aurocs = [_auroc(cell.metrics[score], best) for score in SCORES]
        rows.append(Row(cell.held_out, [*aurocs, _percent(cell.accuracy)], f"cell-{index}"))
    foot = []
    if len(cells) > 1:
        means = [np.mean([cell.metrics[score].auroc for cell in cells]) for score in SCORES]
        accuracy = float(np.mean([cell.accuracy for cell in cells]))
        foot = [Row("Mean", [*(Cell(f"{mean:.3f}") for mean in means), _percent(accuracy)])]
    titles = ["Held out", *(f"AUROC, {name}" for name in SCORES.values()), "Accuracy"]
    return Table(titles, rows, foot, "summary")


def _shown(cell: ReportCell) -> dict[str, Any]:
    """The values of a cell in demo.html."""
    groups = {
        score: {"normal": values[~cell.anomalous], "anomalous": values[cell.anomalous]}
        for score, values in cell.scores.items()
    }
    curves = {
        f"{name}: AUROC {cell.metrics[score].auroc:.3f}": roc_curve(*groups[score].values())
        for score, name in SCORES.items()
    }
    order = np.argsort(cell.scores["pp+re"], kind="stable")
    return {
        "held_out": cell.held_out,
        "accuracy": cell.accuracy,
        "brief": [(name, f"{cell.metrics[score].auroc:.3f}") for score, name in SCORES.items()],
        "roc": line_chart(curves, "ROC curves", "false alarms", "anomalies found"),
        "histograms": [
            histogram(groups[score], f"Histogram of {name}", f"{name} score, higher is more normal")
            for score, name in SCORES.items()
        ],
        "figures": _figures(cell),
        "groups": [_group(cell, anomalous) for anomalous in (False, True)],
        "most_anomalous": _images(cell, order[:EXTREMES]),
        "most_normal": _images(cell, order[::-1][:EXTREMES]),
    }


def _figures(cell: ReportCell) -> Table:
    rows = []
    for score, name in SCORES.items():
        metrics = cell.metrics[score]
        cells = [_auroc(metrics), Cell(f"{metrics.aupr:.3f}"), _percent(metrics.fpr95)]
        rows.append(Row(name, cells))
    return Table(["Score", "AUROC", "AUPR", "Missed*"], rows, kind="figures")


def _group(cell: ReportCell, anomalous: bool) -> dict[str, Any]:
    """The number of normal or anomalous images, and a sample at even distances."""
    members = np.flatnonzero(cell.anomalous == anomalous)
    spread = np.unique(np.linspace(0, len(members) - 1, STRIP).astype(int))
    return {
        "anomalous": anomalous,
        "count": len(members),
        "images": _images(cell, members[spread]),
    }


def _images(cell: ReportCell, members: Iterable[int]) -> list[dict[str, Any]]:
    normals = {score: np.sort(values[~cell.anomalous]) for score, values in cell.scores.items()}
    shown = []
    for index in members:
        above = {  # share of normal images with a higher score
            score: 1 - np.searchsorted(values, cell.scores[score][index], "right") / len(values)
            for score, values in normals.items()
        }
        looks_like = cell.looks_like[index]
        sentence = describe(looks_like, above["pp+re"], above["pp"], above["re"])
        shown.append(
            {
                "original": cell.images[index],
                "reconstruction": cell.reconstructions[index],
                "looks_like": looks_like,
                "anomalous": bool(cell.anomalous[index]),
                "sentence": sentence.replace(" %", "\u00a0%"),
            }
        )
    return shown


def _auroc(metrics: Metrics, best: float | None = None) -> Cell:
    interval = f"{metrics.auroc_low:.3f}–{metrics.auroc_high:.3f}"
    return Cell(f"{metrics.auroc:.3f}", interval, round(metrics.auroc, 3) == best)


def _percent(share: float) -> Cell:
    return Cell(f"{100 * share:.1f}\u00a0%")
