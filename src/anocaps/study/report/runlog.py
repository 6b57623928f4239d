"""The log of a study's runs: log.jsonl in the folder of the results, one line per run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TYPES: dict[str, Any] = {  # of a record
    **dict.fromkeys(("study", "device"), str),
    **dict.fromkeys(("datasets", "methods"), list),
    "finished": int,
    "seconds": int | float,
}
_MOST = 1e12  # of cells and of seconds


@dataclass(frozen=True)
class RunLog:
    runs: Sequence[dict[str, Any]] = ()

    @classmethod
    def read(cls, path: Path) -> "RunLog":
        """The log at this path, without damaged lines; an empty log if there is none."""
        lines = path.read_bytes().splitlines() if path.is_file() else []
        return cls([run for run in map(_record, lines) if run is not None])

    def seconds_per_cell(self, label: str, dataset: str) -> float | None:
        """Training and scoring of a cell of this row; None if no run had only this row."""
        runs = [
            run
            for run in self.runs
            if run["methods"] == [label]
            and dataset in run["datasets"]
            # In older runs of the study `paper`, "capsnet" names every preset.
            and (label != "capsnet" or run["study"] == "field")
        ]
        cells = sum(run["finished"] for run in runs)
        return sum(run["seconds"] for run in runs if run["finished"]) / cells if cells else None

    def total(self, kept: int) -> str:
        """One sentence: the cells and minutes of all runs. `kept`: finished cells of the folder."""
        parts = []
        for device in dict.fromkeys(run["device"] for run in self.runs):
            runs = [run for run in self.runs if run["device"] == device]
            minutes = sum(run["seconds"] for run in runs) / 60
            cells = sum(run["finished"] for run in runs)
            parts.append(f"{cells:,} cells in {minutes:,.0f} minutes on {device}")
        logged = " and ".join(parts)
        return f"The log has {logged}; {kept:,} cells are kept." if logged else ""


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a run; None if the line is damaged."""
    try:
        run = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(run, dict) or not all(isinstance(run.get(k), t) for k, t in _TYPES.items()):
        return None
    return run if all(0 <= run[name] < _MOST for name in ("finished", "seconds")) else None
