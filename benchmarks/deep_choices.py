"""How the deep preset moves images in training, chosen on mock anomalies; test images are not read.

A class of the *training* images is held out in turn and plays the anomaly. The other images of the
test are, on Small-NORB, those of one toy of each category that training never sees (a new toy is
what a user has to judge); elsewhere every sixth training image. Of Small-NORB one camera is taken,
48×48 pixels. Results: results/deep-choices.json.

    python benchmarks/deep_choices.py small-norb --limit 400
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from arguments import Parser, at_least, device_name, one_line, stored, writable

from anocaps.base.files import write_text
from anocaps.data import Dataset, load_dataset
from anocaps.detectors import CapsNetDetector, presets
from anocaps.detectors.base import fit_together
from anocaps.judging.metrics import auroc
from anocaps.study.protocol import cell_data, first_channels, mock_dataset
from anocaps.training.device import circumstances, pick_device

CHOICES = {  # what comes in from outside repeats the image's edge, or is black
    "up to a sixteenth of the side": {"shift": 1 / 16},
    "up to a sixteenth, black outside": {"shift": 1 / 16, "padding": "black"},
    "up to a thirty-second": {"shift": 1 / 32},
    "no shifts": {"shift": 0},
}
SCORES = ("pp", "re", "pp+re", "knn")


@one_line
def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=at_least(1), default=3)
    parser.add_argument("--limit", type=at_least(2), help="training images per class")
    parser.add_argument("--epochs", type=at_least(1), help="by default the preset's")
    parser.add_argument("--device", type=device_name, default="auto")
    parser.add_argument("--out", type=writable, default="results/deep-choices.json")
    options = parser.parse_args()
    before = stored(options.out)
    mock = mock_of(options.dataset, options.data_dir)
    about = {"limit": options.limit, "epochs": options.epochs}
    rows = before.get(mock.name, {}).get("rows", [])
    if rows and about != {name: before[mock.name][name] for name in about}:
        parser.error(f"{options.out}: has results of other settings; name another --out")
    for seed in range(options.seeds):
        for choice in CHOICES:
            if any((row["choice"], row["seed"]) == (choice, seed) for row in rows):
                continue  # of an earlier run
            rows += measured(mock, choice, seed, options)
            print(choice, seed, json.dumps(means(rows[-len(mock.class_names) :])), flush=True)
            found = about | {"rows": rows} | circumstances(pick_device(options.device))
            write_text(options.out, json.dumps(before | {mock.name: found}, indent=1) + "\n")
    for choice in CHOICES:
        print(choice, json.dumps(means([row for row in rows if row["choice"] == choice])))


def mock_of(name: str, folder: Path | None) -> Dataset:
    """Training images alone, some of which play the test images."""
    dataset = load_dataset(name, folder, download=False)
    return mock_dataset(first_channels(dataset, 1) if dataset.name == "small-norb" else dataset)


def measured(mock: Dataset, choice: str, seed: int, options: argparse.Namespace) -> list[dict]:
    """One network for each class held out, trained at once where a GPU helps."""
    cells = [cell_data(mock, (k,), seed, options.limit) for k in range(len(mock.class_names))]
    detectors = [
        CapsNetDetector(
            preset="deep", calibration=0.0, seed=seed, epochs=options.epochs, device=options.device
        )
        for _ in cells
    ]
    deep = presets.PRESETS["deep"]
    presets.PRESETS["deep"] = replace(deep, **CHOICES[choice])
    try:
        fit_together(detectors, [(cell.train_images, cell.train_labels) for cell in cells])
    finally:
        presets.PRESETS["deep"] = deep
    rows = []
    for name, cell, detector in zip(mock.class_names, cells, detectors):
        scores = detector.all_scores(cell.test_images, SCORES)
        found = {
            score: round(auroc(values[~cell.anomalous], values[cell.anomalous]), 5)
            for score, values in scores.items()
        }
        rows.append({"choice": choice, "seed": seed, "held_out": name, "auroc": found})
    return rows


def means(rows: list[dict]) -> dict[str, float]:
    return {s: round(float(np.mean([row["auroc"][s] for row in rows])), 4) for s in SCORES}


if __name__ == "__main__":
    main()
