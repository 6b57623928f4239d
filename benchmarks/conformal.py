"""Claim: of normal images that are exchangeable with the calibration images, a share of alpha is
called anomalous and no more: over 200 random re-splits of normal images that one trained model
never saw, the mean false-alarm rate lies in [alpha − 1/(n+1), alpha] within three standard errors,
and it varies as a beta-binomial does. The printed lines prove it or not.

Re-splits are of the dataset's test images, all of whose classes are trained on. Beside them stands
what a user gets, who calibrates once, with training images that were kept out. The test images of
digits, MNIST and Fashion-MNIST come from where the training images come from; the toys on those of
Small-NORB were never seen, so that no rate is promised there, and none is kept.

    python benchmarks/conformal.py --dataset fashion-mnist
    python benchmarks/conformal.py --dataset small-norb
"""

import json
from pathlib import Path

import numpy as np
from arguments import Parser, at_least, one_line, stored, writable
from scipy.stats import betabinom

from anocaps.base.files import write_text
from anocaps.data import Dataset, load_dataset
from anocaps.detectors import CapsNetDetector
from anocaps.detectors.presets import find_preset
from anocaps.judging.calibration import p_values
from anocaps.study.protocol import cell_data
from anocaps.study.settings import settings_for

ALPHAS = (0.01, 0.05, 0.1)
SPLITS = 200
MOST_CALIBRATION = 1000  # images of a re-split; never more than half
ERRORS = 3  # standard errors


@one_line
def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--preset", help="by default deep; 8×8 digits take quick")
    parser.add_argument("--score", choices=CapsNetDetector.score_names, default="knn")
    parser.add_argument("--epochs", type=at_least(1))
    parser.add_argument("--limit", type=at_least(2), help="training images per class")
    parser.add_argument("--out", type=writable, default="results/conformal.json")
    options = parser.parse_args()
    before = stored(options.out)
    dataset = load_dataset(options.dataset, options.data_dir, download=False)
    preset = options.preset or ("quick" if dataset.name == "digits" else "deep")
    find_preset(preset)  # or end here
    settings = settings_for(dataset.name, preset) | {"preset": preset, "score_function": options.score}
    if options.epochs is not None:
        settings["epochs"] = options.epochs
    found = measured(dataset, settings, options.limit)
    write_text(options.out, json.dumps(before | {dataset.name: found}, indent=1) + "\n")
    for row in found["resplits"]:
        print(json.dumps(row))
    print("calibrated once, with training images:", json.dumps(found["calibrated_once"]))


def measured(dataset: Dataset, settings: dict, limit: int | None = None) -> dict:
    """Train one model on all classes, then judge test images that it never saw."""
    data = cell_data(dataset, (), seed=0, limit=limit)
    detector = CapsNetDetector(**settings).fit(data.train_images, data.train_labels)
    scores = detector.score_samples(data.test_images)
    p = p_values(scores, detector.calibration_scores())
    record = detector.record_
    return {
        "official": dataset.official,
        "settings": settings,
        "training_images": record["training_images"],
        "resplits": resplits(scores),
        "calibrated_once": {
            "calibration_images": len(detector.calibration_scores()),
            "test_images": len(scores),
            "rates": {str(alpha): round(float(np.mean(p <= alpha)), 5) for alpha in ALPHAS},
        },
        **{name: record[name] for name in ("training_seconds", "device", "versions", "commit")},
    }


def resplits(scores: np.ndarray, splits: int = SPLITS, seed: int = 0) -> list[dict]:
    """False-alarm rates of normal images by alpha, over random splits into calibration and test."""
    size = min(MOST_CALIBRATION, len(scores) // 2)
    generator = np.random.default_rng(seed)
    rates = []
    for _ in range(splits):
        drawn = generator.permutation(scores)
        p = p_values(drawn[size:], drawn[:size])
        rates.append([np.mean(p <= alpha) for alpha in ALPHAS])
    return [row(alpha, each, size, len(scores) - size) for alpha, each in zip(ALPHAS, zip(*rates))]


def row(alpha: float, rates: tuple[float, ...], calibration: int, test: int) -> dict:
    """What was found, beside what exchangeable scores without ties would give.

    Of `test` images, those below the k-th smallest of n calibration scores are beta-binomial with
    parameters k and n+1−k, where k = ⌊alpha (n+1)⌋.
    """
    k = int(np.count_nonzero(np.arange(1, calibration + 1) / (calibration + 1) <= alpha))
    law = betabinom(test, k, calibration + 1 - k)
    mean, variance = float(np.mean(rates)), float(np.var(rates, ddof=1))
    error = float(law.std()) / test / len(rates) ** 0.5
    expected = float(law.var()) / test**2
    # of the ratio of variances: the fourth moment of the law says how much a sample's varies
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
    main()
