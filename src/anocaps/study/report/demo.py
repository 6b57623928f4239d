"""The report: one self-contained HTML file on what was found with each class held out.

Words and layout are in page.html, looks in style.css; this file fills them in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from anocaps.base.files import write_text
from anocaps.judging.metrics import Metrics, roc_curve
from anocaps.judging.sentences import describe
from anocaps.pages.charts import histogram, line_chart
from anocaps.pages.embed import data_uri

SCORES = {"pp": "PP", "re": "RE", "pp+re": "PP+RE"}
STRIP = 20  # originals and reconstructions shown of each kind
EXTREMES = 6  # most normal and most anomalous images shown


@dataclass(frozen=True)
class ReportCell:
    """One run: what was held out, and what the network made of each test image."""

    held_out: str
    scores: dict[str, npt.NDArray[np.float64]]  # "pp", "re", "pp+re": higher = more normal
    anomalous: npt.NDArray[np.bool_]
    metrics: dict[str, Metrics]  # by score, as above
    accuracy: float  # on the normal test images
    looks_like: list[str]  # class of the longest capsule
    images: npt.NDArray[np.uint8]  # N×H×W or N×H×W×C
    reconstructions: npt.NDArray[np.uint8]  # same shape


def write_report(
    path: Path, title: str, lead: str, cells: Sequence[ReportCell], settings: Mapping[str, str]
) -> None:
    """Write the page; `lead` is the paragraph under its title."""
    here = files("anocaps.pages") / "templates"
    template = Template(here.joinpath("page.html").read_text("utf-8"))
    page = template.substitute(
        title=escape(title),
        lead=escape(lead),
        style=here.joinpath("style.css").read_text("utf-8"),
        summary=_summary(cells),
        heading="Each held-out class" if len(cells) > 1 else "In detail",
        cells="\n".join(_section(index, cell) for index, cell in enumerate(cells)),
        settings=_settings(settings),
    )
    write_text(path, page)


def _summary(cells: Sequence[ReportCell]) -> str:
    rows = []
    for index, cell in enumerate(cells):
        best = max(round(cell.metrics[score].auroc, 3) for score in SCORES)
        name = f'<a href="#cell-{index}">{escape(cell.held_out)}</a>'
        shown = [_auroc(cell.metrics[score], best) for score in SCORES]
        rows.append(_row(name, [*shown, f"<td>{_percent(cell.accuracy)}</td>"]))
    mean = ""
    if len(cells) > 1:
        means = [np.mean([cell.metrics[score].auroc for cell in cells]) for score in SCORES]
        accuracy = float(np.mean([cell.accuracy for cell in cells]))
        shown = [*(f"<td>{value:.3f}</td>" for value in means), f"<td>{_percent(accuracy)}</td>"]
        mean = f"<tfoot>{_row('Mean', shown)}</tfoot>"
    titles = [*(f"AUROC, {name}" for name in SCORES.values()), "Accuracy"]
    return _table("summary", ["Held out", *titles], rows, mean)


def _auroc(metrics: Metrics, best: float) -> str:
    mark = ' class="best"' if round(metrics.auroc, 3) == best else ""
    return (
        f"<td><span{mark}>{metrics.auroc:.3f}</span>"
        f'<span class="range">{metrics.auroc_low:.3f}–{metrics.auroc_high:.3f}</span></td>'
    )


def _section(index: int, cell: ReportCell) -> str:
    normal, anomalous = np.flatnonzero(~cell.anomalous), np.flatnonzero(cell.anomalous)
    brief = "".join(
        f'<span class="brief">{name} <b>{cell.metrics[score].auroc:.3f}</b></span>'
        for score, name in SCORES.items()
    )
    order = np.argsort(cell.scores["pp+re"], kind="stable")
    return f"""<details id="cell-{index}"{" open" if index == 0 else ""}>
<summary><span class="which">Held out: {escape(cell.held_out)}</span>{brief}</summary>
<div class="body">
{_charts(cell)}
<h3>Originals above their reconstructions</h3>
<p class="note">Spread evenly over the test set. The network redraws an image from the one class
that it takes it for.</p>
{_strip(cell, anomalous)}
{_strip(cell, normal)}
<h3>Most anomalous</h3>
<p class="note">The lowest PP+RE of the test set: the image, its reconstruction, what it is.</p>
{_cards(cell, order[:EXTREMES])}
<h3>Most normal</h3>
<p class="note">The highest PP+RE of the test set.</p>
{_cards(cell, order[::-1][:EXTREMES])}
</div>
</details>"""


def _charts(cell: ReportCell) -> str:
    groups = {
        score: {"normal": values[~cell.anomalous], "anomalous": values[cell.anomalous]}
        for score, values in cell.scores.items()
    }
    curves = {
        f"{name}: AUROC {cell.metrics[score].auroc:.3f}": roc_curve(*groups[score].values())
        for score, name in SCORES.items()
    }
    roc = line_chart(curves, "ROC curves", "false alarms", "anomalies found")
    histograms = [
        histogram(groups[score], f"Histogram of {name}", f"{name} score, higher is more normal")
        for score, name in SCORES.items()
    ]
    kinds = "".join(
        f"<span>{_kind(cell, odd)}, {np.sum(cell.anomalous == odd):,} images</span>"
        for odd in (False, True)
    )
    return f"""<div class="charts">
<div>
<h3>ROC curves</h3>
<p class="note">Anomalies found against false alarms; dotted: guessing.</p>
{roc}
{_figures(cell)}
</div>
<div>
<h3>Scores of normal and anomalous images</h3>
<p class="note kinds">{kinds}</p>
{"".join(histograms)}
</div>
</div>"""


def _figures(cell: ReportCell) -> str:
    rows = []
    for score, name in SCORES.items():
        metrics = cell.metrics[score]
        cells = [
            _auroc(metrics, -1),
            f"<td>{metrics.aupr:.3f}</td>",
            f"<td>{_percent(metrics.fpr95)}</td>",
        ]
        rows.append(_row(name, cells))
    return _table("figures", ["Score", "AUROC", "AUPR", "Missed*"], rows) + (
        '<p class="note">* anomalies accepted where 95&nbsp;% of normal images are (FPR95). '
        f"Accuracy on normal images: {_percent(cell.accuracy)}.</p>"
    )


def _strip(cell: ReportCell, members: npt.NDArray[Any]) -> str:
    spread = np.unique(np.linspace(0, len(members) - 1, STRIP).astype(int))
    pairs = "".join(f"<div>{_pair(cell, index)}</div>" for index in members[spread])
    odd = bool(cell.anomalous[members[0]])
    return f'<p class="note">{_kind(cell, odd)}</p><div class="strip">{pairs}</div>'


def _cards(cell: ReportCell, members: npt.NDArray[Any]) -> str:
    normals = {score: np.sort(values[~cell.anomalous]) for score, values in cell.scores.items()}
    cards = []
    for index in members:
        odder = {
            score: 1 - np.searchsorted(values, cell.scores[score][index], "right") / len(values)
            for score, values in normals.items()
        }
        words = describe(cell.looks_like[index], odder["pp+re"], odder["pp"], odder["re"])
        words = escape(words).replace(" %", "&nbsp;%")
        kind = _kind(cell, bool(cell.anomalous[index]))
        cards.append(f'<div class="card">{_pair(cell, index)}<p>{kind}{words}</p></div>')
    return f'<div class="cards">{"".join(cards)}</div>'


def _pair(cell: ReportCell, index: int) -> str:
    seen = escape(cell.looks_like[index])
    return (
        f'<img src="{data_uri(cell.images[index])}" alt="original" title="looks like {seen}">'
        f'<img src="{data_uri(cell.reconstructions[index])}" alt="reconstruction"'
        f' title="redrawn as {seen}">'
    )


def _kind(cell: ReportCell, anomalous: bool) -> str:
    if anomalous:
        return f'<span class="kind anomalous">held out: {escape(cell.held_out)}</span>'
    return '<span class="kind normal">normal</span>'


def _settings(settings: Mapping[str, str]) -> str:
    rows = [_row(escape(name), [f"<td>{escape(value)}</td>"]) for name, value in settings.items()]
    return _table("settings", [], rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}&nbsp;%"


def _table(name: str, titles: Sequence[str], rows: Iterable[str], foot: str = "") -> str:
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    head = f"<thead><tr>{head}</tr></thead>" if titles else ""
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="{name}">{head}<tbody>{body}</tbody>{foot}</table></div>'
    )


def _row(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>'
