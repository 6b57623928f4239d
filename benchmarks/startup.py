"""Claim: scoring one image from a model file takes at most 1.6 times as long as `import torch`, and
with `--device cuda` at most 3 s longer than with `--device cpu`. The printed rows prove it or not.

Whole commands take turns with `python -c "import torch"`, each a new process. The models are of the
presets `deep` and `photo`, trained for one epoch on bundled digits that are enlarged to 32×32
pixels. A ratio is the median of the ratios of turns. CPU seconds are those of the process; unlike
wall seconds they hardly depend on what else the machine does.

    python benchmarks/startup.py
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import common
import numpy as np
import torch
from PIL import Image

from anocaps.data import load_dataset
from anocaps.detectors import CapsNetDetector
from anocaps.export.writer import export
from anocaps.training.device import circumstances, pick_device

MOST = 1.6  # of `import torch`, on the CPU
MOST_LONGER = 3.0  # seconds, with --device cuda
BASE = "import torch"


class Taken(NamedTuple):
    wall: float  # seconds
    cpu: float


def main() -> None:
    parser = common.parser(__doc__, "startup.json")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    device = pick_device("auto")
    with TemporaryDirectory(prefix="startup-") as place:
        taken = in_turns(commands(Path(place), device), options.repeats)
    rows = {name: row(each, taken[BASE]) for name, each in taken.items()}
    for name, each in rows.items():
        print(f"{name:<32} {each['wall']['median']:7.2f} s  {each['ratio']:5.2f}", flush=True)
    result: dict[str, Any] = {"rows": rows, "most": MOST}
    on_cpu = "score model.safetensors"
    missed = max(rows[on_cpu]["ratio"], rows["score photo.safetensors"]["ratio"]) > MOST
    if device.type == "cuda":
        on_gpu = f"{on_cpu} --device cuda"
        longer = [gpu.wall - cpu.wall for gpu, cpu in zip(taken[on_gpu], taken[on_cpu])]
        result |= {"cuda_longer": round(statistics.median(longer), 2), "most_longer": MOST_LONGER}
        missed |= result["cuda_longer"] > MOST_LONGER
    common.write(options.out, result | {"repeats": options.repeats} | circumstances(device))
    if missed:
        sys.exit("the claim does not hold here")


def commands(place: Path, device: torch.device) -> dict[str, list[str]]:
    """What is measured, by name."""
    model, graph, image = (place / name for name in ("m.safetensors", "m.onnx", "one.png"))
    digits = load_dataset("digits").train
    few = np.flatnonzero(digits.labels < 3)[:180]
    images = digits.images.repeat(4, axis=1).repeat(4, axis=2)
    detector = CapsNetDetector("deep", epochs=1, device="cpu").fit(images[few], digits.labels[few])
    detector.save(model)
    export(detector, graph)
    photo = CapsNetDetector("photo", epochs=1, device="cpu").fit(images[few], digits.labels[few])
    photo.save(place / "photo.safetensors")
    Image.fromarray(images[0]).save(image)

    def score(*words: object) -> list[str]:
        return [sys.executable, "-m", "anocaps", "score", *map(str, words)]

    found = {
        BASE: [sys.executable, "-c", BASE],
        "score model.safetensors": score(model, image, "--device", "cpu"),
        "score photo.safetensors": score(place / "photo.safetensors", image, "--device", "cpu"),
        "score model.onnx": score(graph, image),
        "--help": [sys.executable, "-m", "anocaps", "--help"],
    }
    if device.type == "cuda":
        found["score model.safetensors --device cuda"] = score(model, image, "--device", "cuda")
    return found


def in_turns(commands: dict[str, list[str]], repeats: int) -> dict[str, list[Taken]]:
    """Of each command, one number for each repeat; the first turn warms up the disk's cache."""
    taken: dict[str, list[Taken]] = {name: [] for name in commands}
    for repeat in range(1 + repeats):
        for name, words in commands.items():
            before = os.times()
            started = time.perf_counter()
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            wall = time.perf_counter() - started
            after = os.times()
            cpu = after.children_user + after.children_system
            cpu -= before.children_user + before.children_system
            if repeat > 0:
                taken[name].append(Taken(wall, cpu))
    return taken


def row(taken: list[Taken], base: list[Taken]) -> dict[str, Any]:
    return {
        "wall": common.spread([each.wall for each in taken], 3),
        "cpu": common.spread([each.cpu for each in taken], 3),
        "ratio": round(statistics.median(a.wall / b.wall for a, b in zip(taken, base)), 3),
        "cpu_ratio": round(statistics.median(a.cpu / b.cpu for a, b in zip(taken, base)), 3),
    }


if __name__ == "__main__":
    common.run_script(main)
