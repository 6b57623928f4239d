"""Claim: on folders of images with one class left out, `anocaps train` and `anocaps score` with
default settings find the left-out class, keep the false-alarm rate that was asked for and say
beforehand how good they will be. results/folders.json proves it or not (table `folders`).

Steps, each for all cases or for those that are named:

    python benchmarks/folders.py make --data-dir DATA      (PNG files from the datasets)
    python benchmarks/folders.py anocaps                   (train and score, by the command line)
    python benchmarks/folders.py cnn                       (a plain CNN)
    python benchmarks/folders.py pyod small-norb:truck     (needs pip install '.[bench]')

Folders and rows that exist are not made again: a step that was stopped goes on. Nothing was chosen
by these numbers. Which class is left out was fixed first. The case of few images was added later.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from common import ROOT
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps import ImageFolder, load
from anocaps.base.files import write_text
from anocaps.base.threads import in_order
from anocaps.data import Dataset, Split, fetch_dataset, load_dataset
from anocaps.data.norb import read_mat
from anocaps.detectors.baselines.plain import PlainDetector
from anocaps.detectors.presets import PRESETS
from anocaps.inspect.scoring import COLUMNS
from anocaps.judging.calibration import p_values, share_for, smallest_alpha
from anocaps.judging.metrics import auroc, auroc_interval
from anocaps.training.device import circumstances, pick_device
from anocaps.training.loop import Loss, Run

CASES = (  # dataset, left-out class, training images of each other class (else all)
    "digits:4",
    "digits:4:11",
    "fashion-mnist:sandal",
    "small-norb:truck",
)
ALPHAS = (0.01, 0.05)
NEAREST = 5  # neighbours: PyOD's default
LARGEST_FLAT = 48  # pixels a side that PyOD gets: its ECOD keeps seven copies of all of them

Row = dict[str, Any]
Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]


def main() -> None:
    parser = common.parser(__doc__, "folders.json")
    parser.add_argument("step", choices=("make", *STEPS))
    parser.add_argument("cases", nargs="*", metavar="DATASET:CLASS[:NUMBER]", help=", ".join(CASES))
    parser.add_argument("--folders", type=Path, default=ROOT / "runs" / "folders")
    parser.add_argument("--data-dir", type=Path, help="where dataset files are")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--epochs", type=int, help="by default the preset's; to try things")
    options = parser.parse_args()
    for case in options.cases or CASES:
        place = options.folders / case.replace(":", "-")
        if options.step == "make":
            make(case, place, options.data_dir)
        else:
            run(options.step, place, options)


# ── make: folders of PNG files ───────────────────────────────────────────────────────────────


def make(case: str, place: Path, data_dir: Path | None) -> None:
    """place/train/CLASS, place/test/normal, place/test/anomalous and place/folder.json."""
    if place.exists():
        print(f"{place} is there")
        return
    name, held_out, *number = case.split(":")
    dataset = images_of(name, data_dir)
    left = dataset.class_index(held_out)
    unfinished = place.with_name(f"{place.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    counts = {"train": 0, "normal": 0, "anomalous": 0}
    for kind, split in (("train", dataset.train), ("test", dataset.test)):
        for label, class_name in enumerate(dataset.class_names):
            members = np.flatnonzero(split.labels == label)
            if kind == "test":
                folder = "anomalous" if label == left else "normal"
                write_images(unfinished / "test" / folder, class_name, split, members)
                counts[folder] += len(members)
            elif label != left:
                members = spread_evenly(members, *map(int, number))
                write_images(unfinished / "train" / class_name, class_name, split, members)
                counts["train"] += len(members)
    about = {
        "dataset": name,
        "left_out": dataset.class_names[left],
        "size": list(dataset.train.images.shape[1:3]),
        "images": counts,
        "official": dataset.official,
        "hashes": dataset.hashes,
    }
    write_text(unfinished / "folder.json", json.dumps(about, indent=1) + "\n")
    unfinished.rename(place)
    print(f"{place}: {counts}")


def spread_evenly(members: NDArray[np.intp], number: int | None = None) -> NDArray[np.intp]:
    """`number` members at even distances: neighbours may be by the same writer."""
    if number is None:
        return members
    return members[np.linspace(0, len(members) - 1, number).round().astype(int)]


def images_of(name: str, data_dir: Path | None) -> Dataset:
    """The dataset in grey at its full size: of Small-NORB the left camera, 96×96."""
    dataset = load_dataset(name, data_dir, download=False)
    if name != "small-norb":
        return dataset
    files = {path.name.removesuffix(".gz"): path for path in fetch_dataset(name, data_dir, False)}
    train, test = (
        Split(read_mat(path)[:, 0], split.labels)  # N×2×96×96 → N×96×96
        for kind, split in (("training", dataset.train), ("testing", dataset.test))
        for file, path in files.items()
        if file.endswith(f"{kind}-dat.mat")
    )
    return Dataset(name, train, test, dataset.class_names, dataset.hashes, dataset.official)


def write_images(folder: Path, name: str, split: Split, members: NDArray[np.intp]) -> None:
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        image = Image.fromarray(np.ascontiguousarray(split.images[number]))
        image.save(folder / f"{name}-{number:05}.png")

    for _ in in_order(write, members.tolist()):
        pass


# ── one row per folder and method ────────────────────────────────────────────────────────────


def run(step: str, place: Path, options: argparse.Namespace) -> None:
    """The rows of a step that are not in the file yet; each is written as soon as it is known."""
    if not place.exists():
        raise SystemExit(f"{place} is not there: run the step make first")
    about = json.loads((place / "folder.json").read_text("utf-8"))
    methods, measure = STEPS[step]
    stored = common.stored(options.out) or {"folders": {}, "rows": []}
    rows = {(row["folder"], row["method"]): row for row in stored["rows"]}
    if all((place.name, method) in rows for method in methods):
        print(f"{place.name}: {', '.join(methods)} measured before")
        return
    for found in measure(place, options):
        row = {"folder": place.name, **found, "settings": {"epochs": options.epochs}}
        rows[place.name, row["method"]] = row
        order = sorted(rows, key=lambda key: (key[0], METHODS.index(key[1])))
        folders = stored["folders"] | {place.name: about}
        common.write(options.out, {"folders": folders, "rows": [rows[key] for key in order]})
        print(f"{place.name}, {row['method']}: AUROC {row['auroc']:.4f}, {row['false_alarms']}")


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


# ── anocaps, by its command line ─────────────────────────────────────────────────────────────


def measure_anocaps(place: Path, options: argparse.Namespace) -> Iterator[Row]:
    model, table = place / "model.safetensors", place / "scores.csv"
    more = [] if options.epochs is None else ["--epochs", options.epochs]
    device = ["--device", options.device]
    card, training = command("train", place / "train", "-o", model, "--json", *device, *more)
    test = [place / "test" / "normal", place / "test" / "anomalous"]
    _, scoring = command("score", model, *test, "-o", table, "--json", *device)
    with open(table, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    left_out = np.array([Path(row["file"]).parent.name == "anomalous" for row in rows])

    def column(name: str) -> Scores:
        return np.array([float(row[name]) for row in rows])

    further = [name for name in rows[0] if name not in (*COLUMNS, "p_value_class")]
    alarms = alarms_of(column("p_value"), card["calibration_images"])
    by_score = {card["score_function"]: column("score")} | {name: column(name) for name in further}
    yield {
        "method": "anocaps",
        **judged(column("score"), left_out, alarms),
        "score": card["score_function"],
        "auroc_by_score": {
            k: round(auroc(v[~left_out], v[left_out]), 5) for k, v in by_score.items()
        },
        "self_check": card["self_check"],
        "accuracy": card["accuracy"],
        "training_images": card["training_images"],
        "calibration_images": card["calibration_images"],
        "training_seconds": card["training_seconds"],
        # with reading the files and, of training, the self-check
        "command_seconds": {"train": round(training, 1), "score": round(scoring, 1)},
        "model_mb": round(model.stat().st_size / 1e6, 2),
        **circumstances_of(load(model, device="cpu").record_),
    }


def circumstances_of(record: dict[str, Any]) -> Row:
    return {k: record[k] for k in ("training", "device", "threads", "versions", "commit")}


def command(*words: object) -> tuple[dict[str, Any], float]:
    """`anocaps …` in a process of its own: the JSON that it prints, and its seconds."""
    started = time.perf_counter()
    line = [sys.executable, "-m", "anocaps", *map(str, words)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - started


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
    images: NDArray[np.uint8], labels: NDArray[Any], device: str, epochs: int | None
) -> CNNDetector:
    """Fitted on N×H×W×C images with the schedule and calibration share of the `deep` preset."""
    preset, calibration = PRESETS["deep"], share_for(len(labels))
    by_rule, batch_size = preset.schedule(len(labels) - round(calibration * len(labels)))
    detector = CNNDetector(
        score_function="softmax",
        epochs=by_rule if epochs is None else epochs,
        calibration=calibration,
        device=device,
        batch_size=batch_size,
        learning_rate=preset.learning_rate,
        shift=preset.shift_for(*images.shape[1:3]),
        precision="auto",
    )
    return detector.fit(images, labels)


def measure_cnn(place: Path, options: argparse.Namespace) -> Iterator[Row]:
    """On the images as anocaps reads them, with as many kept out to set the false-alarm rate."""
    train = ImageFolder(place / "train")
    test = ImageFolder(place / "test", fit=train.fit, fewest=1)
    detector = trained_cnn(train.images, train.labels, options.device, options.epochs)
    record = detector.record_
    started = time.perf_counter()
    found = detector.outputs(test.images, ("softmax", "knn"))
    seconds = time.perf_counter() - started
    for score, method in (("softmax", SOFTMAX), ("knn", FEATURES)):
        p = p_values(found[score], detector.calibration_scores_[score])
        alarms = alarms_of(p, record["calibration_images"])
        yield {
            "method": method,
            **judged(found[score], test.labels == "anomalous", alarms),
            **{k: record[k] for k in ("training_images", "calibration_images", "training_seconds")},
            "scoring_seconds": round(seconds, 3),
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
    train = ImageFolder(place / "train", size=size)
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


SOFTMAX, FEATURES = "CNN, maximum softmax", "CNN features, kNN"
ECOD, PIXELS = "PyOD ECOD, pixels", "PyOD kNN, pixels"
STEPS = {
    "anocaps": (("anocaps",), measure_anocaps),
    "cnn": ((SOFTMAX, FEATURES), measure_cnn),
    "pyod": ((ECOD, PIXELS), measure_pyod),
}
METHODS = [method for methods, _ in STEPS.values() for method in methods]

if __name__ == "__main__":
    common.run_script(main)
