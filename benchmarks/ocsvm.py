"""Claim: the gradient method that fits the one-class SVM on a GPU finds the solution that
scikit-learn's solver finds, in about 1 s in place of 13 to 44 s for 20,000 points: scores of test
images differ by less than a hundredth of their standard deviation, AUROC by less than 0.001. Five
cells; the printed lines prove it or not.

So all normal images of a cell can be used. "gap" bounds how far a solution is from the best one,
without another solver. ν and γ are the detector's, from normal images alone. AUROC is evidence:
nothing is chosen by it. Also measured: few normal images, and the usual width of the kernel, the
median distance of two points.

    python benchmarks/ocsvm.py                            (on a GPU, as the study trains)
    python benchmarks/ocsvm.py --epochs 1 --limit 2000    (minutes on a CPU: fewer images)
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.data import load_dataset
from anocaps.detectors import CNNOCSVMDetector
from anocaps.detectors.baselines import one_class_svm
from anocaps.detectors.baselines.one_class_svm import NU, OneClassSVM
from anocaps.judging.metrics import auroc
from anocaps.study.protocol import cell_data, held_out_classes
from anocaps.study.studies import accepted, settings_for
from anocaps.training.device import circumstances, pick_device
from anocaps.training.inference import inference
from anocaps.training.loop import Run

CELLS = ("mnist:2", "mnist:9", "fashion-mnist:shirt", "fashion-mnist:sandal", "small-norb:animal")
DRAWS = 3  # of few points
SEED = 0


def main() -> None:
    parser = common.parser(__doc__, "ocsvm.json")
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="DATASET:CLASS")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--epochs", type=int, help="by default the study's")
    parser.add_argument("--limit", type=int, help="training images per class")
    parser.add_argument("--exact", type=int, default=20_000, help="points for both solvers")
    parser.add_argument("--few", type=int, default=5000, help="points of a small SVM")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args()
    cells = []
    for text in options.cells:
        name, _, held_out = text.partition(":")
        dataset = load_dataset(name, options.data_dir, download=False)
        data = cell_data(dataset, held_out_classes(dataset, held_out), SEED, options.limit)
        settings = accepted("cnn-ocsvm", settings_for(name, "paper"))
        settings |= {} if options.epochs is None else {"epochs": options.epochs}
        cnn = Features(
            **settings, precision="auto", calibration=0.0, seed=SEED, device=options.device
        )
        cnn.fit(data.train_images, data.train_labels)
        test = cnn.of(data.test_images[data.balanced])
        cell = Cell(cnn.normal_, test, data.anomalous[data.balanced])
        about = {
            "dataset": name,
            "official": dataset.official,
            "held_out": held_out,
            "epochs": cnn.epochs,
            "normal_images": len(data.train_images),
            "test_images": len(data.balanced),
        }
        cells.append(about | compared(cell, options.exact, options.few))
        print(json.dumps(cells[-1]), flush=True)
    whole = {"nu": NU, "limit": options.limit, "cells": cells}
    common.write(options.out, whole | circumstances(pick_device(options.device)))


class Features(CNNOCSVMDetector):
    """The detector's CNN alone, without its SVM."""

    def _training(self, images: NDArray[Any], labels: NDArray[Any]) -> Iterator[Run]:
        yield from super(CNNOCSVMDetector, self)._training(images, labels)
        self.normal_ = self.of(images[:])

    def of(self, images: NDArray[Any]) -> Tensor:
        """[N, 128] float32."""
        return torch.cat([each for each, _ in self._each(self._gate(images), self._classified)])


class Cell(NamedTuple):
    """Features of one cell of the study."""

    normal: Tensor  # of all normal training images, [n, D]
    test: Tensor  # of the balanced test set, [m, D]
    anomalous: NDArray[np.bool_]  # [m]

    def auroc(self, scores: Tensor) -> float:
        values = scores.cpu().numpy()
        return round(float(auroc(values[~self.anomalous], values[self.anomalous])), 4)


Solver = Callable[[Tensor, float], tuple[Tensor, float]]  # points, γ → weights, level


def by_gradient(points: Tensor, gamma: float) -> tuple[Tensor, float]:
    return one_class_svm._solve_on_gpu(points, gamma)  # on a CPU too


def by_scikit_learn(points: Tensor, gamma: float) -> tuple[Tensor, float]:
    weights, level = one_class_svm._solve_on_cpu(points.cpu(), gamma)
    return weights.to(points.device), level


def fitted(points: Tensor, gamma: float, solve: Solver) -> OneClassSVM:
    """As OneClassSVM.fit, with a given solver and width of the kernel."""
    with inference(points.device):
        weights, level = solve(points, gamma)
    kept = weights > 0
    return OneClassSVM(points[kept], weights[kept], gamma, level)


def compared(cell: Cell, exact: int, few: int) -> dict[str, Any]:
    """Both solvers on the same points; ours also on all points and on few."""
    gamma = 1 / one_class_svm._neighbour_distance(cell.normal, SEED)
    shared = drawn(cell.normal, exact, SEED)
    exact_row, theirs, _ = row(cell, shared, gamma, by_scikit_learn)
    our_row, ours, _ = row(cell, shared, gamma, by_gradient)
    all_row, _, svm = row(cell, cell.normal, gamma, by_gradient)
    difference = float((ours - theirs).abs().max() / theirs.std())
    # With a smaller ν no weight reaches its bound, 1 / (ν points): ν has no effect. Unknown where
    # a weight is at the bound already.
    points, largest = len(cell.normal), float(svm.weights.max())
    bounded = largest > 0.999 / (NU * points)
    return {
        "gamma": round(gamma, 5),
        "nu_without_effect_below": None if bounded else round(1 / (points * largest), 3),
        "nu_points": points,
        "scikit-learn": exact_row,
        "ours": our_row,
        "largest_difference": float(f"{difference:.2g}"),
        "alike": difference < 0.01 and abs(our_row["auroc"] - exact_row["auroc"]) < 0.001,
        "ours_on_all": all_row,
        "few": few_points(cell, few),
    }


def row(
    cell: Cell, points: Tensor, gamma: float, solve: Solver
) -> tuple[dict[str, Any], Tensor, OneClassSVM]:
    """What an SVM reaches and takes, its scores of the test images, and the SVM."""
    started = time.perf_counter()
    svm = fitted(points, gamma, solve)
    seconds = time.perf_counter() - started
    scores = svm.decision(cell.test)
    told = {
        "points": len(points),
        "auroc": cell.auroc(scores),
        "support_vectors": len(svm.support),
        "gap": float(f"{gap(svm, points):.2g}"),
        "seconds": round(seconds, 2),
    }
    return told, scores, svm


def gap(svm: OneClassSVM, points: Tensor) -> float:
    """An upper bound of how far ½ αᵀKα is above its minimum, as a share of it.

    The objective is convex, so it lies above its tangent at α. The minimum of the tangent gives the
    smallest entries of Kα as much weight as they may have.
    """

    def inside(some: Tensor) -> Tensor:
        """Kα in units of the level, [N] float64."""
        return torch.cat([svm.decision(part) for part in some.split(1000)]).exp()

    found = (svm.weights / svm.weights.sum()) @ inside(svm.support)
    sizes = inside(points).sort().values
    ceiling = 1 / (NU * len(points))
    before = ceiling * torch.arange(len(points), dtype=torch.float64, device=points.device)
    least = (1 - before).clamp(0, ceiling) @ sizes
    return float((found - least) / (found / 2))


def few_points(cell: Cell, few: int) -> dict[str, Any]:
    """AUROC with few points, over draws, with the detector's width of the kernel and the usual."""
    found = []
    for seed in range(DRAWS):
        points = drawn(cell.normal, few, seed)
        gamma = 1 / one_class_svm._neighbour_distance(points, SEED)
        found.append(cell.auroc(fitted(points, gamma, by_gradient).decision(cell.test)))
    points = drawn(cell.normal, few, 0)
    distance = float(torch.nn.functional.pdist(points[:1000].double()).square().median())
    usual = fitted(points, 1 / distance, by_scikit_learn)
    return {
        "points": len(points),
        "draws": DRAWS,
        "auroc": round(float(np.mean(found)), 4),
        "spread": round(float(np.std(found, ddof=1)), 4),
        "auroc_usual_width": cell.auroc(usual.decision(cell.test)),
    }


def drawn(points: Tensor, count: int, seed: int) -> Tensor:
    chosen = np.random.default_rng(seed).permutation(len(points))[:count]
    return points[torch.from_numpy(chosen).to(points.device)]


if __name__ == "__main__":
    common.run_script(main)
