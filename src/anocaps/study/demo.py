"""The demo: ten bundled digits, each held out in turn, and a report of the results.

On a GPU, the ten networks are trained at once, as a fleet. On a CPU, each core trains one network
at a time, in a process with one thread, because such small networks gain nothing from more threads.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anocaps.base.provenance import usable_cores
from anocaps.data import load_dataset
from anocaps.detectors import CapsNetDetector
from anocaps.detectors.fitting import fit_together
from anocaps.study.cell import CellResult, measure_cell
from anocaps.study.protocol import CellData, cell_data
from anocaps.study.report.demo import ReportCell, write_report

LEAD = (
    "Each of ten small capsule networks is trained on nine of the ten handwritten digits. "
    "The tenth digit is the anomaly that it has to find."
)


def run_demo(
    out: Path, epochs: int | None, seed: int, progress: Callable[[int, int], None] | None
) -> tuple[list[CellResult], float]:
    """Train and measure ten cells, write the report, and return the results and the time."""
    started = time.perf_counter()
    held_out = range(len(load_dataset("digits").class_names))
    cells: list[tuple[CellResult, ReportCell]] = []
    train = _fleet if torch.cuda.is_available() else _processes
    for cell in train(held_out, epochs, seed):
        cells.append(cell)
        if progress is not None:
            progress(len(cells), len(held_out))
    results, shown = zip(*cells)
    seconds = time.perf_counter() - started
    settings = _settings(results, seconds)
    write_report(out, "anocaps demo: ten digits, each held out", LEAD, shown, settings)
    return list(results), seconds


def _processes(
    held_out: Sequence[int], epochs: int | None, seed: int
) -> Iterator[tuple[CellResult, ReportCell]]:
    workers = min(usable_cores(), len(held_out))
    # the end of the block ends the workers at once
    with get_context("spawn").Pool(workers, _start_worker) as pool:
        yield from pool.imap(partial(_cell, epochs=epochs, seed=seed), held_out)


def _start_worker() -> None:
    """Set up a worker: it computes with one thread and ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _cell(held_out: int, epochs: int | None, seed: int) -> tuple[CellResult, ReportCell]:
    return next(_fleet([held_out], epochs, seed))


def _fleet(
    held_out: Sequence[int], epochs: int | None, seed: int
) -> Iterator[tuple[CellResult, ReportCell]]:
    dataset = load_dataset("digits")
    data = [cell_data(dataset, (digit,), seed) for digit in held_out]
    detectors = [
        CapsNetDetector(preset="quick", epochs=epochs, calibration=0.0, seed=seed) for _ in data
    ]
    fit_together(detectors, [(each.train_images, each.train_labels) for each in data])
    for digit, detector, each in zip(held_out, detectors, data):
        result = measure_cell(detector, dataset, each, (digit,), seed)
        yield result, _report_cell(result, each, detector)


def _report_cell(result: CellResult, data: CellData, detector: CapsNetDetector) -> ReportCell:
    """The balanced test images of a cell, for the page."""
    images = data.test_images[data.balanced]
    assert result.accuracy is not None and result.predicted is not None
    return ReportCell(
        held_out=", ".join(result.held_out),
        scores={name: values.astype(np.float64) for name, values in result.scores.items()},
        anomalous=result.anomalous,
        metrics=result.metrics,
        accuracy=result.accuracy,
        looks_like=[result.class_names[index] for index in result.predicted],
        images=images,
        reconstructions=np.rint(detector.reconstruct(images) * 255).astype(np.uint8),
    )


def _settings(results: Sequence[CellResult], seconds: float) -> dict[str, str]:
    """The settings of the run, for the page."""
    first = results[0]
    training: dict[str, Any] = first.record["training"]
    versions: dict[str, str] = first.record["versions"]
    return {
        "dataset": first.dataset + ("" if first.official else " (unofficial copy)"),
        "training images per cell": f"about {first.record['training_images']}",
        "test images per cell": f"about {first.test_images}, half of them anomalous",
        **{name.replace("_", " "): str(value) for name, value in training.items()},
        "device": first.record["device"],
        "time": f"{seconds:.0f} s for {len(results)} networks",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "commit": first.record["commit"] or "installed package",
    }
