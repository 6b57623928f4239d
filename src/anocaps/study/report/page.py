"""The report of a study, from its results alone: one self-contained page, figures, tables.

FOLDER/index.html                    everything, to read
FOLDER/figures/NAME.svg, .png        for papers and slides
FOLDER/tables/DATASET.csv            AUROC, mean and standard deviation over the seeds
FOLDER/tables/field.csv, .tex        every method on every dataset, with errors and differences
FOLDER/metrics.csv                   one row per network and score
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from anocaps.base.errors import InputError
from anocaps.base.files import write_text
from anocaps.pages.rendering import render
from anocaps.study.cell import LONG, CellResult
from anocaps.study.claims.judge import Judged, Verdict
from anocaps.study.claims.paper import Claim
from anocaps.study.claims.rules import T
from anocaps.study.report.chartdata import chart_data
from anocaps.study.report.circumstances import circumstances_of
from anocaps.study.report.costs import Costs
from anocaps.study.report.explained import explained
from anocaps.study.report.field import field_csv, field_latex, field_rows
from anocaps.study.report.figures import case_figures, dot_figure, figure_style, length_figures
from anocaps.study.report.numbers import (
    Numbers,
    dataset_title,
    file_name,
    section_id,
    titled,
)
from anocaps.study.report.runlog import RunLog
from anocaps.study.report.tables import (
    as_csv,
    auroc_table,
    dataset_csv,
    long_table,
    mean_table,
    metrics_csv,
)

_VERDICTS = {  # verdict → class of style.css, and the words for several
    "holds": ("good", "hold"),
    "exceeds": ("good", "exceed"),
    "in part": ("partly", "in part"),
    "does not hold": ("bad", "do not hold"),
    "not measured": ("unknown", "not measured"),
}


def write_study_report(
    folder: Path,
    results: Sequence[CellResult],
    judged: Sequence[Judged] = (),
    moves: Sequence[tuple[Claim, str, float, Verdict]] = (),  # from `judge.sensitivity`
    log: RunLog | None = None,
    raw: Sequence[Path] = (),  # files of raw scores, to link
) -> list[Path]:
    """Write page, figures and tables; return the paths, the page first."""
    if not results:
        raise InputError("there are no results to report: run 'anocaps study run' first")
    numbers = Numbers(results)
    costs = Costs(numbers, log or RunLog())
    if all(each.verdict == "not measured" for each in judged):
        judged = ()
    texts = {folder / name: text for name, text in table_files(numbers, costs).items()}
    with figure_style():
        datasets = [_dataset(numbers, name) for name in numbers.datasets]
        lengths = [figure for name in numbers.datasets for figure in length_figures(numbers, name)]
        page = render(
            "study.html",
            title="The paper’s study, run again",
            means=mean_table(numbers),
            scores=explained(numbers),
            counts=count_verdicts(judged),
            datasets=datasets,
            lengths=lengths,
            premise=long_table(numbers),
            long=LONG,
            claims=[_claim(each) for each in judged],
            revised=sum(bool(each.claim.revised) for each in judged),
            similar=f"{T.similar:.3g}",
            moves=[_move(*each) for each in moves],
            field=field_rows(numbers, costs),
            field_datasets=[dataset_title(name) for name in numbers.datasets],
            raw=[(path.name, _link(folder, path)) for path in raw],
            charts=chart_data(numbers),
            circumstances=circumstances_of(numbers, costs),
        )
        texts = {folder / "index.html": page} | texts
        for path, text in texts.items():
            write_text(path, text)
        figures = [figure for each in datasets for figure in (*each["cases"], each["dots"])]
        paths = [figure.write(folder / "figures") for figure in figures + lengths]
    return [*texts, *(path for each in paths for path in each)]


def table_files(numbers: Numbers, costs: Costs) -> dict[str, str]:
    """The CSV and LaTeX files beside the page: name → text."""
    return {
        "metrics.csv": metrics_csv(numbers),
        "tables/field.csv": as_csv(*field_csv(numbers, costs)),
        "tables/field.tex": field_latex(numbers),
        **{f"tables/{file_name(d)}.csv": dataset_csv(numbers, d) for d in numbers.datasets},
    }


def _dataset(numbers: Numbers, dataset: str) -> dict[str, Any]:
    return {
        "title": dataset_title(dataset),
        "table": quote(f"tables/{file_name(dataset)}.csv"),
        "place": section_id(dataset),
        "unofficial": not numbers.is_official(dataset),
        "dots": dot_figure(numbers, dataset),
        "auroc": auroc_table(numbers, dataset),
        "cases": list(case_figures(numbers, dataset)),
        "seeds": len(numbers.seeds(dataset)),
        "width": numbers.interval_width(dataset),
    }


def _link(folder: Path, path: Path) -> str:
    """The address of a file, relative to the page in this folder."""
    return quote(Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix())


def count_verdicts(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """Claims by verdict."""
    counts = Counter[str](each.verdict for each in judged)
    return [
        {
            "verdict": verdict,
            "kind": kind,
            "count": counts[verdict],
            "words": verdict if counts[verdict] == 1 else words,
        }
        for verdict, (kind, words) in _VERDICTS.items()
        if counts[verdict]
    ]


def _move(claim: Claim, threshold: str, level: float, verdict: Verdict) -> dict[str, str]:
    return {
        "says": claim.says,
        "threshold": threshold.replace("_", " "),
        "usual": f"{getattr(T, threshold):.3g}",
        "level": f"{level:.3g}",
        "verdict": verdict,
        "kind": _VERDICTS[verdict][0],
    }


def _claim(judged: Judged) -> dict[str, Any]:
    claim = judged.claim
    data = map(dataset_title, claim.datasets) if len(claim.datasets) < 3 else ["all datasets"]
    numbers = [  # which do not break over lines
        re.sub(r" (?=[−±.\d])|(?<=±) ", "\u00a0", each) for each in titled(judged.numbers)
    ]
    seeds = list(judged.by_seed.values())
    true = f"rule true in {sum(seeds)} of {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    return {
        "says": claim.says,
        "where": " · ".join([claim.where, *data]),
        "rule": claim.rule.words,
        "revised": claim.revised,
        "before": claim.before,
        "numbers": numbers,
        "verdict": judged.verdict,
        "kind": _VERDICTS[judged.verdict][0],
        "seeds": true if seeds else "",
    }
