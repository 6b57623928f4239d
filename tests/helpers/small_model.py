"""A model file for tests with several processes, and the images it scores."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from anocaps.detectors import CapsNetDetector
from anocaps.export.writer import export


def write_model(path: Path) -> Path:
    """An exported network for images of 8×8, trained for one epoch; its detector beside it."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (48, 8, 8), dtype=np.uint8)
    detector = CapsNetDetector("quick", epochs=1, calibration=0.5, device="cpu")
    detector.fit(images, np.arange(48) % 2).save(path.with_suffix(".safetensors"))
    export(detector, path)
    return path


def write_noise(folder: Path, count: int) -> Path:
    """Image files of noise; the third is damaged."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    for number in range(count):
        image = Image.fromarray(generator.integers(0, 256, (8, 8), dtype=np.uint8))
        image.save(folder / f"{number:04}.png")
    (folder / "0002.png").write_bytes(b"no image")
    return folder


def agree(one: Any, other: Any) -> None:
    """Two Arrow tables have the same rows; batches of other sizes round numbers differently."""
    assert one.schema.equals(other.schema)
    for name in one.column_names:
        mine, theirs = one.column(name), other.column(name)
        if str(mine.type) == "string":
            assert mine.to_pylist() == theirs.to_pylist()
        else:
            np.testing.assert_allclose(mine.to_numpy(), theirs.to_numpy(), rtol=1e-5)
