"""The page of an ablation: a verdict on each choice, and the numbers of every dataset."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from anocaps.pages.rendering import render
from anocaps.study import ablation
from anocaps.study.ablation import SCORES, Difference, Verdict
from anocaps.study.cell import CellResult
from anocaps.study.report.circumstances import circumstances_of
from anocaps.study.report.numbers import Numbers, dataset_title, place_of_dataset
from anocaps.study.report.tables import Cell, Row, Table
from anocaps.study.studies import UNCHANGED


def ablation_page(
    results: Sequence[CellResult], rows: Sequence[ablation.Row], judged: Sequence[Verdict]
) -> str:
    ordered = sorted(rows, key=lambda row: place_of_dataset(row.dataset))
    choice = ablation.taken(judged)
    return render(
        "ablation.html",
        title="Ablation",
        taken="the network unchanged" if choice == UNCHANGED else choice,
        verdicts=_verdicts(judged),
        datasets=[
            {
                "title": dataset_title(dataset),
                "parts": [_part(list(part)) for _, part in groupby(own, lambda row: row.whole)],
            }
            for dataset, own in groupby(ordered, lambda row: row.dataset)
        ],
        circumstances=circumstances_of(Numbers(results)),
    )


def _verdicts(judged: Sequence[Verdict]) -> Table:
    every = {dataset for verdict in judged for dataset in verdict.datasets}
    rows = []
    for verdict in judged:
        names = map(dataset_title, sorted(verdict.datasets, key=place_of_dataset))
        cells = [
            Cell("whole" if verdict.whole else "short"),
            _difference(verdict.both),
            _difference(verdict.pp),
            Cell("yes" if verdict.gains else "no", best=verdict.gains),
            Cell("all" if every <= set(verdict.datasets) else ", ".join(names)),
        ]
        rows.append(Row(verdict.choice, cells))
    return Table(["choice", "training", "PP and RE", "PP alone", "gains", "datasets"], rows)


def _part(rows: Sequence[ablation.Row]) -> dict[str, Any]:
    """The numbers of one dataset and one length of training."""
    first = rows[0]
    body = [
        Row(
            row.choice,
            [
                *(_auroc(row, score) for score in SCORES),
                Cell(f"{row.accuracy:.3f}"),
                Cell(f"{row.loss:.3f}"),
            ],
        )
        for row in rows
    ]
    titles = ["choice", *(score.upper() for score in SCORES), "accuracy", "last loss"]
    told = {name: getattr(first, name) for name in ("whole", "epochs", "classes", "seeds")}
    return told | {"table": Table(titles, body)}


def _auroc(row: ablation.Row, score: str) -> Cell:
    aside = ""
    if row.choice != UNCHANGED:
        spread = row.spread[score]
        aside = f"{row.difference[score]:+.3f}" + ("" if spread is None else f" ± {spread:.3f}")
    return Cell(f"{row.auroc[score]:.3f}", aside)


def _difference(found: Difference) -> Cell:
    return Cell(f"{found.mean:+.4f}", "" if found.error is None else f"± {found.error:.4f}")
