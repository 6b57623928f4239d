"""From the result files of a study to its report."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from anocaps.base.errors import DataError
from anocaps.base.files import write_text
from anocaps.study.ablation import summarise, summary_text, verdicts
from anocaps.study.cell import CellResult
from anocaps.study.claims import judge
from anocaps.study.report.ablation import ablation_page
from anocaps.study.report.page import write_study_report
from anocaps.study.resultfile import SUFFIX, read_result
from anocaps.study.studies import find_study, settings_for


def read_results(folder: Path) -> list[CellResult]:
    """Every finished cell below a folder, with the variant that its sub-folder names."""
    found = []
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        result = read_result(path)
        row = unquote(path.parent.name.replace("_", " "))
        variant = row.removeprefix(result.method).removeprefix("-")
        found.append(replace(result, variant=variant))
    if not found:
        raise DataError(f"{folder}: no finished cell is here; run 'anocaps study run' first")
    return found


def write_study(name: str, folder: Path, out: Path) -> list[Path]:
    """Write the report of a study; return the paths, the page first."""
    find_study(name)  # refuses an unknown name
    results = read_results(folder)
    if name == "ablation":
        return _write_ablation(out, [r for r in results if r.variant])
    return write_study_report(out, results, judge([r for r in results if _as_in_the_paper(r)]))


def _write_ablation(out: Path, results: Sequence[CellResult]) -> list[Path]:
    rows, judged = summarise(results), verdicts(results)
    texts = {
        out / "index.html": ablation_page(results, rows, judged),
        out / "ablation.json": summary_text(results, rows, judged),
    }
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def _as_in_the_paper(result: CellResult) -> bool:
    """Whether a cell has the paper's network, epochs and images: claims use only those."""
    epochs = settings_for(result.dataset, "paper").get("epochs")
    as_described = not result.variant and result.settings.get("epochs", epochs) == epochs
    return as_described and result.limit is None
