"""The demo: ten bundled digits, each held out in turn, and a report of what was found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.data import load_dataset
from anocaps.detectors import CapsNetDetector
from anocaps.report import ReportCell, write_report
from anocaps.study.cell import CellResult, run_cell
from anocaps.study.protocol import CellData
from anocaps.training import Progress

LEAD = (
    "Ten small capsule networks, each trained on nine of the ten handwritten digits and asked to "
    "tell the tenth, which it has never seen, from the nine it knows. PP is the length of the "
    "longest class capsule: does the image look like any class? RE is minus the normalised "
    "reconstruction error: can it be redrawn? PP+RE adds both. Higher is more normal; an AUROC of "
    "1 separates anomalies perfectly, 0.5 is guessing."
)


def run_demo(
    out: Path, epochs: int | None, seed: int, progress: Progress | None
) -> list[CellResult]:
    """Train and measure ten cells, write the report to `out`."""
    dataset = load_dataset("digits")
    count = len(dataset.class_names)
    results, cells = [], []
    for held_out in range(count):
        detector = CapsNetDetector(
            preset="quick", epochs=epochs, calibration=0.0, seed=seed, device="cpu"
        )
        told = None if progress is None else _part(progress, held_out, count)
        result, data = run_cell(detector, dataset, (held_out,), seed, progress=told)
        results.append(result)
        cells.append(report_cell(result, data, detector))
    write_report(out, "anocaps demo: ten digits, each held out", LEAD, cells, _settings(results))
    return results


def _part(progress: Progress, index: int, count: int) -> Progress:
    """Progress of one of `count` equal parts as progress of the whole."""

    def tell(step: int, steps: int, loss: float, images_per_second: float) -> None:
        progress(index * steps + step, count * steps, loss, images_per_second)

    return tell


def report_cell(result: CellResult, data: CellData, detector: CapsNetDetector) -> ReportCell:
    """What the page shows of a cell: its balanced test images."""
    chosen = data.balanced
    assert result.accuracy is not None
    return ReportCell(
        held_out=", ".join(result.held_out),
        scores={name: values[chosen] for name, values in result.scores.items()},
        anomalous=data.anomalous[chosen],
        metrics=result.metrics,
        accuracy=result.accuracy,
        looks_like=[str(c) for c in detector.classify(data.test_images[chosen])],
        images=data.test_images[chosen],
        reconstructions=_bytes(detector.reconstruct(data.test_images[chosen])),
    )


def _bytes(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.rint(pixels * 255).astype(np.uint8)


def _settings(results: Sequence[CellResult]) -> dict[str, str]:
    """The run's settings as the page prints them."""
    first = results[0]
    training: dict[str, Any] = first.record["training"]
    versions: dict[str, str] = first.record["versions"]
    seconds = sum(result.record["training_seconds"] for result in results)
    return {
        "dataset": first.dataset + ("" if first.official else " (unofficial copy)"),
        "training images per cell": f"about {first.record['training_images']}",
        "test images per cell": f"about {first.test_images}, half of them anomalous",
        **{name.replace("_", " "): str(value) for name, value in training.items()},
        "device": f"{first.record['device']}, {first.record['threads']} threads",
        "training time": f"{seconds:.0f} s for {len(results)} networks",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "commit": first.record["commit"] or "installed package",
    }
