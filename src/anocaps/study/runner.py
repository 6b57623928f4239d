"""Run the cells of a study that are not finished yet (plan.py).

On a GPU, networks of one shape are trained together, as a fleet. Several jobs are processes that
share the folder; several computers may share it too.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int
from itertools import groupby
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Event, Thread

import torch

from anocaps.base.errors import AnocapsError
from anocaps.base.files import write_text
from anocaps.data import Dataset
from anocaps.detectors import find_method
from anocaps.detectors.fitting import fit_together
from anocaps.study.cell import measure_cell
from anocaps.study.fingerprints import detector_of
from anocaps.study.plan import (
    FAILED,
    Planned,
    Standing,
    StoredPlan,
    Work,
    add_to_plan,
    as_stored,
    planned,
    progress,
    refuse_to_replace,
)
from anocaps.study.protocol import balanced_part, cell_data, mock_dataset
from anocaps.study.reservations import SUFFIX as RUNNING
from anocaps.study.reservations import Reservations, is_running
from anocaps.study.resultfile import SUFFIX as FINISHED
from anocaps.study.resultfile import write_result
from anocaps.training.device import circumstances, pick_device

_FLEET = {"cuda": 16, "cpu": 1}  # networks trained at once
_LOOK_SECONDS = 1.0


def run_study(
    work: Work,
    jobs: int = 1,
    watch: Callable[[list[Standing]], None] | None = None,
    replace: bool = False,
) -> list[Standing]:
    """Run every unfinished cell; return the state of this run's cells.

    `watch` is called with that state once a second. Cells that were finished with other settings
    are run again only with `replace`.
    """
    started = time.time()
    plan = list(planned(work))  # raises at once if a name, the data or an option is wrong
    if not replace:
        refuse_to_replace(work.folder, plan)
    mine = as_stored(plan)
    add_to_plan(work.folder, mine)
    for name in mine:
        is_running(work.folder / f"{name}{RUNNING}")  # removes what a killed runner left
    with _watching(work.folder, mine, watch):
        written = _run_all(work, plan) if jobs == 1 else _run_in_processes(work, jobs)
    _log(work, jobs, time.time() - started, written)
    return progress(work.folder, mine)


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
            watch(progress(folder, plan))

    looking = Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()


def _run_in_processes(work: Work, jobs: int) -> int:
    """Run the study in `jobs` processes; return the number of cells written."""
    threads = max(1, torch.get_num_threads() // jobs)
    context = get_context("spawn")
    written = [context.RawValue("i") for _ in range(jobs)]  # one each needs no lock
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
            "a job of the study ended unexpectedly, perhaps for lack of memory; run the same "
            "command again to continue"
        )
    return sum(own.value for own in written)


def _job(work: Work, threads: int, written: c_int) -> None:
    """The body of a worker process: it leaves Ctrl-C to its parent and ends when that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # gives reservations back
    Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    written.value = _run_all(work, planned(work))


def _run_all(work: Work, plan: Iterable[tuple[Dataset, list[Planned]]]) -> int:
    """Run the cells that no other process runs; return the number of cells written."""
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
    """Unfinished cells with networks of one shape, in groups of at most `fleet`."""
    left = [each for each in cells if not each.is_done(folder)]
    for (method, _), group in groupby(left, lambda c: (c.cell.method, c.cell.variant)):
        alike = list(group)
        parts = -(-len(alike) // fleet)
        if not find_method(method).needs_seed:  # one training serves all seeds of a class
            alike.sort(key=lambda c: c.cell.held_out)
            for _, seeds in groupby(alike, lambda c: c.cell.held_out):
                yield list(seeds)
            continue
        for part in range(parts):
            yield alike[part::parts]


def _run_free(work: Work, dataset: Dataset, cells: Sequence[Planned], mine: Reservations) -> int:
    """Run the cells that no other process runs or has finished; return the number written."""
    free = []
    for each in cells:
        if mine.take(each.cell.name):
            # another process may have finished it since the list was made
            if each.is_done(work.folder):
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
    # the fleet failed: train its cells one by one, so that only the faulty ones fail
    return sum(_run_free(work, dataset, [each], mine) for each in free)


def _run_fleet(work: Work, dataset: Dataset, cells: Sequence[Planned]) -> int:
    """Train the cells' networks together, measure each and write its file."""
    if not cells:
        return 0
    first = cells[0].cell
    if first.mock:
        dataset = mock_dataset(dataset)
    held_out = [tuple(map(dataset.class_names.index, each.cell.held_out)) for each in cells]
    data = [
        cell_data(dataset, held, each.cell.seed, each.cell.limit)
        for held, each in zip(held_out, cells)
    ]
    once = not find_method(first.method).needs_seed
    trained = cells[:1] if once else cells
    detectors = [detector_of(each.cell, work.device) for each in trained]
    fit_together(detectors, [(d.train_images, d.train_labels) for d in data[: len(trained)]])
    if once:
        detectors *= len(cells)
    written = 0
    for each, detector, held, own in zip(cells, detectors, held_out, data):
        cell = each.cell
        try:  # an error here fails this cell alone
            if cell.balanced_only:
                own = balanced_part(own)
            result = measure_cell(
                detector, dataset, own, held, cell.seed, cell.limit, cell.variant,
                cell.reconstructions,
            )  # fmt: skip
            write_result(work.folder / f"{cell.name}{FINISHED}", result, each.fingerprint)
        except Exception:
            _record_failure(work.folder, each)
        else:
            (work.folder / f"{cell.name}{FAILED}").unlink(missing_ok=True)
            written += 1
    return written


def _record_failure(folder: Path, failed: Planned) -> None:
    """Write the traceback of the error that is being handled."""
    write_text(folder / f"{failed.cell.name}{FAILED}", traceback.format_exc())


def _log(work: Work, jobs: int, seconds: float, finished: int) -> None:
    """Append a line about this run: how many cells it finished, in how many seconds."""
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
