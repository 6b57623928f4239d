"""The cells of a run and the state of each, read from the files of its folder.

    FOLDER/plan.json                            the cells of all runs in this folder
    FOLDER/DATASET/METHOD/CLASS-seedN.npz       a finished cell (resultfile.py)
    FOLDER/METHOD.parquet                       finished cells, packed (packed.py)
    …                              .running     a runner works on it (reservations.py)
    …                              .failed      the error that ended it; the next run tries again

A cell is finished if its result is undamaged and has the cell's fingerprint (fingerprints.py). A
.npz file takes precedence over a packed cell.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from anocaps.base.errors import DataError, InputError
from anocaps.base.files import one_run, write_text
from anocaps.base.text import printable
from anocaps.data import Dataset
from anocaps.data.sources import FOLDER, load_source
from anocaps.study.fingerprints import fingerprint_of
from anocaps.study.packed import packed_fingerprint
from anocaps.study.reservations import SUFFIX as RUNNING
from anocaps.study.reservations import is_running
from anocaps.study.resultfile import SUFFIX as FINISHED
from anocaps.study.resultfile import read_fingerprint
from anocaps.study.studies import Cell, Options, as_file_name, find_study

FAILED = ".failed"
_PLAN = "plan.json"
_NAME = re.compile(r"[\w.~%+-]+", re.ASCII)  # what as_file_name returns

StoredPlan = dict[str, dict[str, str]]  # cell name → dataset, method, fingerprint


@dataclass(frozen=True)
class Work:
    """Which cells to run, and where. Every worker receives this description."""

    study: str
    options: Options
    folder: Path
    data_dir: Path | None
    device: str

    def absolute(self) -> "Work":
        """With paths that mean the same in every process."""
        methods = (os.path.abspath(m) if m.endswith(".py") else m for m in self.options.methods)
        datasets = (
            f"{FOLDER}{os.path.abspath(d.removeprefix(FOLDER))}" if d.startswith(FOLDER) else d
            for d in self.options.datasets
        )
        return replace(
            self,
            options=replace(self.options, methods=tuple(methods), datasets=tuple(datasets)),
            folder=self.folder.absolute(),
            data_dir=self.data_dir and self.data_dir.absolute(),
        )


@dataclass(frozen=True)
class Planned:
    cell: Cell
    fingerprint: str

    def is_done(self, folder: Path) -> bool:
        return _stored_fingerprint(folder, self.cell.name) == self.fingerprint


@dataclass(frozen=True)
class Standing:
    """How many cells of one dataset and method are in each state."""

    dataset: str
    method: str
    done: int
    running: int
    failed: int
    left: int
    damaged: tuple[str, ...] = ()  # one line for each damaged file; its cells are not done


def planned(work: Work) -> Iterator[tuple[str, Dataset, list[Planned]]]:
    """For each dataset: the name that the user gave, the dataset, and the cells to run."""
    study = find_study(work.study)
    for name in work.options.datasets or study.datasets:
        dataset = load_source(name, work.data_dir)
        _check_choices(dataset, work.options)
        cells = study.cells(dataset, work.options)
        here = [Planned(cell, fingerprint_of(cell, dataset, work.device)) for cell in cells]
        yield name, dataset, here


def _check_choices(dataset: Dataset, options: Options) -> None:
    for method, classes in options.choices.get(dataset.name, {}).items():
        if missing := [name for name in dataset.class_names if name not in classes]:
            raise DataError(
                f"the choices of tuning lack class {missing[0]} of {method} on {dataset.name}; "
                "run 'anocaps study run tuning', then 'study report tuning'"
            )


def refuse_to_replace(folder: Path, cells: Iterable[Planned]) -> None:
    """Raise if a cell is finished with other settings."""
    other = []
    for each in cells:
        found = _stored_fingerprint(folder, each.cell.name)
        if isinstance(found, str) and found != each.fingerprint:
            other.append(each.cell.name)
    if other:
        raise InputError(
            f"{folder}: {len(other)} of these cells were finished with other settings "
            f"(the first is {other[0]}); name another --folder or add --replace"
        )


def as_stored(cells: Iterable[Planned]) -> StoredPlan:
    return {
        each.cell.name: {
            "dataset": each.cell.dataset,
            "method": each.cell.label,
            "fingerprint": each.fingerprint,
        }
        for each in cells
    }


def add_to_plan(folder: Path, plan: StoredPlan) -> None:
    """Store the cells with those of earlier runs, for `standings`."""
    path = folder / _PLAN
    with one_run(path, seconds=60):  # other runners add their cells too
        known = _read_plan(path) if path.exists() else {}
        write_text(path, json.dumps(known | plan, indent=0) + "\n")


def _read_plan(path: Path) -> StoredPlan:
    try:
        plan: StoredPlan = json.loads(path.read_bytes())
        if all(_is_planned(name, what) for name, what in plan.items()):
            return plan
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        pass
    raise DataError(f"{path}: not the plan of a study; delete it and run the study again")


def _is_planned(name: str, what: dict[str, str]) -> bool:
    """Whether the parts of an entry belong together: then its name is that of a file."""
    *folders, last = name.split("/")
    same = folders == [as_file_name(what["dataset"]), as_file_name(what["method"])]
    apart = not {"", ".", ".."} & {*folders}
    return same and apart and bool(_NAME.fullmatch(last)) and type(what["fingerprint"]) is str


def standings(folder: Path) -> list[Standing]:
    """The state of every run in a folder."""
    path = folder / _PLAN
    if not path.exists():
        raise DataError(f"{folder}: no study was run here; start one with 'anocaps study run'")
    return progress(folder, _read_plan(path))


def failures(folder: Path, row: Standing) -> Iterator[tuple[Path, str]]:
    """The .failed files of a row, each with its last line: the error."""
    place = folder / as_file_name(row.dataset) / as_file_name(row.method)
    for path in sorted(place.glob(f"*{FAILED}")):
        lines = path.read_bytes().decode("utf-8", "backslashreplace").split("\n")
        yield path, printable(next(filter(None, map(str.strip, lines[::-1])), "unknown error"))


def progress(folder: Path, plan: StoredPlan) -> list[Standing]:
    """The state of the cells of a plan, by dataset and method."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    damaged: dict[str, tuple[str, str]] = {}  # a packed file has cells of several rows: named once
    for name, what in plan.items():
        key = what["dataset"], what["method"]
        found = _stored_fingerprint(folder, name)
        if isinstance(found, DataError):
            damaged.setdefault(str(found), key)
        done = found == what["fingerprint"]
        rows.setdefault(key, Counter())["done" if done else _unfinished(folder, name)] += 1
    return [
        Standing(
            *key, row["done"], row["running"], row["failed"], row["left"],
            damaged=tuple(line for line, first in damaged.items() if first == key),
        )
        for key, row in rows.items()
    ]  # fmt: skip


def _unfinished(folder: Path, name: str) -> str:
    """The state of a cell that is not done."""
    if is_running(folder / f"{name}{RUNNING}"):
        return "running"
    return "failed" if (folder / f"{name}{FAILED}").exists() else "left"


def _stored_fingerprint(folder: Path, name: str) -> str | DataError | None:
    """The fingerprint of a cell's result, or the error of a damaged file; None if there is none."""
    path = folder / f"{name}{FINISHED}"
    try:
        return _fingerprint_in(path, name, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return packed_fingerprint(folder, name)


@cache
def _fingerprint_in(path: Path, name: str, changed: int) -> str | DataError:
    try:
        return read_fingerprint(path, name)
    except DataError as error:
        return DataError(str(error))  # without the traceback, which holds the file's content
