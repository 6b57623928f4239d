"""One cell of a study: train a detector on the normal classes, score the test images, measure."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.data import Dataset
from anocaps.detectors import Detector
from anocaps.files import replacing
from anocaps.metrics import Metrics, auroc, measure
from anocaps.study.protocol import PROTOCOL_VERSION, CellData, cell_data
from anocaps.training import Progress


@dataclass(frozen=True)
class CellResult:
    dataset: str
    official: bool  # the dataset's files have their published content
    hashes: dict[str, str]
    method: str
    held_out: tuple[str, ...]
    seed: int
    limit: int | None
    metrics: dict[str, Metrics]  # on the balanced test set
    auroc_all: dict[str, float]  # against all normal test images
    accuracy: float | None  # on normal test images, where the method classifies
    test_images: int  # in the balanced set
    settings: dict[str, Any]
    record: dict[str, Any]
    # raw material, kept out of the summary
    scores: dict[str, NDArray[np.float64]]  # per test image
    anomalous: NDArray[np.bool_]
    balanced: NDArray[np.int64]

    def summary(self) -> dict[str, Any]:
        """Everything but the raw scores, ready for JSON."""
        raw = ("scores", "anomalous", "balanced")
        whole = asdict(self)
        return {"protocol": PROTOCOL_VERSION} | {k: v for k, v in whole.items() if k not in raw}

    def save_scores(self, path: Path) -> None:
        """Raw scores of all test images, with the summary, as one .npz file."""
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(
                file,
                allow_pickle=False,
                summary=np.asarray(json.dumps(self.summary())),
                anomalous=self.anomalous,
                balanced=self.balanced,
                **{f"score.{name}": values for name, values in self.scores.items()},
            )


def run_cell(
    detector: Detector,
    dataset: Dataset,
    held_out: tuple[int, ...],
    seed: int,
    limit: int | None = None,
    progress: Progress | None = None,
) -> tuple[CellResult, CellData]:
    """Fit an unfitted detector on the cell's normal images and measure every score it has."""
    data = cell_data(dataset, held_out, seed, limit)
    detector.fit(data.train_images, data.train_labels, progress=progress)
    scores = detector.all_scores(data.test_images)
    in_balance = np.isin(np.arange(len(data.anomalous)), data.balanced)
    normal, odd = in_balance & ~data.anomalous, in_balance & data.anomalous
    result = CellResult(
        dataset=dataset.name,
        official=dataset.official,
        hashes=dataset.hashes,
        method=detector.method,
        held_out=tuple(dataset.class_names[c] for c in held_out),
        seed=seed,
        limit=limit,
        metrics={k: measure(v[normal], v[odd], seed) for k, v in scores.items()},
        auroc_all={k: auroc(v[~data.anomalous], v[data.anomalous]) for k, v in scores.items()},
        accuracy=_accuracy(detector, data),
        test_images=int(in_balance.sum()),
        settings=detector.get_params(),
        record=detector.record_,
        scores=scores,
        anomalous=data.anomalous,
        balanced=data.balanced,
    )
    return result, data


def _accuracy(detector: Detector, data: CellData) -> float | None:
    """Share of normal test images given their own class."""
    if not hasattr(detector, "classify"):
        return None
    normal = ~data.anomalous
    return float(np.mean(detector.classify(data.test_images[normal]) == data.test_labels[normal]))
