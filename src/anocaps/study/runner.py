"""Run the unfinished cells of a study (plan.py) on an engine.

A task is a fleet: cells with networks of one shape. On a GPU they are trained together. Workers
write the result files, so the folder must be on a disk that all of them share. Several commands,
also on several computers, may use the same folder.
"""

import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from anocaps.base.errors import AnocapsError
from anocaps.base.files import one_run, replacing, sweep, write_text
from anocaps.data import Dataset
from anocaps.detectors import find_method
from anocaps.detectors.fitting import fit_together
from anocaps.engines.base import Engine, Lost, collect
from anocaps.engines.local import ThisProcess
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


@dataclass(frozen=True)
class Fleet:
    """The description of a task: `work` has one dataset, and these are names of its cells."""

    work: Work
    names: tuple[str, ...]


class Done(NamedTuple):
    written: int  # cells
    seconds: float


@dataclass(frozen=True)
class _Plan:
    cells: list[Planned]
    fleets: list[Fleet]  # of the cells that are not finished
    circumstances: dict[str, Any]  # of the worker that planned


def run_study(
    work: Work,
    engine: Engine | None = None,
    watch: Callable[[list[Standing]], None] | None = None,
    replace: bool = False,
) -> list[Standing]:
    """Run every unfinished cell; return the state of all cells of this run.

    Without an engine, cells run in this process. `watch` receives the state once a second. Cells
    that were finished with other settings are run again only with `replace`. Cells in damaged files
    are run again; the returned state names these files.
    """
    work = work.absolute()
    with engine or ThisProcess() as engine:
        plan = _planned_there(engine, work)  # raises if a name, the data or an option is wrong
        if not replace:
            refuse_to_replace(work.folder, plan.cells)
        mine = as_stored(plan.cells)
        damaged = [row.damaged for row in progress(work.folder, mine)]
        add_to_plan(work.folder, mine)
        _sweep(work.folder, plan.cells)
        done: list[tuple[Fleet, Done | Lost]] = []
        try:
            with _watching(work.folder, mine, watch):
                for each in collect(engine, run_fleet, plan.fleets):
                    done.append(each)
        finally:  # also if the run is interrupted
            _log(work, plan, engine.workers, done)
    if any(isinstance(result, Lost) for _, result in done):
        raise AnocapsError(
            "a job of the study ended unexpectedly, perhaps for lack of memory; run the same "
            "command again to continue"
        )
    return [
        _naming(before, row)
        for before, row in zip(damaged, progress(work.folder, mine), strict=True)
    ]


def _naming(damaged: Iterable[str], row: Standing) -> Standing:
    """The state, with the files that were damaged before the run."""
    return replace(row, damaged=tuple(dict.fromkeys((*damaged, *row.damaged))))


def _sweep(folder: Path, cells: Iterable[Planned]) -> None:
    """Remove files that killed runners left."""
    for each in cells:
        running, failed, finished = (
            folder / f"{each.cell.name}{suffix}" for suffix in (RUNNING, FAILED, FINISHED)
        )
        is_running(running)  # removes the lock of a killed runner
        for path in (failed, finished):
            sweep(path)
        if each.is_done(folder):  # the error came after the result was written
            failed.unlink(missing_ok=True)


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


# ── what workers do ──────────────────────────────────────────────────────────────────────────


def _planned_there(engine: Engine, work: Work) -> _Plan:
    """Plan on a worker, because this process may lack the data, the methods or the device."""
    ((_, plan),) = collect(engine, _plan, [work])
    if isinstance(plan, Lost):
        raise AnocapsError(f"the worker that planned was lost ({plan.why}); run the study again")
    return plan


def _plan(work: Work) -> _Plan:
    device = pick_device(work.device)
    cells, fleets = [], []
    for name, dataset, here in planned(work):
        options = replace(work.options, datasets=(name,))
        own = replace(work, options=options)
        cells += here
        fleets += [
            Fleet(own, tuple(each.cell.name for each in alike))
            for alike in _fleets(work.folder, here, _FLEET[device.type])
        ]
        _remember(own, dataset, here)
    return _Plan(cells, fleets, circumstances(device))


def run_fleet(fleet: Fleet) -> Done:
    """Run the cells of a fleet, except those of other processes."""
    started = time.perf_counter()
    dataset, cells = _recall(fleet.work)
    with Reservations(fleet.work.folder) as mine:
        written = _run_free(fleet.work, dataset, [cells[name] for name in fleet.names], mine)
    return Done(written, time.perf_counter() - started)


# The dataset that this process worked on last, with its cells by name.
_last: tuple[Work, Dataset, dict[str, Planned]] | None = None


def _remember(work: Work, dataset: Dataset, cells: Iterable[Planned]) -> None:
    global _last
    _last = work, dataset, {each.cell.name: each for each in cells}


def _recall(work: Work) -> tuple[Dataset, dict[str, Planned]]:
    if _last is None or _last[0] != work:
        for _, dataset, cells in planned(work):
            _remember(work, dataset, cells)
    assert _last is not None
    return _last[1:]


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
            (work.folder / f"{cell.name}{FAILED}").unlink(missing_ok=True)
            write_result(work.folder / f"{cell.name}{FINISHED}", result, each.fingerprint)
            written += 1
        except Exception:
            _record_failure(work.folder, each)
    return written


def _record_failure(folder: Path, failed: Planned) -> None:
    """Write the traceback of the error that is being handled."""
    write_text(folder / f"{failed.cell.name}{FAILED}", traceback.format_exc())


def _log(work: Work, plan: _Plan, jobs: int, done: Iterable[tuple[Fleet, Done | Lost]]) -> None:
    """Add a line per dataset and method: how many cells were finished, in how many seconds."""
    cells = {each.cell.name: each.cell for each in plan.cells}
    sums: dict[tuple[str, str], Done] = {}
    for fleet, result in done:
        if isinstance(result, Done):
            first = cells[fleet.names[0]]
            before = sums.get((first.dataset, first.label), Done(0, 0.0))
            both = Done(before.written + result.written, before.seconds + result.seconds)
            sums[first.dataset, first.label] = both
    if not sums:  # a run that had nothing to do
        sums[", ".join(work.options.datasets), ", ".join(work.options.methods)] = Done(0, 0.0)
    lines = [
        {
            "study": work.study,
            "datasets": [dataset],
            "methods": [method],
            "seeds": work.options.seeds,
            "jobs": jobs,
            "finished": written,
            "seconds": round(seconds, 1),
            **plan.circumstances,
        }
        for (dataset, method), (written, seconds) in sums.items()
    ]
    path = work.folder / "log.jsonl"
    # other runners add lines too
    with one_run(path, seconds=60), replacing(path) as temporary:
        known = path.read_bytes() if path.exists() else b""
        if known and not known.endswith(b"\n"):
            known += b"\n"  # after a line that was cut
        new = "".join(f"{json.dumps(line)}\n" for line in lines)
        temporary.write_bytes(known + new.encode())
