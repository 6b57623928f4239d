"""From the result files of a study to its report."""

from pathlib import Path

from anocaps.errors import DataError
from anocaps.report.study_page import write_study_report
from anocaps.study.cell import CellResult
from anocaps.study.claims import judge
from anocaps.study.resultfile import SUFFIX, read_result


def read_results(folder: Path) -> list[CellResult]:
    """Every finished cell below a folder."""
    found = [read_result(path) for path in sorted(folder.rglob(f"*{SUFFIX}"))]
    if not found:
        raise DataError(f"{folder}: no finished cell is here; run 'anocaps study run' first")
    return found


def write_study(name: str, folder: Path, out: Path) -> list[Path]:
    """The page first, then figures and tables."""
    results = read_results(folder)
    return write_study_report(out, results, judge(results))
