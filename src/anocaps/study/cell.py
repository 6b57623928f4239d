"""One cell of a study: train a detector on the normal classes, score the test images, measure."""

from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anocaps.data import Dataset
from anocaps.detectors import Detector
from anocaps.judging.metrics import Metrics, auroc, measure
from anocaps.study.protocol import PROTOCOL_VERSION, CellData, cell_data
from anocaps.training.preprocessing import as_images
from anocaps.training.progress import Progress

LENGTH_BINS = 50  # of capsule lengths in [0, 1]
LONG = 0.5  # a capsule longer than this detects its class
# How many of the 23 fraction bits of a float32 a stored score keeps. The other bits become 0, which
# compresses well. PP keeps all bits, because capsule lengths near 1 are close together. 11 bits are
# about three and a half digits. Metrics use the rounded scores.
_KEPT_BITS = {"pp": 23} | dict.fromkeys(("pp+re", "mse", "nse", "elbo", "knn"), 11)
_DEFAULT_KEPT_BITS = 16
_RAW = ("index", "labels", "scores", "predicted", "reconstructions")


@dataclass(frozen=True)
class CellResult:
    dataset: str
    official: bool  # whether the dataset's files have the published content
    hashes: dict[str, str]
    class_names: tuple[str, ...]
    method: str
    variant: str  # name of the changed settings; empty for the method's own
    held_out: tuple[str, ...]
    seed: int
    limit: int | None
    metrics: dict[str, Metrics]  # on the balanced test set
    auroc_all: dict[str, float]  # against all normal test images
    accuracy: float | None  # on normal test images, if the method classifies
    test_images: int  # in the balanced set
    settings: dict[str, Any]  # constructor arguments; instead of None, the value that was used
    record: dict[str, Any]
    # Counts of class capsules, for "normal" and "anomalous" images of the balanced test set:
    # "longest" and "others" are histograms of lengths with LENGTH_BINS bins; "long" counts images
    # by their number of capsules longer than LONG.
    lengths: dict[str, dict[str, list[int]]] | None
    # Raw arrays of the n images of the balanced test set, not part of the summary.
    index: NDArray[np.int64]  # [n] number of the test image
    labels: NDArray[np.int64]  # [n] into class_names
    scores: dict[str, NDArray[np.float32]]  # [n] each
    predicted: NDArray[np.int64] | None  # [n] into class_names, if the method classifies
    reconstructions: NDArray[np.uint8] | None  # [k, 2, h, w, C]: original, reconstruction

    @property
    def anomalous(self) -> NDArray[np.bool_]:
        """[n]"""
        return np.isin(self.labels, [self.class_names.index(name) for name in self.held_out])

    def summary(self) -> dict[str, Any]:
        """All fields but the raw arrays, as JSON values."""
        whole = {k: v for k, v in vars(self).items() if k not in _RAW}
        metrics = {name: asdict(values) for name, values in self.metrics.items()}
        return {"protocol": PROTOCOL_VERSION} | whole | {"metrics": metrics}


def run_cell(
    detector: Detector,
    dataset: Dataset,
    held_out: tuple[int, ...],
    seed: int,
    limit: int | None = None,
    progress: Progress | None = None,
) -> tuple[CellResult, CellData]:
    """Fit a detector on the cell's normal images and measure every score function."""
    data = cell_data(dataset, held_out, seed, limit)
    detector.fit(data.train_images, data.train_labels, progress=progress)
    return measure_cell(detector, dataset, data, held_out, seed, limit), data


def measure_cell(
    detector: Detector,
    dataset: Dataset,
    data: CellData,
    held_out: tuple[int, ...],
    seed: int,
    limit: int | None = None,
    variant: str = "",
    reconstructions: int = 0,
) -> CellResult:
    """Score the test images with a fitted detector, in one forward pass.

    The first anomalous images, `reconstructions` of them, are kept with their reconstructions.
    """
    left_out = () if reconstructions else ("reconstruction",)
    names = [*detector._usable_scores(), *(n for n in detector.gives if n not in left_out)]
    found = detector.outputs(data.test_images, names)
    scores = {
        name: _rounded(found[name], _KEPT_BITS.get(name, _DEFAULT_KEPT_BITS))
        for name in detector._usable_scores()
    }
    lengths = found.get("class_lengths")
    predicted = _indices(dataset, detector.classes_)[found["class"]] if "class" in found else None
    normal = ~data.anomalous
    labels = _indices(dataset, data.test_labels)
    in_balance = np.isin(np.arange(len(normal)), data.balanced)
    normals, anomalies = in_balance & normal, in_balance & ~normal  # of the balanced test set

    return CellResult(
        dataset=dataset.name,
        official=dataset.official,
        hashes=dataset.hashes,
        class_names=dataset.class_names,
        method=detector.method,
        variant=variant,
        held_out=tuple(dataset.class_names[c] for c in held_out),
        seed=seed,
        limit=limit,
        metrics={k: measure(v[normals], v[anomalies], seed) for k, v in scores.items()},
        auroc_all={k: auroc(v[normal], v[~normal]) for k, v in scores.items()},
        accuracy=None if predicted is None else float(np.mean((predicted == labels)[normal])),
        test_images=len(data.balanced),
        settings=_settings(detector),
        record=detector.record_ | {"model_bytes": _size(detector)},
        lengths=None
        if lengths is None
        else {
            "normal": _length_counts(lengths[normals]),
            "anomalous": _length_counts(lengths[anomalies]),
        },
        index=data.balanced if data.numbers is None else data.numbers[data.balanced],
        labels=labels[data.balanced],
        scores={k: v[data.balanced] for k, v in scores.items()},
        predicted=None if predicted is None else predicted[data.balanced],
        reconstructions=_pairs(detector, data, found.get("reconstruction"), reconstructions),
    )


def _size(detector: Detector) -> int:
    """Bytes of all that was learned."""
    arrays, _ = detector._learned()
    return sum(array.nbytes for array in arrays.values())


def _settings(detector: Detector) -> dict[str, Any]:
    """The constructor's arguments. Instead of None, they have the preset's value."""
    used = asdict(detector.preprocessing_) | detector.record_.get("training", {})
    config = getattr(getattr(detector, "network_", None), "config", None)
    if is_dataclass(config) and not isinstance(config, type):
        used |= asdict(config)
    given = detector.get_params() | {"score_function": detector.score_function_}
    if given.get("preset") == "auto":
        given["preset"] = detector.record_["preset"]
    given["score"] = given.pop("score_function")  # its name in committed results
    return {name: used.get(name) if value is None else value for name, value in given.items()}


def _rounded(values: NDArray[np.float64], kept: int) -> NDArray[np.float32]:
    """Round to float32 with `kept` bits of fraction."""
    dropped = 23 - kept
    bits = values.astype(np.float32).view(np.uint32)
    if dropped == 0:
        return bits.view(np.float32)
    bits = (bits + np.uint32(1 << (dropped - 1))) >> np.uint32(dropped) << np.uint32(dropped)
    return bits.view(np.float32)


def _indices(dataset: Dataset, names: NDArray[np.str_]) -> NDArray[np.int64]:
    number = {name: index for index, name in enumerate(dataset.class_names)}
    return np.array([number[str(name)] for name in names], dtype=np.int64)


def _length_counts(lengths: NDArray[np.float64]) -> dict[str, list[int]]:
    """The counts of CellResult.lengths, from lengths [n, classes]."""
    lengths = np.sort(lengths, axis=1)
    bins = np.linspace(0, 1, LENGTH_BINS + 1)
    long = np.bincount((lengths > LONG).sum(1), minlength=lengths.shape[1] + 1)
    return {
        "longest": np.histogram(lengths[:, -1], bins)[0].tolist(),
        "others": np.histogram(lengths[:, :-1], bins)[0].tolist(),
        "long": long.tolist(),
    }


def _pairs(
    detector: Detector,
    data: CellData,
    reconstructions: NDArray[np.float32] | None,  # of all test images
    count: int,
) -> NDArray[np.uint8] | None:
    """The first anomalous images with their reconstructions, [count, 2, h, w, C]."""
    if reconstructions is None:
        return None
    first = np.flatnonzero(data.anomalous)[:count]
    images = torch.from_numpy(as_images(data.test_images[first]))
    window = detector.preprocessing_.central(images)  # [k, C, h, w]
    shown = (window * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return np.stack([shown, np.rint(reconstructions[first] * 255).astype(np.uint8)], axis=1)
