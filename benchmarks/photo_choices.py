"""Claim: what preset `photo` does loses least, or little, on mock anomalies. Compared are routing
weights shared over places or not, Fisher's or Bonferroni's rule, references within classes or not,
and the shares of scores for one class. results/photo-choices.json proves it or not.

Mock anomalies come from normal training photos alone; no folder of real anomalies is read.

- Several classes: a quarter of the 24 kinds of fruits/train is left out, in four turns. Anomalies
  are the left-out kinds, and photos of the other kinds with a piece of another kind pasted in.
- One class: each kind of fruit is the only normal class, and the other kinds are anomalies. Of
  commutators/train a quarter is kept out and altered, by the synthetic anomalies of the self-check.

    python benchmarks/photo_choices.py several_classes --data-dir DATA     (7 minutes on one core)
    python benchmarks/photo_choices.py one_class --data-dir DATA           (3 minutes)
"""

import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import common
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anocaps import CapsNetDetector, ImageFolder
from anocaps.detectors import capsnet
from anocaps.detectors.photo import model
from anocaps.detectors.photo.features import Features, features_of
from anocaps.detectors.photo.model import Effort, PhotoModel
from anocaps.inspect.synthetic import synthetic
from anocaps.judging.calibration import split
from anocaps.judging.combining import bonferroni, fisher
from anocaps.judging.metrics import auroc
from anocaps.networks import photo
from anocaps.networks.photo import GRID, PhotoConfig
from anocaps.networks.photo import CapsuleHead as Head
from anocaps.training.device import circumstances

PARTS = ("several_classes", "one_class")
SEED = 0
FOLDS = 4  # of the kinds of fruit
TESTED = 0.25  # of the normal images
PIECE = 0.25  # side of a pasted piece, of the shorter side
VISIBLE = 20  # grey levels by which a pasted piece differs, on average, from what it covers
TRIES = 100  # to find a visible piece
LOCAL = 30  # images of each kind and size of synthetic anomaly
USED = "fisher, within classes"  # by the preset
CPU = torch.device("cpu")

LARGEST = (0.9, 0.5, 1.0)  # shares of the largest distances in `patch`; the mean has the rest
PATCH = (0.9, 0.95, 1.0)  # shares of `patch` in `combined`; `stem-knn` has the rest

Floats, Ints, Pixels = NDArray[np.float64], NDArray[np.int64], NDArray[np.uint8]
Found = Mapping[str, NDArray[Any]]
Row = dict[str, Any]


def main() -> None:
    parser = common.parser(__doc__, "photo-choices.json")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data-dir", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    started = time.perf_counter()
    fruits = ImageFolder(options.data_dir / "fruits" / "train")
    kinds = np.unique(fruits.labels, return_inverse=True)[1].astype(np.int64)
    features = features_of(fruits.images, kinds, len(fruits.class_names), None, CPU)
    if options.part == "several_classes":
        found = several_classes(fruits, features, kinds)
    else:
        found = one_class(features, kinds, options.data_dir / "commutators" / "train")
    found |= {"patches": Effort().patches, "seconds": round(time.perf_counter() - started, 1)}
    what = "mean AUROC on mock anomalies; no folder of real anomalies was read"
    parts = common.stored(options.out) | {options.part: found | circumstances(CPU)}
    common.write(options.out, {"what": what, "seed": SEED} | parts)


class OwnWeights(Head):
    """Each of the 4×4 places has routing weights of its own."""

    def __init__(self, config: PhotoConfig) -> None:
        super().__init__(config)
        std = float(self.routing.detach().std())
        shape = (GRID**2 * config.primary_types, *self.routing.shape[1:])
        self.routing = nn.Parameter(std * torch.randn(shape))

    @property
    def weight(self) -> Tensor:
        return self.routing


class Learned(PhotoModel):
    """Keeps the normal scores, so that other shares can be tried."""

    normal: dict[str, Floats]

    def _learn_references(self, normal: dict[str, Floats], classes: Ints | None) -> None:
        self.normal = dict(normal)
        super()._learn_references(normal, classes)


def learned(features: Features, labels: Ints, head: type[Head] = Head) -> Learned:
    """What the preset learns, with these capsules."""
    with (
        patch.object(capsnet, "PhotoModel", Learned),
        patch.object(model, "CapsuleHead", head),
        patch.object(photo, "CapsuleHead", head),
    ):
        detector = CapsNetDetector("photo", calibration=0, seed=SEED, device="cpu")
        return detector.fit(features, labels).photo_


# ── several classes ──────────────────────────────────────────────────────────────────────────


def several_classes(fruits: ImageFolder, features: Features, kinds: Ints) -> Row:
    generator = np.random.default_rng(SEED)
    fold_of = generator.permutation(len(fruits.class_names)) % FOLDS
    images = np.asarray(fruits.images)
    pasted = features_of(pasted_into(images, kinds, generator), kinds, 1, None, CPU)
    found: dict[tuple[str, str], list[Row]] = {}  # of routing and score
    for k in range(FOLDS):
        left_out, rest = np.flatnonzero(fold_of[kinds] == k), np.flatnonzero(fold_of[kinds] != k)
        training, tested = split(kinds[rest], TESTED, SEED, copies=features.copies[rest])
        for routing, head in (("shared", Head), ("of each place", OwnWeights)):
            fitted = learned(features[rest[training]], kinds[rest[training]], head)
            normal, others, pieces = (
                joined(fitted, fitted.forward(each, set()))
                for each in (features[rest[tested]], features[left_out], pasted[rest[tested]])
            )
            for score, usual in normal.items():
                both = auroc(usual, others[score]), auroc(usual, pieces[score])
                row = dict(zip(("other kinds", "pasted pieces"), both))
                found.setdefault((routing, score), []).append(row)
        print(f"fold {k + 1} of {FOLDS}: {found['shared', USED][-1]}", flush=True)
    rows = [{"routing": r, "score": s, "auroc": means(each)} for (r, s), each in found.items()]
    names = [[n for n, f in zip(fruits.class_names, fold_of) if f == k] for k in range(FOLDS)]
    return {"folds": names, "rows": rows}


def joined(fitted: PhotoModel, found: Found) -> dict[str, Floats]:
    """Each score alone, and all joined by both rules, without and with p-values within classes."""
    names = fitted.score_names[1:]
    usual = {k: fitted.references[k].everything.surprise(found[k]) for k in names}
    sums = {k: fitted.references[k].surprise(found[k], found["class"]) for k in names}
    both = usual | {f"{k}, class": sums[k] - usual[k] for k in names}
    return {k: found[k] for k in names} | {
        "fisher": -fisher(usual),
        USED: -fisher(both),
        "bonferroni": -bonferroni(usual, dict.fromkeys(usual, 1.0)),
        "bonferroni, within classes": -bonferroni(both, dict.fromkeys(both, 1.0)),
    }


def means(rows: list[Row]) -> Row:
    return {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}


# ── one class ────────────────────────────────────────────────────────────────────────────────


def one_class(fruits: Features, kinds: Ints, commutators: Path) -> Row:
    cases: dict[str, list[tuple[Learned, Found, Found]]] = {"other kinds": []}
    for kind in np.unique(kinds):
        mine = np.flatnonzero(kinds == kind)
        training, tested = split(kinds[mine], TESTED, SEED, copies=fruits.copies[mine])
        fitted = learned(fruits[mine[training]], np.zeros(len(training), np.int64))
        normal = fitted.forward(fruits[mine[tested]], set())
        cases["other kinds"].append((fitted, normal, fitted.forward(fruits[kinds != kind], set())))
    images = np.asarray(ImageFolder(commutators).images)
    labels = np.zeros(len(images), np.int64)
    features = features_of(images, labels, 1, None, CPU)
    training, tested = split(labels, TESTED, SEED, copies=features.copies)
    fitted = learned(features[training], labels[training])
    normal = fitted.forward(features[tested], set())
    for line in synthetic(images[tested], images[training], SEED, LOCAL):
        group = cases.setdefault(line.kind, [])
        group.append((fitted, normal, fitted.forward(line.images, set())))
    return {
        "images": {"commutators, trained on": len(training), "tested": len(tested)},
        "combined": [
            {"largest": largest, "patch": share}
            | {
                name: means([figures(*with_shares(*each, largest, share)) for each in group])
                for name, group in cases.items()
            }
            for largest, share in product(LARGEST, PATCH)
        ],
        "alone": {
            score: {
                name: means([figures(n[score], a[score]) for _, n, a in group])
                for name, group in cases.items()
            }
            for score in ("largest", "mean", "stem-knn")
        },
    }


def with_shares(
    fitted: Learned, normal: Found, anomalous: Found, largest: float, share: float
) -> list[Floats]:
    """`combined` of both kinds of images."""
    of_patch = {"largest": largest} | ({"mean": 1 - largest} if largest < 1 else {})
    of_all = {"patch": share} | ({"stem-knn": 1 - share} if share < 1 else {})
    with patch.multiple(model, PATCH_SHARES=of_patch, ONE_CLASS_SHARES=of_all):
        fitted._learn_references(fitted.normal, None)
        return [
            fitted._combined({**each, "patch": fitted._patch(dict(each))})
            for each in (normal, anomalous)
        ]


def figures(normal: Floats, anomalous: Floats) -> Row:
    """The second: found at 5 % false alarms."""
    found = float(np.mean(anomalous < np.quantile(normal, 0.05)))
    return {"auroc": auroc(normal, anomalous), "found_at_equal_rates": found}


def pasted_into(images: Pixels, kinds: Ints, generator: np.random.Generator) -> Pixels:
    """Images N×H×W×C, each with a visible piece of another kind in its middle half."""
    found = images.copy()
    height, width = images.shape[1:3]
    side = round(PIECE * min(height, width))

    def somewhere(image: Pixels) -> Pixels:
        top, left = (int(generator.integers(s // 4, 3 * s // 4 - side)) for s in (height, width))
        return image[top : top + side, left : left + side]  # a view

    for image, kind in zip(found, kinds):
        place = somewhere(image)
        others = np.flatnonzero(kinds != kind)
        for _ in range(TRIES):
            piece = somewhere(images[generator.choice(others)])
            if np.abs(piece.astype(np.int64) - place).mean() >= VISIBLE:
                break
            place = somewhere(image)
        place[:] = piece
    return found


if __name__ == "__main__":
    common.run_script(main)
