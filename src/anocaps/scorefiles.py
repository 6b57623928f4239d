"""Score image files with a detector: one row per file, one batch in memory at a time."""

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from anocaps.calibration import check_alpha
from anocaps.data import list_images, read_image
from anocaps.errors import DataError
from anocaps.files import replacing

if TYPE_CHECKING:
    from anocaps.detectors import CapsNetDetector

COLUMNS = ("file", "score", "p_value", "verdict", "class", "error")
_BATCH = 256


def score_files(
    detector: "CapsNetDetector", paths: Sequence[Path], alpha: float
) -> Iterator[dict[str, Any]]:
    """A row per image file; a file that cannot be read gets a row with its error."""
    files = [file for path in paths for file in (list_images(path) if path.is_dir() else [path])]
    if not files:
        raise DataError(f"{paths[0]}: there is no image here")
    calibrated = bool(detector.calibration_scores_)
    if calibrated:
        check_alpha(alpha, len(detector.calibration_scores_[detector.score]))
    for start in range(0, len(files), _BATCH):
        yield from _score_batch(detector, files[start : start + _BATCH], alpha, calibrated)


def _score_batch(
    detector: "CapsNetDetector", files: Sequence[Path], alpha: float, calibrated: bool
) -> Iterator[dict[str, Any]]:
    rows: list[dict[str, Any]] = [dict.fromkeys(COLUMNS, "") | {"file": str(f)} for f in files]
    pixels: dict[int, NDArray[np.uint8]] = {}
    for index, file in enumerate(files):
        try:
            pixels[index] = _fitting(detector, file)
        except DataError as error:
            rows[index]["error"] = str(error)
    if pixels:
        images = np.stack(list(pixels.values()))
        scores = detector.score_samples(images)
        classes = detector.classify(images)
        p_values = detector.p_values(images) if calibrated else np.full(len(images), np.nan)
        for index, value, p, name in zip(pixels, scores, p_values, classes):
            rows[index] |= {"score": float(value), "class": str(name)}
            if calibrated:
                rows[index] |= {
                    "p_value": float(p),
                    "verdict": "anomalous" if p <= alpha else "normal",
                }
    yield from rows


def _fitting(detector: "CapsNetDetector", file: Path) -> NDArray[np.uint8]:
    """The image as the detector expects it: grey or colour, of the size it was trained on."""
    expected = detector.preprocessing_
    image = read_image(file)
    if image.ndim == 2 and expected.channels == 3:
        image = np.repeat(image[..., None], 3, axis=2)
    if image.ndim == 2:
        image = image[..., None]
    if image.shape != (expected.height, expected.width, expected.channels):
        raise DataError(
            f"{file}: {'×'.join(map(str, image.shape))} pixels where the model was trained on "
            f"{expected.height}×{expected.width}×{expected.channels}; resize the image"
        )
    return image


def write_csv(rows: Iterator[dict[str, Any]], out: Path | None) -> int:
    """Write rows to a file, wholly or not at all, or to standard output; how many there were."""
    if out is None:
        return _write(rows, sys.stdout)
    with replacing(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        return _write(rows, file)


def _write(rows: Iterator[dict[str, Any]], file: TextIO) -> int:
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        writer.writerow(row)
    return count
