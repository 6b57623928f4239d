"""A score is one number within rounding: the largest differences of PP and RE between CPU and GPU,
alone and in batches of 256, on 1,000 real test images.

With ANOCAPS_WRITE_RESULTS=1 they are written to results/score-differences.json, from which the
table in docs/decisions.md is made.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from anocaps import CapsNetDetector, load
from anocaps.circumstances import circumstances
from anocaps.data import Dataset
from anocaps.detectors import Detector
from anocaps.files import write_text

RESULTS = Path(__file__).resolve().parents[1] / "results" / "score-differences.json"
IMAGES = 1000
BATCH = 256
# PP lies in [0, 1); RE reaches −40 here, where neighbouring fp32 numbers are 4e-6 apart.
BOUNDS = {
    "CPU, one by one": {"pp": 2e-6, "re": 2e-5},
    f"GPU, batches of {BATCH}": {"pp": 1e-5, "re": 5e-5},
    "GPU, one by one": {"pp": 1e-5, "re": 5e-5},
}


def scored(detector: Detector, images: np.ndarray, batch: int) -> dict[str, np.ndarray]:
    parts = [
        detector.all_scores(images[start : start + batch], ("pp", "re"))
        for start in range(0, len(images), batch)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in ("pp", "re")}


@pytest.fixture(scope="module")
def detector(mnist: Dataset) -> CapsNetDetector:
    """The paper's network after a few steps in fp32 on 300 images of nine digits."""
    normal = np.flatnonzero(mnist.train.labels != 9)[:300]
    detector = CapsNetDetector(epochs=1, batch_size=50, calibration=0.0, device="cpu")
    return detector.fit(mnist.train.images[normal], mnist.train.labels[normal])


def test_scores_differ_by_rounding_alone(mnist, detector, tmp_path):
    detector.save(tmp_path / "model.safetensors")
    images = mnist.test.images[:IMAGES]
    reference = scored(detector, images, BATCH)
    found = {"CPU, one by one": scored(detector, images, 1)}
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda")
        on_gpu = load(tmp_path / "model.safetensors", device="cuda")
        found[f"GPU, batches of {BATCH}"] = scored(on_gpu, images, BATCH)
        found["GPU, one by one"] = scored(on_gpu, images, 1)

    # Scores that did not vary would agree in any case.
    assert all(values.std() > 1000 * BOUNDS["CPU, one by one"][name]
               for name, values in reference.items())  # fmt: skip
    largest = {
        way: {name: float(np.abs(values - reference[name]).max()) for name, values in each.items()}
        for way, each in found.items()
    }
    beyond = [f"{way}, {name}: {value:.1e}" for way, row in largest.items()
              for name, value in row.items() if value > BOUNDS[way][name]]  # fmt: skip
    assert not beyond, f"differ from CPU, batches of {BATCH}: {'; '.join(beyond)}"
    if os.environ.get("ANOCAPS_WRITE_RESULTS") == "1":
        result = {
            "what": f"largest differences to scores on a CPU in batches of {BATCH}, fp32, the "
            f"paper's network, {IMAGES} MNIST test images",
            "official": mnist.official,
            "differences": largest,
            "range": {k: [float(v.min()), float(v.max())] for k, v in reference.items()},
            **circumstances(device),
        }
        write_text(RESULTS, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def test_a_score_in_bf16_is_beyond_the_bounds(mnist, detector, monkeypatch):
    """What the bounds are for: a precision slipped in would be noticed."""
    images = mnist.test.images[:50]
    exact = scored(detector, images, BATCH)
    monkeypatch.setattr(detector, "scoring_precision", "bf16")
    rounded = scored(detector, images, BATCH)
    for name, values in exact.items():
        assert np.abs(values - rounded[name]).max() > 2 * BOUNDS["GPU, one by one"][name]


def test_the_table_of_the_docs_has_what_was_measured(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(RESULTS.parents[1] / "benchmarks")
    import tables

    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert tables.differences() == ""
    rows = {way: {"pp": 1e-7, "re": 2.5e-6} for way in BOUNDS}
    result = {"differences": rows, "range": {"re": [-9, -1]}, "device": "a device"}
    write_text(tmp_path / RESULTS.name, json.dumps(result))
    shown = tables.differences()
    assert all(f"| {way} | 1.0e-07 | 2.5e-06 |" in shown for way in BOUNDS)
    assert "a device" in shown
