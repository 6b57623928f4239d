"""The report of a study, from its results alone: one self-contained page, figures, tables.

    FOLDER/index.html              everything, to read
    FOLDER/figures/NAME.svg, .png  for papers
    FOLDER/tables/DATASET.csv      AUROC, mean and standard deviation over the seeds
    FOLDER/metrics.csv             one row per network and score

Words and layout are in study_page.html, looks in style.css; this file fills them in.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from anocaps.base.errors import InputError
from anocaps.base.files import write_text
from anocaps.study.cell import LONG, CellResult
from anocaps.study.claims import Judged
from anocaps.study.report.circumstances import circumstances_of
from anocaps.study.report.drawing import svg_file, svg_for_page
from anocaps.study.report.figures import Figure, bar_figure, case_figures, kinds, length_figures
from anocaps.study.report.numbers import Numbers, dataset_title, file_name
from anocaps.study.report.png import write_png
from anocaps.study.report.tables import (
    auroc_table,
    dataset_csv,
    further_table,
    html_table,
    long_table,
    mean_table,
    metrics_csv,
)

_VERDICTS = {  # verdict → class of style.css, and the words for several
    "holds": ("good", "hold"),
    "in part": ("partly", "in part"),
    "does not hold": ("bad", "do not hold"),
    "not measured": ("unknown", "not measured"),
}


def write_study_report(
    folder: Path,
    results: Sequence[CellResult],
    judged: Sequence[Judged] = (),
) -> list[Path]:
    """Write everything that the results allow; the paths, the page's first."""
    if not results:
        raise InputError("a report needs results: run the study first (anocaps study run)")
    numbers = Numbers(results)
    if all(each.verdict == "not measured" for each in judged):
        judged = ()
    cases = {name: list(case_figures(numbers, name)) for name in numbers.datasets}
    bars = {name: bar_figure(numbers, name) for name in numbers.datasets}
    lengths = {name: list(length_figures(numbers, name)) for name in numbers.datasets}

    texts = {
        folder / "index.html": _page(numbers, judged, cases, bars, lengths),
        folder / "metrics.csv": metrics_csv(numbers),
    }
    for name in numbers.datasets:
        texts[folder / "tables" / f"{file_name(name)}.csv"] = dataset_csv(numbers, name)
    written = list(texts)
    for name in numbers.datasets:
        for figure in [*cases[name], bars[name], *lengths[name]]:
            path = folder / "figures" / f"{figure.name}.svg"
            texts[path] = svg_file(figure.drawing)
            write_png(path.with_suffix(".png"), figure.drawing)
            written += [path, path.with_suffix(".png")]
    for path, text in texts.items():
        write_text(path, text)
    return written


def _page(
    numbers: Numbers,
    judged: Sequence[Judged],
    cases: dict[str, list[Figure]],
    bars: dict[str, Figure],
    lengths: dict[str, list[Figure]],
) -> str:
    here = files("anocaps.pages") / "templates"
    template = Template(here.joinpath("study_page.html").read_text("utf-8"))
    sections = [_dataset(numbers, name, cases[name], bars[name]) for name in numbers.datasets]
    looks = [series.look for series in numbers.headlines()] + kinds()
    return template.substitute(
        style=here.joinpath("style.css").read_text("utf-8"),
        links=_links(numbers, judged, any(lengths.values())),
        summary=mean_table(numbers) + _verdict_counts(judged),
        datasets="\n".join(sections),
        lengths=_lengths(numbers, lengths),
        claims=_claims(judged),
        made=circumstances_of(numbers),
        colours=json.dumps({look.label: look.colour for look in looks}).replace("<", "\\u003c"),
    )


def _links(numbers: Numbers, judged: Sequence[Judged], lengths: bool) -> str:
    places = {f"data-{file_name(name)}": dataset_title(name) for name in numbers.datasets}
    places |= {"lengths": "Lengths of capsules"} if lengths else {}
    places |= {"claims": "Claims"} if judged else {}
    places |= {"made": "How it was made"}
    return "".join(f'<a href="#{place}">{escape(name)}</a>' for place, name in places.items())


def _dataset(numbers: Numbers, dataset: str, cases: Sequence[Figure], bars: Figure) -> str:
    unofficial = any(not r.official for r in numbers.results if r.dataset == dataset)
    badge = ' <span class="badge">unofficial copy</span>' if unofficial else ""
    width = numbers.interval_width(dataset)
    return f"""<section id="data-{file_name(dataset)}">
<h2>{escape(dataset_title(dataset))}{badge}</h2>
{_figure(bars)}
{auroc_table(numbers, dataset)}
<p class="note">AUROC{_sd(numbers, dataset)}; the highest of a row in bold. The choice of test
images adds its own chance: within one seed, the 95&nbsp;% bootstrap interval of an AUROC is
{width:.3f} wide on average.</p>
{further_table(numbers, dataset)}
<div class="figures-side">{"".join(map(_figure, cases))}</div>
</section>"""


def _sd(numbers: Numbers, dataset: str) -> str:
    seeds = len(numbers.seeds(dataset))
    return f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ", one seed"


def _figure(figure: Figure) -> str:
    drawings = svg_for_page(figure.drawing)
    if figure.narrow is not None:
        narrow = svg_for_page(figure.narrow)
        drawings = f'<div class="broad">{drawings}</div><div class="narrow">{narrow}</div>'
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    return f"<figure><h3>{escape(figure.heading)}</h3>{drawings}{caption}</figure>"


def _lengths(numbers: Numbers, lengths: dict[str, list[Figure]]) -> str:
    if not any(lengths.values()):
        return ""
    figures = "".join(_figure(figure) for each in lengths.values() for figure in each)
    return f"""<section id="lengths">
<h2>Lengths of class capsules</h2>
<p class="prose">PP rests on a premise: a normal image has exactly one long class capsule, an
anomalous one none. Here are the lengths of all class capsules of the test images, over all cells
and seeds, and how many images have none, one or several longer than {LONG}: shares of all these
images together, not means over the classes.</p>
{long_table(numbers)}
<div class="figures-side">{figures}</div>
</section>"""


def _verdict_counts(judged: Sequence[Judged]) -> str:
    if not judged:
        return ""
    counts = Counter[str](each.verdict for each in judged)
    shares = "".join(
        f'<a href="#claims" class="{kind}" style="flex-grow:{counts[verdict]}">'
        f"<b>{counts[verdict]}</b> {words if counts[verdict] > 1 else verdict}</a>"
        for verdict, (kind, words) in _VERDICTS.items()
        if counts[verdict]
    )
    words = f"Of {len(judged)} claims of the paper:"
    return f'<p class="prose">{words}</p><div class="verdicts">{shares}</div>'


def _claims(judged: Sequence[Judged]) -> str:
    if not judged:
        return ""
    titles = ["The paper says", "Our rule", "Our numbers", "Verdict"]
    table = html_table("claims", titles, map(_claim, judged))
    return f"""<section id="claims">
<h2>The paper’s claims</h2>
<p class="prose">Rules were fixed before the full run. A claim <b>holds</b> where its rule is true
in the mean over the seeds and in every seed, <b>in part</b> where it is true in the mean only.</p>
{table}
</section>"""


def _claim(judged: Judged) -> str:
    claim = judged.claim
    data = map(dataset_title, claim.datasets) if len(claim.datasets) < 3 else ["all datasets"]
    where = " · ".join([claim.where, *data])
    ours = re.sub(r" (?=[−±.\d])|(?<=±) ", "&nbsp;", escape(judged.numbers))  # stay together
    ours = ours.replace("; ", "<br>")
    seeds = _true_seeds(judged.by_seed.values())
    return (
        f'<tr><th scope="row">{escape(claim.says)}<span class="where">{escape(where)}</span></th>'
        f'<td class="rule">{escape(claim.rule.words)}</td>'
        f'<td class="ours">{ours or "–"}</td>'
        f'<td><span class="verdict {_VERDICTS[judged.verdict][0]}">{judged.verdict}</span>'
        f'<span class="where">{seeds}</span></td></tr>'
    )


def _true_seeds(by_seed: Iterable[bool]) -> str:
    every = list(by_seed)
    if len(every) == 1:
        return "one seed"
    return f"true in {sum(every)} of {len(every)} seeds" if every else ""
