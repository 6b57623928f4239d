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
MOST = 1e12  # of cells and of seconds


@dataclass(frozen=True)
class RunLog:
    runs: Sequence[dict[str, Any]] = ()

    @classmethod
    def read(cls, path: Path) -> "RunLog":
        """The log at this path, without damaged lines; an empty log if there is none."""
        lines = path.read_bytes().splitlines() if path.is_file() else []
        return cls([run for run in map(_record, lines) if run is not None])


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a run; None if the line is damaged."""
    try:
        run = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(run, dict) or not all(isinstance(run.get(k), t) for k, t in _TYPES.items()):
        return None
    if not all(isinstance(name, str) for name in (*run["datasets"], *run["methods"])):
        return None
    return run if all(0 <= run[name] < MOST for name in ("finished", "seconds")) else None
