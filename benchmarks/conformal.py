"""Claim: of normal images that are exchangeable with the calibration set, a share of at most alpha
is called anomalous. Over 200 random re-splits of normal images that one trained model never saw,
the mean false-alarm rate lies in [alpha − 1/(n+1), alpha] within three standard errors, and varies
as a beta-binomial does. The printed lines prove it or not.

Re-splits are of the dataset's test images; all classes are trained on. "Calibrated once" is what a
user gets: the calibration set is kept out of the training images. The test images of digits, MNIST
and Fashion-MNIST are of the same kind as the training images. Small-NORB's test toys were never
seen in training, so nothing is guaranteed there.

For folders of photos it is preset `photo` with its score `combined`, whose references come from
training images. Re-splits are of one half of train/, kept out of training as a whole.

`--presets` measures every score function of every preset. Networks are trained for a short time on
few images: the claim does not depend on how good a model is. The images that are split again are
neither trained on nor used for the references of `combined` and `pp+re`.

    python benchmarks/conformal.py --dataset fashion-mnist
    python benchmarks/conformal.py --dataset digits        (seconds on a CPU)
    python benchmarks/conformal.py --photos DATA/fruits    (with train/ and test-normal/)
    python benchmarks/conformal.py --photos DATA/commutators    (one class)
    python benchmarks/conformal.py --presets --photos DATA/fruits      (ten minutes on two cores)
"""

import json
from pathlib import Path
from typing import Any

import common
import numpy as np
from numpy.typing import NDArray
from scipy.stats import betabinom

from anocaps import CapsNetDetector, ImageFolder
from anocaps.data import load_dataset
from anocaps.judging.calibration import p_values, split
from anocaps.study.protocol import cell_data
from anocaps.study.studies import settings_for

ALPHAS = (0.01, 0.05, 0.1)
SPLITS = 200
MOST_CALIBRATION = 1000  # images of a re-split; never more than half
ERRORS = 3  # standard errors
SCORE = "knn"
# of `--presets`; preset `photo` is measured on a folder
DATASETS = {"paper": "mnist", "paper-tuned": "mnist", "deep": "mnist", "quick": "digits"}
PER_CLASS = 200  # training images of a class at most
EPOCHS = 3
UNSEEN = 4000  # images that are split again at most


def main() -> None:
    parser = common.parser(__doc__, "conformal.json")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--photos", type=Path, metavar="DIR")
    parser.add_argument("--presets", action="store_true")
    options = parser.parse_args()
    found = common.stored(options.out)
    if options.presets:
        for preset in (*DATASETS, *([] if options.photos is None else ["photo"])):
            one = of_preset(preset, options.data_dir, options.photos)
            found.setdefault("presets", {})[preset] = one
            for score, rows in one["scores"].items():
                print(preset, score, *(f"{row['mean']} {row['mean_within']}" for row in rows))
    else:
        if options.photos is None:
            name, one = options.dataset, of_dataset(options.dataset, options.data_dir)
        else:
            name, one = options.photos.name, of_photos(options.photos)
        found.setdefault("datasets", {})[name] = one
        for row in one["resplits"]:
            print(json.dumps(row))
        print("calibrated once, with training images:", json.dumps(one["calibrated_once"]))
    common.write(options.out, found)


def of_preset(preset: str, data_dir: Path | None, photos: Path | None) -> dict[str, Any]:
    """False-alarm rates of every score function of a preset."""
    if preset == "photo":
        assert photos is not None
        train = ImageFolder(photos / "train")
        _, half = split(np.unique(train.labels, return_inverse=True)[1], 0.5, seed=0)
        detector = CapsNetDetector(preset)
        detector.fit(detector.prepare(train), train.labels, calibrate_on=half)
        source, scores = photos.name, detector.calibration_scores_
    else:
        dataset = load_dataset(DATASETS[preset], data_dir, download=False)
        data = cell_data(dataset, (), seed=0)
        few = [
            np.flatnonzero(data.train_labels == name)[:PER_CLASS]
            for name in np.unique(data.train_labels)
        ]
        chosen = np.sort(np.concatenate(few))
        short = {} if preset == "quick" else {"epochs": EPOCHS}
        detector = CapsNetDetector(preset, **short)
        detector.fit(data.train_images[chosen], data.train_labels[chosen])
        source, names = dataset.name, tuple(detector.calibration_scores_)
        found = detector.outputs(data.test_images[:UNSEEN], names)
        scores = {name: found[name] for name in names}
    return {
        "images of": source,
        "training_images": detector.record_["training_images"],
        "scores": {name: resplits(each) for name, each in scores.items()},
        **{k: detector.record_[k] for k in ("training_seconds", "device", "versions", "commit")},
    }


def of_dataset(name: str, data_dir: Path | None) -> dict[str, Any]:
    dataset = load_dataset(name, data_dir, download=False)
    preset = "quick" if dataset.name == "digits" else "deep"
    data = cell_data(dataset, (), seed=0)
    detector = CapsNetDetector(
        **settings_for(dataset.name, preset) | {"preset": preset, "score_function": SCORE}
    )
    detector.fit(data.train_images, data.train_labels)
    scores = detector.score_samples(data.test_images)
    return {
        "official": dataset.official,
        "settings": {"preset": preset, "score": SCORE},
        "resplits": resplits(scores),
        **calibrated_once(detector, scores),
    }


def of_photos(folder: Path) -> dict[str, Any]:
    train = ImageFolder(folder / "train")
    test = ImageFolder(folder / "test-normal", fit=train.fit, fewest=1)
    detector = CapsNetDetector("photo")
    features = detector.prepare(train)
    detector.fit(features, train.labels)
    _, half = split(np.unique(train.labels, return_inverse=True)[1], 0.5, seed=0)
    other = CapsNetDetector("photo").fit(features, train.labels, calibrate_on=half)
    return {
        "settings": {"preset": "photo", "score": "combined", "pretrained": "ImageNet"},
        "resplits": resplits(other.calibration_scores_["combined"]),
        **calibrated_once(detector, detector.score_samples(np.asarray(test.images))),
    }


def calibrated_once(detector: CapsNetDetector, scores: NDArray[np.float64]) -> dict[str, Any]:
    """The rates of normal test images, and the circumstances."""
    calibration = detector.calibration_scores_[detector.score_function_]
    p = p_values(scores, calibration)
    return {
        "training_images": detector.record_["training_images"],
        "calibrated_once": {
            "calibration_images": len(calibration),
            "test_images": len(scores),
            "rates": {str(alpha): round(float(np.mean(p <= alpha)), 5) for alpha in ALPHAS},
        },
        **{k: detector.record_[k] for k in ("training_seconds", "device", "versions", "commit")},
    }


def resplits(scores: NDArray[np.float64]) -> list[dict[str, Any]]:
    """False-alarm rates of normal images by alpha, over random splits into calibration and test."""
    size = min(MOST_CALIBRATION, len(scores) // 2)
    generator = np.random.default_rng(0)
    rates = []
    for _ in range(SPLITS):
        drawn = generator.permutation(scores)
        p = p_values(drawn[size:], drawn[:size])
        rates.append([np.mean(p <= alpha) for alpha in ALPHAS])
    return [
        row(alpha, each, size, len(scores) - size)
        for alpha, each in zip(ALPHAS, zip(*rates))
        if alpha * (size + 1) >= 1  # else no p-value can be that small
    ]


def row(alpha: float, rates: tuple[float, ...], calibration: int, test: int) -> dict[str, Any]:
    """The rates found, and what exchangeable scores without ties would give.

    The number of test images below the k-th smallest of n calibration scores is beta-binomial with
    parameters k and n+1−k, where k = ⌊alpha (n+1)⌋.
    """
    k = int(np.count_nonzero(np.arange(1, calibration + 1) / (calibration + 1) <= alpha))
    law = betabinom(test, k, calibration + 1 - k)
    mean, variance = float(np.mean(rates)), float(np.var(rates, ddof=1))
    error = float(law.std()) / test / len(rates) ** 0.5
    expected = float(law.var()) / test**2
    # the standard error of the ratio of variances, from the fourth moment of the law
    counts = np.arange(test + 1)
    fourth = float(law.pmf(counts) @ ((counts / test - law.mean() / test) ** 4))
    ratio_error = ((fourth / expected**2 - 1) / len(rates)) ** 0.5
    low = alpha - 1 / (calibration + 1)
    return {
        "alpha": alpha,
        "splits": len(rates),
        "calibration_images": calibration,
        "test_images": test,
        "mean": round(mean, 6),
        "expected": round(k / (calibration + 1), 6),
        "standard_error": round(error, 6),
        "mean_within": low - ERRORS * error <= mean <= alpha + ERRORS * error,
        "variance": variance,
        "beta_binomial": expected,
        "ratio": round(variance / expected, 4),
        "ratio_error": round(ratio_error, 4),
        "variance_within": abs(variance / expected - 1) <= ERRORS * ratio_error,
    }


if __name__ == "__main__":
    common.run_script(main)
