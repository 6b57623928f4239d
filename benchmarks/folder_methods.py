"""Methods that benchmarks/folders.py compares, and the figures of a row."""

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps import CapsNetDetector, ImageFolder
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.detectors.presets import PRESETS
from anocaps.judging.calibration import p_values, share_for, smallest_alpha
from anocaps.judging.metrics import auroc, auroc_interval
from anocaps.training.device import circumstances, pick_device
from anocaps.training.loop import Loss, Run

SOFTMAX, FEATURES = "CNN, maximum softmax", "CNN features, kNN"
ECOD, PIXELS = "PyOD ECOD, pixels", "PyOD kNN, pixels"
DEEP = "deep"
ALPHAS = (0.01, 0.05)
SEEDS = (0, 1, 2)
NEAREST = 5  # neighbours: PyOD's default
LARGEST_FLAT = 48  # pixels a side that PyOD gets: its ECOD keeps seven copies of all of them

Row = dict[str, Any]
Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]


def judged(scores: Scores, left_out: Mask, alarms: dict[float, Mask]) -> Row:
    """The figures of a row, from scores, left-out images and alarms of all test images."""
    normal, anomalous = scores[~left_out], scores[left_out]
    low, high = auroc_interval(normal, anomalous)
    return {
        "auroc": round(auroc(normal, anomalous), 5),
        "auroc_interval": [round(low, 5), round(high, 5)],
        "false_alarms": {str(a): share(called[~left_out]) for a, called in alarms.items()},
        "found": {str(a): share(called[left_out]) for a, called in alarms.items()},
        # with the threshold that gives these normal images exactly this false-alarm rate
        "found_at_equal_rates": {str(a): share(anomalous < np.quantile(normal, a)) for a in ALPHAS},
    }


def share(mask: Mask) -> float:
    return round(float(mask.mean()), 5)


def alarms_of(p: Scores, calibration: int) -> dict[float, Mask]:
    """Verdicts at each alpha that the calibration images allow."""
    return {a: p <= a for a in ALPHAS if a >= smallest_alpha(calibration)}


def circumstances_of(record: dict[str, Any]) -> Row:
    return {k: record[k] for k in ("training", "device", "threads", "versions", "commit")}


def over_seeds(rows: Sequence[Row]) -> Row:
    """The means of all numbers, the range of the AUROC, and the rows themselves."""
    aurocs = [row["auroc"] for row in rows]
    return means(rows) | {"auroc_over_seeds": [min(aurocs), max(aurocs)], "seeds": list(rows)}


def means(rows: Sequence[Row]) -> Row:
    """Of all numbers, in the rows and below."""
    return {
        key: means([row[key] for row in rows])
        if isinstance(rows[0][key], dict)
        else [round(float(np.mean(ends)), 5) for ends in zip(*(row[key] for row in rows))]
        if isinstance(rows[0][key], list)
        else round(float(np.mean([row[key] for row in rows])), 5)
        for key in rows[0]
    }


# ── a plain CNN classifier: what one would try first ─────────────────────────────────────────


class CNN(nn.Module):
    """Two 3×3 convolutions each of 64, 128 and 256 maps, halved in between, then their means."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for maps in (64, 64, 128, 128, 256, 256):
            if layers and maps != before:
                layers.append(nn.MaxPool2d(2))
            convolution = nn.Conv2d(before, maps, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(maps), nn.ReLU(inplace=True)]
            before = maps
        self.maps = nn.Sequential(*layers)
        self.output = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → features [N, 256] and class logits [N, classes]."""
        features = self.maps(x).mean((2, 3))
        return features, self.output(features)


class CNNDetector(PlainDetector):
    """`softmax`: the largest probability of a class. `knn`: minus the distance of the features to
    the fifth nearest training image."""

    method = "plain-cnn"
    score_names = ("softmax", "knn")
    network_: CNN

    def _network(self) -> CNN:
        return CNN(self.preprocessing_.channels, len(self.classes_))

    def _stages(self, noise: torch.Generator) -> Iterable[tuple[nn.Module, Loss]]:
        def loss(pixels: Tensor, labels: Tensor) -> Tensor:
            _, logits = self.network_(pixels)
            return nn.functional.cross_entropy(logits.float(), labels)

        yield self.network_, loss

    def _training(self, images: NDArray[Any], labels: NDArray[np.int64]) -> Iterator[Run]:
        yield from super()._training(images, labels)
        found = self._each(images, lambda pixels: self.network_(pixels)[0].double())
        self.features_ = torch.cat(list(found))  # of the training images

    def _batch(self, pixels: Tensor) -> dict[str, Tensor]:
        features, logits = self.network_(pixels)
        distances = torch.cdist(features.double(), self.features_)
        nearest = min(NEAREST, len(self.features_))
        return {
            # in float64: fp32 would round sure answers to 1 and make them ties
            "softmax": logits.double().softmax(1).amax(1),
            "knn": -distances.kthvalue(nearest, dim=1).values,
        }


def trained_cnn(
    images: NDArray[np.uint8], labels: NDArray[Any], device: str, epochs: int | None, seed: int
) -> CNNDetector:
    """Fitted on N×H×W×C images with the schedule and calibration share of the `deep` preset."""
    preset, calibration = PRESETS["deep"], share_for(len(labels))
    by_rule, batch_size = preset.schedule(len(labels) - round(calibration * len(labels)))
    detector = CNNDetector(
        score_function="softmax",
        epochs=by_rule if epochs is None else epochs,
        calibration=calibration,
        seed=seed,
        device=device,
        batch_size=batch_size,
        learning_rate=preset.learning_rate,
        shift=preset.shift_for(*images.shape[1:3]),
        precision="auto",
    )
    return detector.fit(images, labels)


def measure_cnn(place: Path, options: argparse.Namespace) -> Iterator[Row]:
    """On the images as anocaps reads them, with as many kept out to set the false-alarm rate."""
    train = ImageFolder(place / "train", size=options.size, photo=False)
    if len(train.class_names) == 1:
        print(f"{place.name}: a classifier needs two classes")
        return
    test = ImageFolder(place / "test", fit=train.fit, fewest=1)
    rows: dict[str, list[Row]] = {"softmax": [], "knn": []}
    for seed in SEEDS:
        detector = trained_cnn(train.images, train.labels, options.device, options.epochs, seed)
        record = detector.record_
        started = time.perf_counter()
        found = detector.outputs(test.images, ("softmax", "knn"))
        seconds = time.perf_counter() - started
        for score, scores in found.items():
            p = p_values(scores, detector.calibration_scores_[score])
            alarms = alarms_of(p, record["calibration_images"])
            rows[score].append(judged(scores, test.labels == "anomalous", alarms))
    for score, method in (("softmax", SOFTMAX), ("knn", FEATURES)):
        yield {
            "method": method,
            **over_seeds(rows[score]),
            **{k: record[k] for k in ("training_images", "calibration_images", "training_seconds")},
            "scoring_seconds": round(seconds, 3),
            "pixels": list(train.images.shape[1:3]),
            **circumstances_of(record),
        }


# ── PyOD ─────────────────────────────────────────────────────────────────────────────────────


def measure_pyod(place: Path, options: argparse.Namespace) -> Iterator[Row]:
    """With PyOD's own settings, on flat pixels at the files' own size or shrunk to LARGEST_FLAT.

    PyOD's threshold is a quantile of the training images' scores, its argument `contamination`.
    """
    from importlib.metadata import version

    from pyod.models.ecod import ECOD as Ecod
    from pyod.models.knn import KNN as Knn

    about = json.loads((place / "folder.json").read_text("utf-8"))
    size = min(max(about["size"]), LARGEST_FLAT)
    train = ImageFolder(place / "train", size=size, photo=False)
    test = ImageFolder(place / "test", fit=train.fit, fewest=1)
    learnt, asked = (each.images.reshape(len(each.images), -1) / 255 for each in (train, test))
    here = circumstances(pick_device("cpu"))
    for make_detector, method in ((Ecod, ECOD), (Knn, PIXELS)):
        started = time.perf_counter()
        detector = make_detector().fit(learnt)
        trained = time.perf_counter()
        scores = -np.asarray(detector.decision_function(asked))
        scored = time.perf_counter()
        levels = {a: -np.percentile(detector.decision_scores_, 100 * (1 - a)) for a in ALPHAS}
        alarms = {alpha: scores < level for alpha, level in levels.items()}
        yield {
            "method": method,
            **judged(scores, test.labels == "anomalous", alarms),
            "pixels": size,
            "training_images": len(train.files),
            "training_seconds": round(trained - started, 3),
            "scoring_seconds": round(scored - trained, 3),
            **here | {"versions": here["versions"] | {"pyod": version("pyod")}},
        }


# ── preset deep, on photos ───────────────────────────────────────────────────────────────────


def measure_deep(place: Path, options: argparse.Namespace) -> Iterator[Row]:
    train = ImageFolder(place / "train", size=options.size, photo=False)
    test = ImageFolder(place / "test", fit=train.fit, fewest=1)
    left_out = test.labels == "anomalous"
    rows: list[Row] = []
    for seed in SEEDS:
        settings = {"seed": seed, "device": options.device, "epochs": options.epochs}
        detector = CapsNetDetector(DEEP, **settings).fit(train)
        found, score, record = detector.outputs(test), detector.score_function_, detector.record_
        p = p_values(found[score], detector.calibration_scores_[score])
        row = judged(found[score], left_out, alarms_of(p, record["calibration_images"]))
        row["auroc_by_score"] = {k: auroc(v[~left_out], v[left_out]) for k, v in found.items()}
        rows.append(row)
    yield {
        "method": DEEP,
        **over_seeds(rows),
        "score": score,
        **{k: record[k] for k in ("training_images", "calibration_images", "training_seconds")},
        "pixels": list(train.images.shape[1:3]),
        **circumstances_of(record),
    }
