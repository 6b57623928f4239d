"""The page of an ablation: what its rule says of each choice, and the numbers of every dataset.

Words and layout are in ablation_page.html, looks in style.css; this file fills them in.
"""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template

from anocaps.study.ablation.rule import Difference, Verdict, taken
from anocaps.study.ablation.summary import SCORES, Row
from anocaps.study.cell import CellResult
from anocaps.study.report.circumstances import circumstances_of
from anocaps.study.report.numbers import Numbers, dataset_title, place_of_dataset
from anocaps.study.report.tables import html_row, html_table
from anocaps.study.studies import UNCHANGED


def ablation_page(
    results: Sequence[CellResult], rows: Sequence[Row], judged: Sequence[Verdict]
) -> str:
    here = files("anocaps.pages") / "templates"
    template = Template(here.joinpath("ablation_page.html").read_text("utf-8"))
    ordered = sorted(rows, key=lambda row: place_of_dataset(row.dataset))
    sections = [_dataset(name, list(own)) for name, own in groupby(ordered, lambda r: r.dataset)]
    choice = taken(judged)
    return template.substitute(
        style=here.joinpath("style.css").read_text("utf-8"),
        taken="the network unchanged" if choice == UNCHANGED else escape(choice),
        verdicts=_verdicts(judged),
        datasets="\n".join(sections),
        made=circumstances_of(Numbers(results)),
    )


def _verdicts(judged: Sequence[Verdict]) -> str:
    every = {dataset for verdict in judged for dataset in verdict.datasets}
    rows = [
        html_row(
            escape(verdict.choice),
            [
                f"<td>{'whole' if verdict.whole else 'short'}</td>",
                _difference(verdict.both),
                _difference(verdict.pp),
                f"<td>{'<b>yes</b>' if verdict.gains else 'no'}</td>",
                f"<td>{'all' if every <= set(verdict.datasets) else _names(verdict)}</td>",
            ],
        )
        for verdict in judged
    ]
    titles = ["choice", "training", "PP and RE", "PP alone", "gains", "datasets"]
    return html_table("study", titles, rows)


def _names(verdict: Verdict) -> str:
    names = sorted(verdict.datasets, key=place_of_dataset)
    return escape(", ".join(map(dataset_title, names)))


def _dataset(dataset: str, rows: Sequence[Row]) -> str:
    tables = "".join(_table(list(own)) for _, own in groupby(rows, lambda row: row.whole))
    return f"<section><h2>{escape(dataset_title(dataset))}</h2>{tables}</section>"


def _table(rows: Sequence[Row]) -> str:
    """Of one dataset and one length of training."""
    first = rows[0]
    body = [
        html_row(
            escape(row.choice),
            [
                *(_auroc(row, score) for score in SCORES),
                f"<td>{row.accuracy:.3f}</td>",
                f"<td>{row.loss:.3f}</td>",
            ],
        )
        for row in rows
    ]
    titles = ["choice", *(score.upper() for score in SCORES), "accuracy", "last loss"]
    epochs = "1 epoch" if first.epochs == 1 else f"{first.epochs} epochs"
    seeds = "one seed" if first.seeds == 1 else f"{first.seeds} seeds"
    return (
        f"<h3>{'Whole' if first.whole else 'Short'} trainings, {epochs}</h3>"
        + html_table("study", titles, body)
        + f'<p class="note">Mean AUROC of {first.classes} mock anomalies, {seeds}; then the '
        "difference to the unchanged network, ± its standard deviation over the seeds.</p>"
    )


def _auroc(row: Row, score: str) -> str:
    shown = f"{row.auroc[score]:.3f}"
    if row.choice != UNCHANGED:
        spread = row.spread[score]
        apart = f"{row.difference[score]:+.3f}" + ("" if spread is None else f" ± {spread:.3f}")
        shown += f'<span class="sd"> {apart}</span>'
    return f"<td>{shown}</td>"


def _difference(found: Difference) -> str:
    error = "" if found.error is None else f'<span class="sd"> ± {found.error:.4f}</span>'
    return f"<td>{found.mean:+.4f}{error}</td>"
