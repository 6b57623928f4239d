"""Make the report of a study from its result files."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from anocaps.base.errors import DataError
from anocaps.base.files import write_text
from anocaps.study.budgets import FIELD, Row
from anocaps.study.cell import CellResult
from anocaps.study.claims.judge import judge, sensitivity
from anocaps.study.packed import SUFFIX as PACKED
from anocaps.study.packed import read_packed
from anocaps.study.report.page import write_study_report
from anocaps.study.report.runlog import RunLog
from anocaps.study.resultfile import SUFFIX, read_result
from anocaps.study.studies import find_study, settings_for
from anocaps.study.tuning import Choices, changes, chosen, mock_aurocs


def read_results(folder: Path) -> list[CellResult]:
    """Every finished cell of a folder, with the variant that its row names."""
    cells = {
        name: read_result(path, name)
        for path in sorted(folder.rglob(f"*{SUFFIX}"))
        for name in (path.relative_to(folder).with_suffix("").as_posix(),)
    }
    for path in sorted(folder.glob(f"*{PACKED}")):
        cells = {name: result for name, result, _ in read_packed(path)} | cells
    found = []
    for name, result in sorted(cells.items(), key=lambda each: each[0].split("/")):
        row = unquote(name.split("/")[-2].replace("_", " "))
        variant = row.removeprefix(result.method).removeprefix("-")
        found.append(replace(result, variant=variant))
    if not found:
        raise DataError(f"{folder}: no finished cell is here; run 'anocaps study run' first")
    return found


def read_choices(path: Path) -> Choices:
    """Read the choices that `study report tuning` wrote."""
    try:
        found: Choices = json.loads(path.read_text())["chosen"]
        for methods in found.values():
            for method, classes in methods.items():
                for choice in classes.values():
                    changes(method)[choice]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise DataError(
            f"{path}: no choices of tuning ({reason}); run 'anocaps study report tuning'"
        ) from error
    return found


def write_study(name: str, folder: Path, out: Path, data_dir: Path | None = None) -> list[Path]:
    """Write the report of a study; return the paths, the page first.

    Some claims need images of the datasets in `data_dir`.
    """
    find_study(name)  # refuses an unknown name
    results = read_results(folder)
    if name == "tuning":
        return [_write_choices(out / "choices.json", results)]
    described = [r for r in results if _as_in_the_paper(r)]
    log = RunLog.read(folder / "log.jsonl")
    raw = sorted(folder.glob(f"*{PACKED}"))
    judged = judge(described, data_dir=data_dir)
    return write_study_report(out, results, judged, sensitivity(described, data_dir), log, raw)


def _write_choices(path: Path, results: Sequence[CellResult]) -> Path:
    """Write the choices of tuning and their mock AUROCs. `study run field` reads the file."""
    mock = {", ".join(key): each for key, each in mock_aurocs(results).items()}
    write_text(path, json.dumps({"chosen": chosen(results), "mock AUROC": mock}, indent=1) + "\n")
    return path


def _as_in_the_paper(result: CellResult) -> bool:
    """Whether a cell has the study's network, epochs and images: claims use only those."""
    epochs = settings_for(result.dataset, "paper").get("epochs")
    row = next((each for each in FIELD if each.label == result.method), Row(result.method))
    epochs = row.epochs.get(result.dataset, epochs)
    as_described = not result.variant and result.settings.get("epochs", epochs) == epochs
    return as_described and result.limit is None
