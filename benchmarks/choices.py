"""What the paper leaves open in its network, chosen on mock anomalies; test images are not read.

A class of the *training* images is held out in turn and plays the anomaly; one sixth of the
other training images plays the normal test images. Each choice is changed alone, everything else
as in the `paper` preset with fewer epochs. Results: results/choices-DATASET.json.

    python benchmarks/choices.py mnist --epochs 5 --held-out 1,3,5,7,9
"""

import argparse
import json
from pathlib import Path

import numpy as np

from anocaps.data import load_dataset
from anocaps.detectors import CapsNetDetector
from anocaps.files import write_text
from anocaps.metrics import auroc
from anocaps.study.settings import settings_for

CHOICES: dict[str, dict[str, object]] = {
    "as it is": {},
    "gradient of the last iteration only": {"gradient": "last"},
    "shifts of 2 pixels": {"shift": 2},
    "class bias": {"class_bias": True},
    "start: routing weights of spread 0.1": {"start": "flat"},
    "start: released code": {"start": "released"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--held-out", default="1,3,5,7,9")
    parser.add_argument("--choices", help="only those with one of these words, comma-separated")
    parser.add_argument("--limit", type=int, help="training images per class")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dataset = load_dataset(options.dataset, options.data_dir, download=False)
    out = options.out or Path(f"results/choices-{dataset.name}.json")
    wanted = options.choices.split(",") if options.choices else [""]
    rows = []
    for name, settings in CHOICES.items():
        if name != "as it is" and not any(word in name for word in wanted):
            continue
        for held_out in map(int, options.held_out.split(",")):
            row = mock_cell(dataset, held_out, options, settings) | {"choice": name}
            rows.append(row)
            print(json.dumps(row), flush=True)
            write_text(out, json.dumps(rows, indent=1))
    print_table(rows)


def mock_cell(dataset, held_out: int, options, settings: dict[str, object]) -> dict[str, object]:
    """Train with one training class held out; AUROC of it against unseen training images."""
    images, labels = dataset.train.images, dataset.train.labels
    unseen = np.arange(len(labels)) % 6 == 0
    training = np.flatnonzero(~unseen & (labels != held_out))
    if options.limit:
        training = np.concatenate([training[labels[training] == c][: options.limit]
                                   for c in np.unique(labels[training])])  # fmt: skip
    detector = CapsNetDetector(
        calibration=0.0,
        **(
            settings_for(dataset.name, "paper")
            | {"epochs": options.epochs, "gradient": "all"}
            | settings
        ),
    ).fit(images[training], labels[training])
    normal, odd = unseen & (labels != held_out), unseen & (labels == held_out)
    scores = [detector.all_scores(images[members]) for members in (normal, odd)]
    accuracy = np.mean(detector.classify(images[normal]) == labels[normal])
    return {
        "dataset": dataset.name,
        "official": dataset.official,
        "held_out": dataset.class_names[held_out],
        "auroc": {k: round(auroc(scores[0][k], scores[1][k]), 4) for k in scores[0]},
        "accuracy": round(float(accuracy), 4),
        "losses": [round(loss, 4) for loss in detector.record_["losses"]],
        "seconds": detector.record_["training_seconds"],
        "device": detector.record_["device"],
        "versions": detector.record_["versions"],
        "commit": detector.record_["commit"],
    }


def print_table(rows: list[dict]) -> None:
    """Means over the held-out classes, and the first epoch's loss, which shows a plateau."""
    for name in dict.fromkeys(row["choice"] for row in rows):
        mine = [row for row in rows if row["choice"] == name]
        means = {k: np.mean([row["auroc"][k] for row in mine]) for k in mine[0]["auroc"]}
        shown = "  ".join(f"{k} {value:.4f}" for k, value in means.items())
        accuracy = np.mean([row["accuracy"] for row in mine])
        print(f"{name:40} {shown}  accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
