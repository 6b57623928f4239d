"""Claim: on folders of images with one class left out, `anocaps train` and `anocaps score` with
default settings find the left-out class, keep the false-alarm rate that was asked for and say
beforehand how good they will be. results/folders.json proves it or not (table `folders`).

Steps, each for all cases or for those that are named:

    python benchmarks/folders.py make --data-dir DATA      (PNG files from the datasets)
    python benchmarks/folders.py anocaps                   (train and score, by the command line)
    python benchmarks/folders.py cnn                       (a plain CNN)
    python benchmarks/folders.py pyod small-norb:truck     (needs pip install '.[bench]')
    python benchmarks/folders.py photo fruits commutators  (real photos, preset photo, 3 seeds)

Folders and rows that exist are not made again: a step that was stopped goes on. Each row names its
commit. Which class of a dataset is left out was fixed first, and nothing was chosen by the numbers
of these. The case of few images was added later. For real photos `evaluations` in the result says
how often preset photo met the anomalies and what changed in between.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np
from common import ROOT
from folder_methods import (
    DEEP,
    ECOD,
    FEATURES,
    PIXELS,
    SOFTMAX,
    Row,
    alarms_of,
    circumstances_of,
    judged,
    measure_cnn,
    measure_deep,
    measure_pyod,
)
from numpy.typing import NDArray
from photo_folders import BEFORE, PARTS, measure_photo

from anocaps import ImageFolder, load
from anocaps.base.files import write_text
from anocaps.base.threads import in_order
from anocaps.data import Dataset, Split, fetch_dataset, load_dataset
from anocaps.data.norb import read_mat
from anocaps.inspect.scoring import COLUMNS
from anocaps.judging.metrics import auroc

CASES = (  # dataset, left-out class, training images of each other class (else all)
    "digits:4",
    "digits:4:11",
    "fashion-mnist:sandal",
    "small-norb:truck",
)
PHOTOS = {"fruits": "9 other kinds", "commutators": "cracks"}  # folders, and what is anomalous


def main() -> None:
    parser = common.parser(__doc__, "folders.json")
    parser.add_argument("step", choices=("make", *STEPS))
    parser.add_argument(
        "cases", nargs="*", metavar="DATASET:CLASS[:NUMBER]", help=", ".join((*CASES, *PHOTOS))
    )
    parser.add_argument("--folders", type=Path, default=ROOT / "runs" / "folders")
    parser.add_argument("--data-dir", type=Path, help="where dataset files are")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--epochs", type=int, help="by default the preset's; to try things")
    parser.add_argument("--size", type=int, help="pixels a side for the steps cnn and deep")
    parser.add_argument("--again", action="store_true", help="measure rows that exist again")
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
    if case in PHOTOS:
        link_photos(case, place, data_dir)
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


def link_photos(name: str, place: Path, data_dir: Path | None) -> None:
    """The same folders for real photos, as links."""
    if data_dir is None:
        raise SystemExit("real photos need --data-dir")
    links = {"train": "train", "normal": "test-normal", "anomalous": "test-odd"}
    counts = {}
    for kind, source in links.items():
        link = place / kind if kind == "train" else place / "test" / kind
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((data_dir / name / source).resolve())
        counts[kind] = sum(file.is_file() for file in (data_dir / name / source).rglob("*.jpg"))
    if (boxes := data_dir / name / "boxes.csv").exists():
        (place / boxes.name).symlink_to(boxes.resolve())
    size = ImageFolder(place / "train").images.shape[1:3]
    about = {"photos": name, "anomalies": PHOTOS[name], "size": list(size), "images": counts}
    write_text(place / "folder.json", json.dumps(about, indent=1) + "\n")
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
    if not options.again and any((place.name, method) in rows for method in methods):
        print(f"{place.name}: {', '.join(methods)} measured before")
        return
    if step == "photo":
        stored["evaluations"] = BEFORE | stored.get("evaluations", {}) | {"note": BEFORE["note"]}
        stored["evaluations"][place.name] += 1
    for found in measure(place, options):
        row = {"folder": place.name, **found, "settings": {"epochs": options.epochs}}
        rows[place.name, row["method"]] = row
        order = sorted(rows, key=lambda key: (key[0], METHODS.index(key[1])))
        stored["folders"][place.name] = about
        common.write(options.out, stored | {"rows": [rows[key] for key in order]})
        print(f"{place.name}, {row['method']}: AUROC {row['auroc']:.4f}, {row['false_alarms']}")


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

    def column(name: str) -> NDArray[np.float64]:
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


def command(*words: object) -> tuple[dict[str, Any], float]:
    """`anocaps …` in a process of its own: the JSON that it prints, and its seconds."""
    started = time.perf_counter()
    line = [sys.executable, "-m", "anocaps", *map(str, words)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - started


STEPS = {
    "anocaps": (("anocaps",), measure_anocaps),
    "cnn": ((SOFTMAX, FEATURES), measure_cnn),
    "pyod": ((ECOD, PIXELS), measure_pyod),
    "deep": ((DEEP,), measure_deep),
    "photo": (tuple(PARTS), measure_photo),
}
METHODS = [method for methods, _ in STEPS.values() for method in methods]

if __name__ == "__main__":
    common.run_script(main)
