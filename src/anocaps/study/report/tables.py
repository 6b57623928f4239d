"""The tables of a study: for the page, and as CSV files."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from anocaps.study.cell import LONG
from anocaps.study.report.numbers import (
    HeldOut,
    Numbers,
    Series,
    Spread,
    dataset_title,
    file_name,
    held_out_title,
)

NONE = '<td class="none">–</td>'


def html_table(name: str, titles: Sequence[str], rows: Iterable[str], foot: str = "") -> str:
    """In a box of its own that scrolls sideways where the screen is narrow."""
    cells = "".join(f'<th scope="col">{title}</th>' for title in titles)
    head = f"<thead><tr>{cells}</tr></thead>" if titles else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="{name}">{head}'
        f"<tbody>{''.join(rows)}</tbody>{foot}</table></div>"
    )


def html_row(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>'


def auroc_table(numbers: Numbers, dataset: str) -> str:
    """Held-out classes by methods, the best in bold, the mean of the classes, then the rest."""
    headlines = numbers.headlines(dataset)
    classes = numbers.class_cells(dataset)

    def row(held_out: HeldOut) -> str:
        spreads = [numbers.auroc(dataset, held_out, series) for series in headlines]
        return html_row(escape(held_out_title(held_out)), _cells(spreads))

    last = [row(held) for held in numbers.cells(dataset) if held not in classes]
    if len(classes) > 1:
        means = [numbers.mean_auroc(dataset, series) for series in headlines]
        last.insert(0, html_row("mean", _cells(means)))
    foot = f"<tfoot>{''.join(last)}</tfoot>" if last else ""
    titles = ["held out", *map(_column, headlines)]
    return html_table("study", titles, map(row, classes), foot)


def mean_table(numbers: Numbers) -> str:
    """Datasets by methods: the mean over the classes."""
    headlines = numbers.headlines()
    rows = [
        html_row(
            f'<a href="#data-{file_name(dataset)}">{escape(dataset_title(dataset))}</a>',
            _cells([numbers.mean_auroc(dataset, series) for series in headlines]),
        )
        for dataset in numbers.datasets
    ]
    titles = ["mean AUROC", *map(_column, headlines)]
    return html_table("study", titles, rows)


def further_table(numbers: Numbers, dataset: str) -> str:
    """Means of the further scores, beside the main score of the same network."""
    rows = []
    for series in numbers.further(dataset):
        mean = numbers.mean_auroc(dataset, series)
        if mean is not None:
            rows.append(html_row(escape(series.look.label), [f"<td>{mean}</td>"]))
    return html_table("study small", ["further score", "mean AUROC"], rows) if rows else ""


def long_table(numbers: Numbers) -> str:
    """How many long class capsules images have."""
    rows = []
    for dataset in numbers.datasets:
        for kind, parts in (numbers.lengths(dataset) or {}).items():
            long = parts["long"]
            counts = (long[0], long[1], long[2:].sum())
            cells = [f"<td>{_percent(count / long.sum())}</td>" for count in counts]
            rows.append(html_row(f"{escape(dataset_title(dataset))}, {kind}", cells))
    titles = [f"capsules over {LONG}", "none", "one", "several"]
    return html_table("study small", titles, rows) if rows else ""


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

    return _csv(["held_out", *titles], rows())


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
    return _csv(titles.split(), rows)


def _column(series: Series) -> str:
    """Its title, which may break after a +."""
    return escape(series.look.label).replace("+", "+<wbr>")


def _cells(spreads: Sequence[Spread | None]) -> list[str]:
    """One row of a table, its highest mean in bold."""
    best = max((round(spread.mean, 3) for spread in spreads if spread), default=None)
    return [_cell(spread, best) for spread in spreads]


def _cell(spread: Spread | None, best: float | None) -> str:
    if spread is None:
        return NONE
    mark = ' class="best"' if round(spread.mean, 3) == best else ""
    sd = "" if spread.sd is None else f'<span class="sd"> ± {spread.sd:.3f}</span>'
    return f"<td><span{mark}>{spread.mean:.3f}</span>{sd}</td>"


def _csv_cells(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return "", "", "0"
    sd = "" if spread.sd is None else f"{spread.sd:.6f}"
    return f"{spread.mean:.6f}", sd, str(len(spread.by_seed))


def _csv(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)
    return text.getvalue()


def _percent(share: float) -> str:
    return f"{100 * share:.2f}&nbsp;%"
