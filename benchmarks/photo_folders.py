"""Preset `photo` on folders of real photos, for benchmarks/folders.py.

A row of `photo` is the mean over seeds; `seeds` holds each. Its parts come from the same models.
"""

import csv
import hashlib
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from folder_methods import SEEDS, Mask, Row, alarms_of, circumstances_of, judged, over_seeds
from numpy.typing import NDArray
from PIL import Image

from anocaps import CapsNetDetector, ImageFolder
from anocaps.judging.calibration import p_values, split
from anocaps.judging.heat import raw_heat

ALPHA = "0.05"
NEAR = 12  # pixels of the file between the hottest place and a labelled box
PHOTO = "photo"
PARTS = {  # method: score function
    PHOTO: "combined",
    "photo, patch memory alone": "patch",
    "photo, stem neighbours alone": "stem-knn",
    "photo, capsules alone, pp": "pp",
    "photo, capsules alone, knn": "knn",
}
BEFORE = {  # evaluations of preset photo on folders of real anomalies, before this script's
    "note": "How often preset photo was evaluated on each folder of real anomalies. While it was "
    "built there were three evaluations on commutators and one on fruits, each after a commit of "
    "its settings, and two trial runs of another preset. Settings changed between evaluations: "
    "after 117c0e8 (AUROC on commutators .794) the padding at the border, the count of surprises "
    "with one class and the size of the memory (127a9ed, 58e48ec); after d17e064 (.895) the shares "
    "of one class from .9 to .95 (1996ed3), the neighbours of folds (217b1c7) and the size of the "
    "memory, for speed (ee6e03c); then .907. Mock anomalies gave the reasons, but the results were "
    "known. What each change did to the figure was not measured. Runs for screenshots are not "
    f"counted. Each run of the step photo adds one evaluation, of {len(SEEDS)} seeds.",
    "commutators": 3,
    "fruits": 1,
}


def measure_photo(place: Path, options: Namespace) -> Iterator[Row]:
    train = ImageFolder(place / "train")
    test = ImageFolder(place / "test", fit=train.fit, fewest=1)
    images, left_out = np.asarray(test.images), test.labels == "anomalous"
    began = time.perf_counter()
    features = CapsNetDetector(PHOTO, device=options.device).prepare(train)
    preparing = time.perf_counter() - began
    kept, dropped = without_copies(train.files, test.files, left_out)
    boxes = boxes_of(place / "boxes.csv")
    rows: dict[str, list[Row]] = {}
    seconds, ungrouped = [], []
    for seed in SEEDS:
        detector = CapsNetDetector(PHOTO, seed=seed, device=options.device)
        began = time.perf_counter()
        detector.fit(features, train.labels)
        seconds.append(preparing + time.perf_counter() - began)
        names = detector.photo_.score_names
        found = detector.outputs(images, (*names, "heat"))
        for name in names:
            calibration = detector.calibration_scores_[name]
            p = p_values(found[name], calibration)
            row = judged(found[name], left_out, alarms_of(p, len(calibration)))
            if not kept.all():
                alarms = alarms_of(p[kept], len(calibration))
                row["without_copies"] = judged(found[name][kept], left_out[kept], alarms)
            if boxes and name == "combined":
                near = located(images[left_out], found["heat"][left_out], test, left_out, boxes)
                level = np.quantile(found[name][~left_out], float(ALPHA))
                which = {
                    "found": p[left_out] <= float(ALPHA),
                    "found_at_equal_rates": found[name][left_out] < level,
                    "all": np.ones(len(near), bool),
                }
                row["located"] = {key: round(float(near[m].mean()), 5) for key, m in which.items()}
            rows.setdefault(name, []).append(row)
        if len(train.class_names) > 1:
            ungrouped.append(alarms_ungrouped(detector, features, train.labels, images[~left_out]))
        print(f"{place.name}, seed {seed}: {rows['combined'][-1]}", flush=True)
    record = detector.record_
    for method, name in PARTS.items():
        if name not in rows:
            continue
        yield {
            "method": method,
            "score": name,
            **over_seeds(rows[name]),
            **({"left_out_as_copies": dropped} if not kept.all() else {}),
            **({"located_within_pixels": NEAR} if boxes and name == "combined" else {}),
            **({"alarms_ungrouped": ungrouped} if ungrouped and name == "combined" else {}),
            **{k: record[k] for k in ("training_images", "calibration_images", "near_copies")},
            "working_size": record["size"],
            "training_seconds": round(float(np.mean(seconds)), 1),
            "pretrained": record["pretrained"],
            **circumstances_of(record),
        }


def alarms_ungrouped(
    fitted: CapsNetDetector, features: Any, labels: NDArray[Any], normal: NDArray[np.uint8]
) -> Row:
    """False alarms where near-copies may lie on both sides of the calibration split."""
    share = fitted.calibration_share(len(features))
    index = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    _, drawn = split(index, share, fitted.seed)
    other = CapsNetDetector(PHOTO, seed=fitted.seed, device=fitted.device)
    other.fit(features, labels, calibrate_on=drawn)
    alarms = {
        key: round(float(np.mean(each.p_values(normal) <= float(ALPHA))), 5)
        for key, each in (("grouped", fitted), ("ungrouped", other))
    }
    return alarms | {"seed": fitted.seed, "alpha": float(ALPHA)}


# ── copies and labelled boxes ────────────────────────────────────────────────────────────────


def without_copies(
    train: Sequence[Path], test: Sequence[Path], left_out: Mask
) -> tuple[Mask, dict[str, int]]:
    """Test files that equal neither a training file nor an earlier test file, byte by byte; and
    how many others there are."""
    of_train = {digest(file) for file in train}
    seen: set[bytes] = set()
    kept = np.ones(len(test), bool)
    dropped = {"normal, in training": 0, "normal, in test": 0, "anomalous, in test": 0}
    for k, file in enumerate(test):
        key = digest(file)
        if key in of_train or key in seen:
            kept[k] = False
            kind = "anomalous" if left_out[k] else "normal"
            dropped[f"{kind}, in {'training' if key in of_train else 'test'}"] += 1
        seen.add(key)
    return kept, dropped


def digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


def boxes_of(path: Path) -> dict[str, list[tuple[float, ...]]]:
    """Left, top, right and bottom of the labelled defects, by file name."""
    found: dict[str, list[tuple[float, ...]]] = {}
    if path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                box = tuple(float(row[side]) for side in ("left", "top", "right", "bottom"))
                found.setdefault(row["file"], []).append(box)
    return found


def located(
    images: NDArray[np.uint8],
    coarse: NDArray[np.float32],  # raw heat N×h×w
    test: ImageFolder,
    left_out: Mask,
    boxes: dict[str, list[tuple[float, ...]]],
) -> Mask:
    """Whether the hottest place of each anomalous image lies near a box, in pixels of its file.

    A heatmap has the same hottest place: heat rises with raw heat.
    """
    heats = raw_heat(images, coarse)  # N×H×W
    found = []
    for heat, k in zip(heats, np.flatnonzero(left_out)):
        with Image.open(test.files[k]) as file:
            width, height = file.size
        row, column = np.unravel_index(heat.argmax(), heat.shape)
        x = (column + 0.5) * width / heat.shape[1]
        y = (row + 0.5) * height / heat.shape[0]
        apart = [
            np.hypot(max(left - x, x - right, 0), max(top - y, y - bottom, 0))
            for left, top, right, bottom in boxes[test.files[k].name]
        ]
        found.append(min(apart) <= NEAR)
    return np.array(found)
