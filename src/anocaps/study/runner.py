"""Runs the cells of a study; every finished one is a file, and nothing else needs to survive.

    FOLDER/DATASET/METHOD/CLASS-seedN.npz       a finished cell
    …                              .running     somebody works on it (reservations.py)
    …                              .failed      the error it ended with; tried again next time

A cell is skipped where its file has the same fingerprint (fingerprints.py).
On a GPU cells of one shape are trained as a fleet. Several jobs are several processes that share
the folder, just as several computers could.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Event, Thread

import torch

from anocaps.base.errors import AnocapsError, DataError, InputError
from anocaps.base.files import write_text
from anocaps.data import Dataset
from anocaps.data.sources import load_source
from anocaps.detectors.base import fit_together
from anocaps.study.cell import measure_cell
from anocaps.study.fingerprints import detector_of, fingerprint_of
from anocaps.study.protocol import cell_data, first_channels, mock_dataset
from anocaps.study.reservations import SUFFIX as RUNNING
from anocaps.study.reservations import Reservations, is_alive, locked
from anocaps.study.resultfile import SUFFIX as FINISHED
from anocaps.study.resultfile import read_fingerprint, write_result
from anocaps.study.studies import Cell, Options, find_study
from anocaps.training.device import circumstances, pick_device

FAILED = ".failed"
_PLAN = "plan.json"
_FLEET = {"cuda": 16, "cpu": 1}  # networks trained at once
_LOOK_SECONDS = 1.0

StoredPlan = dict[str, dict[str, str]]  # cell name → dataset, method, fingerprint


@dataclass(frozen=True)
class Work:
    """A study to run, as every job of it needs to know."""

    study: str
    options: Options
    folder: Path
    data_dir: Path | None
    device: str


@dataclass(frozen=True)
class Planned:
    cell: Cell
    fingerprint: str


@dataclass(frozen=True)
class Standing:
    """How far the cells of one dataset and method are."""

    dataset: str
    method: str
    done: int
    running: int
    failed: int
    left: int


def run_study(
    work: Work,
    jobs: int = 1,
    watch: Callable[[list[Standing]], None] | None = None,
    replace: bool = False,
) -> list[Standing]:
    """Run every unfinished cell; `watch` is told now and then how far they are.

    Told and returned is how far the cells of this run are: the folder may have others, which
    `standings` knows. Cells that were finished with other settings are run again only where
    `replace` says so.
    """
    started = time.time()
    plan = list(planned(work))  # says at once what is wrong with names, data or options
    if not replace:
        _refuse_to_replace(work.folder, plan)
    mine = _as_stored(plan)
    with locked(work.folder):
        _add_to_plan(work.folder, mine)
    with _watching(work.folder, mine, watch):
        written = _run_all(work, plan) if jobs == 1 else _run_in_processes(work, jobs)
    _log(work, jobs, time.time() - started, written)
    return _standings(work.folder, mine)


@contextmanager
def _watching(
    folder: Path, plan: StoredPlan, watch: Callable[[list[Standing]], None] | None
) -> Iterator[None]:
    if watch is None:
        yield
        return
    ended = Event()

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            watch(_standings(folder, plan))

    looking = Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()


def _run_in_processes(work: Work, jobs: int) -> int:
    """The number of cells written."""
    threads = max(1, torch.get_num_threads() // jobs)
    context = get_context("spawn")
    written = [context.RawValue("i") for _ in range(jobs)]  # one each: no lock to die with
    workers = [context.Process(target=_job, args=(work, threads, own)) for own in written]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
    if any(worker.exitcode for worker in workers):
        raise AnocapsError(
            "a job of the study ended unexpectedly (was memory short?); what it had finished is "
            "kept: run the same command again"
        )
    return sum(own.value for own in written)


# ── the plan, and how far it is ──────────────────────────────────────────────────────────────


def planned(work: Work) -> Iterator[tuple[Dataset, list[Planned]]]:
    """Dataset by dataset, what is to be run."""
    study = find_study(work.study)
    for name in work.options.datasets:
        dataset = load_source(name, work.data_dir)
        cells = study(dataset, work.options)
        yield dataset, [Planned(cell, fingerprint_of(cell, dataset, work.device)) for cell in cells]


def _refuse_to_replace(folder: Path, plan: Iterable[tuple[Dataset, list[Planned]]]) -> None:
    paths = [folder / f"{each.cell.name}{FINISHED}" for _, cells in plan for each in cells]
    prints = [each.fingerprint for _, cells in plan for each in cells]
    other = [p for p, want in zip(paths, prints) if p.exists() and not _is_finished(p, want)]
    if other:
        raise InputError(
            f"{folder} holds {len(other)} of these cells with other settings, {other[0].name} "
            "first: name another --folder, or give --replace to run them again"
        )


def _as_stored(plan: Iterable[tuple[Dataset, list[Planned]]]) -> StoredPlan:
    return {
        each.cell.name: {
            "dataset": each.cell.dataset,
            "method": each.cell.label,
            "fingerprint": each.fingerprint,
        }
        for _, cells in plan
        for each in cells
    }


def _add_to_plan(folder: Path, plan: StoredPlan) -> None:
    """Remember the cells in the folder, beside those of earlier runs, for `standings`."""
    path = folder / _PLAN
    known = _read_plan(path) if path.exists() else {}
    write_text(path, json.dumps(known | plan, indent=0) + "\n")


def _read_plan(path: Path) -> StoredPlan:
    try:
        plan: StoredPlan = json.loads(path.read_text())
        if all({"dataset", "method", "fingerprint"} <= set(what) for what in plan.values()):
            return plan
    except (ValueError, AttributeError, TypeError):
        pass
    raise DataError(f"{path}: not the plan of a study; delete it, results stay, and run it again")


def standings(folder: Path) -> list[Standing]:
    """Of every run in a folder, from its files alone."""
    path = folder / _PLAN
    if not path.exists():
        raise DataError(f"{folder}: no study was run here; start one with 'anocaps study run'")
    return _standings(folder, _read_plan(path))


def _standings(folder: Path, plan: StoredPlan) -> list[Standing]:
    rows: dict[tuple[str, str], Counter[str]] = {}
    for name, what in plan.items():
        row = rows.setdefault((what["dataset"], what["method"]), Counter())
        row[_state(folder, name, what["fingerprint"])] += 1
    return [
        Standing(dataset, method, row["done"], row["running"], row["failed"], row["left"])
        for (dataset, method), row in rows.items()
    ]


def _state(folder: Path, name: str, fingerprint: str) -> str:
    if _is_finished(folder / f"{name}{FINISHED}", fingerprint):
        return "done"
    running = folder / f"{name}{RUNNING}"
    if running.exists() and is_alive(running):
        return "running"
    return "failed" if (folder / f"{name}{FAILED}").exists() else "left"


def _is_finished(path: Path, fingerprint: str) -> bool:
    try:
        changed = path.stat().st_mtime_ns
    except FileNotFoundError:
        return False
    return _fingerprint_in(path, changed) == fingerprint


@cache
def _fingerprint_in(path: Path, changed: int) -> str | None:
    try:
        return read_fingerprint(path)
    except DataError:  # not a whole result: run the cell again
        return None


# ── the work ──────────────────────────────────────────────────────────────────────────────────


def _job(work: Work, threads: int, written: c_int) -> None:
    """The body of a worker process: Ctrl-C is its parent's business, and it dies with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that reservations are given back
    Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    written.value = _run_all(work, planned(work))


def _run_all(work: Work, plan: Iterable[tuple[Dataset, list[Planned]]]) -> int:
    """The number of cells that this process wrote; others may write some of the plan too."""
    fleet = _FLEET[pick_device(work.device).type]
    with Reservations(work.folder) as mine:
        return sum(
            _run_free(work, dataset, alike, mine)
            for dataset, cells in plan
            for alike in _fleets(work.folder, cells, fleet)
        )


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _fleets(folder: Path, cells: Iterable[Planned], fleet: int) -> Iterator[list[Planned]]:
    """Unfinished cells whose networks have one shape, at most `fleet` at a time, evenly."""
    left = [each for each in cells if not _is_done(folder, each)]
    for _, group in groupby(left, lambda c: (c.cell.method, c.cell.variant)):
        alike = list(group)
        parts = -(-len(alike) // fleet)
        for part in range(parts):
            yield alike[part::parts]


def _is_done(folder: Path, each: Planned) -> bool:
    return _is_finished(folder / f"{each.cell.name}{FINISHED}", each.fingerprint)


def _run_free(work: Work, dataset: Dataset, cells: Sequence[Planned], mine: Reservations) -> int:
    """Run those cells that nobody else runs or has finished; the number written."""
    free = []
    for each in cells:
        if mine.take(each.cell.name):
            # looked at again: it may have been finished since the list was made
            if _is_done(work.folder, each):
                mine.give_back(each.cell.name)
            else:
                free.append(each)
    try:
        return _run_fleet(work, dataset, free)
    except Exception:
        if len(free) == 1:
            _record_failure(work.folder, free[0])
            return 0
    finally:
        for each in free:
            mine.give_back(each.cell.name)
    # training failed: find out whose fault it is
    return sum(_run_free(work, dataset, [each], mine) for each in free)


def _run_fleet(work: Work, dataset: Dataset, cells: Sequence[Planned]) -> int:
    """Train the cells' networks together, measure each and write its file; the number written."""
    if not cells:
        return 0
    first = cells[0].cell
    if first.mock:
        dataset = mock_dataset(dataset)
    if first.channels is not None:
        dataset = first_channels(dataset, first.channels)
    detectors = [detector_of(each.cell, work.device) for each in cells]
    held_out = [tuple(map(dataset.class_names.index, each.cell.held_out)) for each in cells]
    data = [
        cell_data(dataset, held, each.cell.seed, each.cell.limit)
        for held, each in zip(held_out, cells)
    ]
    fit_together(detectors, [(d.train_images, d.train_labels) for d in data])
    written = 0
    for each, detector, held, own in zip(cells, detectors, held_out, data):
        cell = each.cell
        try:  # what goes wrong here is this cell's alone
            result = measure_cell(
                detector, dataset, own, held, cell.seed, cell.limit, cell.variant, cell.pictures
            )
            write_result(work.folder / f"{cell.name}{FINISHED}", result, each.fingerprint)
        except Exception:
            _record_failure(work.folder, each)
        else:
            (work.folder / f"{cell.name}{FAILED}").unlink(missing_ok=True)
            written += 1
    return written


def _record_failure(folder: Path, failed: Planned) -> None:
    """Called while the error is being handled."""
    path = folder / f"{failed.cell.name}{FAILED}"
    write_text(path, traceback.format_exc())


def _log(work: Work, jobs: int, seconds: float, finished: int) -> None:
    """One line per run: what it finished itself, how long it took from start to last result."""
    line = {
        "study": work.study,
        "datasets": work.options.datasets,
        "methods": work.options.methods,
        "seeds": work.options.seeds,
        "jobs": jobs,
        "finished": finished,
        "seconds": round(seconds, 1),
        **circumstances(pick_device(work.device)),
    }
    with open(work.folder / "log.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
