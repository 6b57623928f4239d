"""Claim: a normality score depends on the device and on the batch by rounding alone: PP and RE of
1,000 MNIST test images differ by less than 1e-5 between CPU and GPU, one by one and in batches of
256. The printed rows prove it or not. A machine without a GPU measures the CPU's row.

    python benchmarks/score_differences.py        (a minute)
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import common
import numpy as np
import torch
from numpy.typing import NDArray

from anocaps.data import load_dataset
from anocaps.detectors import CapsNetDetector, load
from anocaps.training.device import circumstances

NAMES = ("pp", "re", "pp+re")
IMAGES = 1000


def main() -> None:
    parser = common.parser(__doc__, "score-differences.json")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    dataset = load_dataset(options.dataset, options.data_dir, download=False)
    few = np.flatnonzero(dataset.train.labels < 3)[:150]
    images = dataset.test.images[:IMAGES]
    preset = "paper" if images.shape[1] > 16 else "quick"
    training = {"epochs": 7, "batch_size": 10, "learning_rate": 7e-4}  # PP of normals nears 0.9
    detector = CapsNetDetector(preset, **training, calibration=0.0, device="cpu")
    detector.fit(dataset.train.images[few], dataset.train.labels[few])
    scored: dict[str, dict[str, NDArray[np.float64]]] = {}
    with TemporaryDirectory() as folder:
        detector.save(model := Path(folder) / "model.safetensors")
        for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
            here = load(model, device=device)
            name = "GPU" if device == "cuda" else "CPU"
            scored[f"{name}, batches of 256"] = in_batches(here, images, 256)
            scored[f"{name}, one by one"] = in_batches(here, images, 1)
    want = scored.pop("CPU, batches of 256")
    differences = {
        way: {name: float(np.abs(found[name] - want[name]).max()) for name in NAMES}
        for way, found in scored.items()
    }
    for way, row in differences.items():
        print(f"{way:24}", *(f"{name} {value:.1e}" for name, value in row.items()))
    result = {
        "what": "largest differences to scores on a CPU in batches of 256, fp32, the paper's "
        f"network trained on three classes, {len(images)} test images of {dataset.name}",
        "official": dataset.official,
        "differences": differences,
        "range": {name: [float(want[name].min()), float(want[name].max())] for name in NAMES},
        **circumstances(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
    }
    common.write(options.out, result)


def in_batches(
    detector: CapsNetDetector, images: NDArray[np.uint8], size: int
) -> dict[str, NDArray[np.float64]]:
    parts = [detector.outputs(images[k : k + size], NAMES) for k in range(0, len(images), size)]
    return {name: np.concatenate([part[name] for part in parts]) for name in NAMES}


if __name__ == "__main__":
    common.run_script(main)
