"""Claim: a score is the same number everywhere. For every preset, the scores that torch gives on a
CPU differ by rounding alone from those of an image scored by itself, of a GPU, of the exported
model, of the server and of a Ray cluster; and no verdict differs. The printed rows prove it or not.

`make` trains one small model per preset and keeps in a folder: the model, its export, the images as
arrays and as files, and the scores that they have here. `compare` scores the same images in other
ways, here or on another machine that has a copy of the folder; results are added to the file. Only
`make` needs the datasets. `onnx` needs no torch, and `cuda` no more than torch and safetensors.

    python benchmarks/score_differences.py make DIR --photos DATA/fruits      (ten minutes)
    python benchmarks/score_differences.py compare DIR single onnx onnx-single server ray
    python3.13 benchmarks/score_differences.py compare DIR onnx               (adds its version)
    python benchmarks/score_differences.py compare DIR cuda cuda-single       (on a GPU)
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.provenance import provenance
from anocaps.inspect.judge import load_judge
from anocaps.judging.judgement import Judge

if TYPE_CHECKING:
    from anocaps import CapsNetDetector

ROOT = Path(__file__).resolve().parents[1]
PRESETS = {"paper": "mnist", "paper-tuned": "mnist", "deep": "mnist", "quick": "digits"}
NORMAL_CLASSES = 8  # of ten; all ten are scored
PER_CLASS, EPOCHS = 150, 3  # of training
IMAGES = 400  # scored
PHOTOS = 40  # of a class, to train and to score
ALPHAS = (0.01, 0.05, 0.1)

Values = dict[str, NDArray[np.float64]]  # by score function, and "p_value"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "score-differences.json")
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("make")
    step.add_argument("folder", type=Path)
    step.add_argument("--data-dir", type=Path)
    step.add_argument("--photos", type=Path, metavar="DIR")
    step.set_defaults(run=make)
    step = steps.add_parser("compare")
    step.add_argument("folder", type=Path)
    step.add_argument("ways", nargs="+", choices=WAYS)
    step.set_defaults(run=compare)
    options = parser.parse_args()
    options.run(options)


# ── models ───────────────────────────────────────────────────────────────────────────────────


def make(options: argparse.Namespace) -> None:
    for preset, dataset in PRESETS.items():
        keep(options.folder / preset, *of_dataset(preset, dataset, options.data_dir))
    if options.photos is not None:
        keep(options.folder / "photo", *of_photos(options.photos))


def of_dataset(
    preset: str, name: str, data_dir: Path | None
) -> tuple["CapsNetDetector", NDArray[np.uint8]]:
    from anocaps import CapsNetDetector
    from anocaps.data import load_dataset

    data = load_dataset(name, data_dir, download=False)
    few = [np.flatnonzero(data.train.labels == k)[:PER_CLASS] for k in range(NORMAL_CLASSES)]
    chosen = np.sort(np.concatenate(few))
    detector = CapsNetDetector(preset, epochs=EPOCHS, device="cpu")
    detector.fit(data.train.images[chosen], data.train.labels[chosen])
    return detector, data.test.images[:IMAGES, ..., None]


def of_photos(folder: Path) -> tuple["CapsNetDetector", NDArray[np.uint8]]:
    from anocaps import CapsNetDetector, ImageFolder

    train = ImageFolder(folder / "train")
    classes = sorted(set(train.labels))[:NORMAL_CLASSES]
    chosen = np.concatenate([np.flatnonzero(train.labels == name)[:PHOTOS] for name in classes])
    detector = CapsNetDetector("photo", device="cpu")
    detector.fit(np.asarray(train.images)[chosen], train.labels[chosen])
    test = ImageFolder(folder / "test-normal", fit=train.fit, fewest=1)
    some = np.concatenate([np.flatnonzero(test.labels == n)[:PHOTOS] for n in set(test.labels)])
    return detector, np.asarray(test.images)[np.sort(some)][:IMAGES]


def keep(folder: Path, detector: "CapsNetDetector", images: NDArray[np.uint8]) -> None:
    from PIL import Image

    from anocaps.export.writer import export

    (folder / "files").mkdir(parents=True, exist_ok=True)
    detector.save(folder / "model.safetensors")
    export(detector, folder / "model.onnx")
    np.save(folder / "images.npy", images)
    for number, image in enumerate(images):
        Image.fromarray(image.squeeze()).save(folder / "files" / f"{number:04}.png")
    found = judged(load_judge(folder / "model.safetensors", "cpu"), images)
    np.savez(folder / "expected.npz", **found)
    (folder / "made.json").write_text(json.dumps(provenance("CPU", _threads())), "utf-8")
    print(folder, {name: [float(v.min()), float(v.max())] for name, v in found.items()})


# ── ways to score ────────────────────────────────────────────────────────────────────────────


def judged(judge: Judge, images: NDArray[np.uint8]) -> Values:
    found = judge.judge(images)
    return {"p_value": found.p_value, **found.scores}


def one_by_one(judge: Judge, images: NDArray[np.uint8]) -> Values:
    each = [judged(judge, images[k : k + 1]) for k in range(len(images))]
    return {name: np.concatenate([part[name] for part in each]) for name in each[0]}


def from_file(
    name: str, device: str, score: Callable[[Judge, NDArray[np.uint8]], Values]
) -> Callable[[Path], Values]:
    return lambda folder: score(load_judge(folder / name, device), np.load(folder / "images.npy"))


def from_server(folder: Path) -> Values:
    """The image files, sent to `anocaps serve` in requests of 32."""
    from anocaps.serve.client import Client

    files = sorted((folder / "files").iterdir())
    rows: list[dict[str, Any]] = []
    with server(folder / "model.safetensors") as (address, token):
        client = Client(address, token)
        for start in range(0, len(files), 32):
            rows += client.score(files[start : start + 32], model="model")["images"]
    scores = {name: np.array([row["scores"][name] for row in rows]) for name in rows[0]["scores"]}
    return {"p_value": np.array([row["p_value"] for row in rows]), **scores}


@contextmanager
def server(model: Path) -> Iterator[tuple[str, str]]:
    """Address and token of a running server."""
    words = ("serve", "--model", str(model), "--port", "0", "--no-browser")
    with TemporaryDirectory() as project:
        process = subprocess.Popen(
            [sys.executable, "-m", "anocaps", *words, project], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            address, _, token = process.stdout.readline().split()[-1].partition("/?token=")
            yield address, token
        finally:
            process.terminate()
            process.wait()


def from_ray(folder: Path) -> Values:
    """The image files, scored with the exported model by two workers of a Ray cluster."""
    from pyarrow import parquet

    with TemporaryDirectory() as place:
        out = Path(place) / "scores"
        words = ("--engine", "ray", "--jobs", "2", "-o", str(out))
        score = ("score", str(folder / "model.onnx"), str(folder / "files"))
        subprocess.run([sys.executable, "-m", "anocaps", *score, *words], check=True)
        columns = parquet.read_table(out).to_pydict()
    order = np.argsort([Path(name).name for name in columns["file"]])
    names = set(np.load(folder / "expected.npz")) & set(columns)
    found = {name: np.array(columns[name], np.float64)[order] for name in names}
    own = load_judge(folder / "model.onnx").score_function
    return found | {own: np.array(columns["score"], np.float64)[order]}


WAYS: dict[str, tuple[str, Callable[[Path], Values]]] = {
    "single": ("torch CPU, one by one", from_file("model.safetensors", "cpu", one_by_one)),
    "cpu": ("torch, another CPU", from_file("model.safetensors", "cpu", judged)),
    "cuda": ("torch GPU", from_file("model.safetensors", "cuda", judged)),
    "cuda-single": ("torch GPU, one by one", from_file("model.safetensors", "cuda", one_by_one)),
    "onnx": ("ONNX", from_file("model.onnx", "cpu", judged)),
    "onnx-single": ("ONNX, one by one", from_file("model.onnx", "cpu", one_by_one)),
    "server": ("server", from_server),
    "ray": ("Ray, exported model", from_ray),
}


# ── differences ──────────────────────────────────────────────────────────────────────────────


def compare(options: argparse.Namespace) -> None:
    out: Path = options.out
    result = json.loads(out.read_text("utf-8")) if out.exists() else {}
    for folder in sorted(path.parent for path in options.folder.glob("*/expected.npz")):
        expected = dict(np.load(folder / "expected.npz"))
        one = result.setdefault("presets", {}).setdefault(folder.name, {"ways": {}})
        one["images"] = len(expected["p_value"])
        one["made"] = json.loads((folder / "made.json").read_text("utf-8"))
        one["spread"] = {k: float(v.std()) for k, v in expected.items() if k != "p_value"}
        for way in options.ways:
            name, score = WAYS[way]
            if way == "onnx":
                name += f", Python {platform.python_version_tuple()[0]}."
                name += platform.python_version_tuple()[1]
            one["ways"][name] = row = differences(expected, score(folder))
            row |= provenance(_device(way), _threads())
            print(folder.name, name, row["relative"], row["verdicts_that_differ"], flush=True)
    out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


def differences(expected: Values, found: Values) -> dict[str, Any]:
    """The largest differences, also in standard deviations of the score, and verdicts."""
    names = sorted(set(expected) - {"p_value"})
    largest = {name: float(np.abs(found[name] - expected[name]).max()) for name in names}
    p, p_expected = found["p_value"], expected["p_value"]
    return {
        "largest": largest,
        "relative": max(largest[name] / float(expected[name].std()) for name in names),
        "p_value": float(np.abs(p - p_expected).max()),
        "verdicts_that_differ": {
            str(alpha): int(np.sum((p <= alpha) != (p_expected <= alpha))) for alpha in ALPHAS
        },
    }


def _device(way: str) -> str:
    if not way.startswith("cuda"):
        return "CPU"
    import torch

    return str(torch.cuda.get_device_name())


def _threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS", 0)) or (os.cpu_count() or 1)


if __name__ == "__main__":
    main()
