"""Score image files with a detector: one row per file, one batch in memory at a time."""

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from anocaps.calibration import check_alpha, p_values
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
    """A row per image file; a file that cannot be read gets a row with its error.

    What is wrong with the whole request is raised here, before the first row.
    """
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
    files = [file for path in paths for file in (list_images(path) if path.is_dir() else [path])]
    if not files:
        raise DataError(f"{paths[0]}: there is no image here")
    calibration = detector.calibration_scores(detector.score) if detector.calibrated else None
    if calibration is not None:
        check_alpha(alpha, len(calibration))

    def rows() -> Iterator[dict[str, Any]]:
        for start in range(0, len(files), _BATCH):
            yield from _score_batch(detector, files[start : start + _BATCH], alpha, calibration)

    return rows()


def _score_batch(
    detector: "CapsNetDetector",
    files: Sequence[Path],
    alpha: float,
    calibration: NDArray[np.float64] | None,
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
        for index, value, name in zip(pixels, scores, classes):
            rows[index] |= {"score": float(value), "class": str(name)}
        if calibration is not None:
            for index, p in zip(pixels, p_values(scores, calibration)):
                verdict = "anomalous" if p <= alpha else "normal"
                rows[index] |= {"p_value": float(p), "verdict": verdict}
    yield from rows


def _fitting(detector: "CapsNetDetector", file: Path) -> NDArray[np.uint8]:
    """The image as the detector expects it: grey or colour, of the size it was trained on."""
    expected = detector.preprocessing_
    image = read_image(file, detector.record_.get("source", {}).get("size"))
    if image.shape[:2] != (expected.height, expected.width):
        raise DataError(
            f"{file}: {image.shape[0]}×{image.shape[1]} pixels where the model was trained on "
            f"{expected.height}×{expected.width}; resize the image, or train with --size"
        )
    if image.ndim == 2:
        return np.repeat(image[..., None], expected.channels, axis=2)
    if expected.channels == 1:  # the weights of Pillow's grey, rounded
        grey = image @ np.array([0.299, 0.587, 0.114])
        return np.asarray(np.rint(grey), dtype=np.uint8)[..., None]
    return image


def write_csv(rows: Iterator[dict[str, Any]], out: Path | None) -> tuple[int, int]:
    """Write rows to a file, wholly or not at all, or to standard output; scored and failed ones.

    If not one image could be scored, no file is written.
    """
    if out is None:
        return _write(rows, sys.stdout)
    # A file name may hold bytes that are no text: they are written as \\x…
    with replacing(out) as temporary:
        with open(temporary, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            scored, failed = _write(rows, file)
        if not scored:
            temporary.unlink()
            raise DataError(f"{out}: not written, none of the {failed} images could be scored")
    return scored, failed


def _write(rows: Iterator[dict[str, Any]], file: TextIO) -> tuple[int, int]:
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    scored = failed = 0
    for row in rows:
        writer.writerow(row)
        scored, failed = scored + (not row["error"]), failed + bool(row["error"])
    return scored, failed
