"""From the result files of a study to its report."""

from collections.abc import Sequence
from pathlib import Path

from anocaps.base.errors import DataError
from anocaps.base.files import write_text
from anocaps.detectors.presets import find_preset
from anocaps.study.ablation import summarise, summary_text, verdicts
from anocaps.study.cell import CellResult
from anocaps.study.claims import judge
from anocaps.study.report.ablation import ablation_page
from anocaps.study.report.page import write_study_report
from anocaps.study.resultfile import SUFFIX, read_result
from anocaps.study.studies import find_study, settings_for


def read_results(folder: Path) -> list[CellResult]:
    """Every finished cell below a folder."""
    found = [read_result(path) for path in sorted(folder.rglob(f"*{SUFFIX}"))]
    if not found:
        raise DataError(f"{folder}: no finished cell is here; run 'anocaps study run' first")
    return found


def write_study(name: str, folder: Path, out: Path) -> list[Path]:
    """Write the report of a study; return the paths, the page first."""
    find_study(name)  # refuses an unknown name
    results = read_results(folder)
    if name == "ablation":
        return _write_ablation(out, [r for r in results if r.variant])
    whole = [r for r in results if not r.variant]
    return write_study_report(out, whole, judge([r for r in whole if _as_in_the_paper(r)]))


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
    asked = settings_for(result.dataset, "paper")
    wanted: dict[str, object] = {"epochs": asked.get("epochs"), "preset": "paper"}
    if result.method == "capsnet":  # the preset's present values
        preset = find_preset("paper")
        wanted["final_share"] = preset.final_share
        wanted["reconstruction_weight"] = preset.reconstruction_weight
    return result.limit is None and all(
        result.settings.get(name, value) == value for name, value in wanted.items()
    )
