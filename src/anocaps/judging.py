"""What judges images: a fitted detector or an exported graph, in one shape for one scoring path.

Files are scored through a `Judge` alone, so that the trained model and its export cannot give
different rows. Nothing here imports torch before a detector is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from anocaps.errors import InputError, ModelFileError
from anocaps.pictures import Fit, shown

if TYPE_CHECKING:
    from anocaps.detectors import Detector

Values = NDArray[np.float64]  # one per image


@dataclass(frozen=True)
class Judgement:
    """Of N images, in their order."""

    scores: dict[str, Values]  # by score function, all of `Judge.score_names`
    p_value: Values  # of the default score among all calibration images; NaN if there are none
    p_value_class: Values  # among those of the predicted class; NaN if they are too few
    predicted: list[str]  # the class each looks like; "" from a method that knows no classes
    p_values: dict[str, Values] = field(default_factory=dict)  # by score function, where known


class Judge(Protocol):
    @property
    def fit(self) -> Fit:
        """How files become the images that `judge` takes."""

    @property
    def score(self) -> str:
        """The score function that decides the verdict."""

    @property
    def score_names(self) -> tuple[str, ...]:
        """All score functions that this model has, `score` among them."""

    @property
    def calibration_size(self) -> int:
        """Normal images kept out of training to set false-alarm rates; 0 means no verdicts."""

    @property
    def classes(self) -> Sequence[str]:
        """The normal classes."""

    @property
    def heat_scale(self) -> float | None:
        """What counts as full heat in a heatmap, from normal images; None if it is not known."""

    def judge(self, images: NDArray[np.uint8]) -> Judgement:
        """Images N×H×W×C of the size and channels of `fit`, in one pass."""

    def redraw(self, images: NDArray[np.uint8]) -> NDArray[np.float32] | None:
        """Their windows as the network redraws them, N×h×w×C in [0, 1]; None if it cannot."""


def load_judge(path: Path, device: str = "auto") -> Judge:
    """The model in a file: an ONNX graph, which needs no torch, or a detector."""
    if path.suffix.lower() == ".onnx":
        from anocaps.runtime import OnnxModel

        return OnnxModel(path, device)
    from anocaps.detectors import load

    detector = load(path, device)
    try:
        return DetectorJudge(detector)
    except InputError as error:
        raise ModelFileError(f"{shown(path)}: {error}") from error


class DetectorJudge:
    """A fitted detector."""

    def __init__(self, detector: "Detector") -> None:
        self.detector = detector
        self.fit = _fit_of(detector)
        self.score: str = detector.score
        self.score_names = detector._usable_scores()
        self.calibration_size = len(detector.calibration_scores()) if detector.calibrated else 0
        self.classes = [str(name) for name in detector.classes_]
        self.heat_scale = detector.heat_scale_

    def judge(self, images: NDArray[np.uint8]) -> Judgement:
        return self.detector.judge(images)

    def redraw(self, images: NDArray[np.uint8]) -> NDArray[np.float32] | None:
        reconstruct = getattr(self.detector, "reconstruct", None)
        return None if reconstruct is None else np.asarray(reconstruct(images), np.float32)


def _fit_of(detector: "Detector") -> Fit:
    """As stored in training; a model that was trained on arrays takes their size."""
    stored = detector.record_.get("fit")
    if stored is not None:
        try:
            return Fit(**stored)
        except TypeError as error:
            raise InputError("how to read its images is not stored well; save it again") from error
    size = detector.preprocessing_
    if size.channels not in (1, 3):
        raise InputError(
            f"this model was trained on images of {size.channels} channels, and an image file has "
            "1 or 3: score arrays with its score_samples in Python"
        )
    return Fit(size.height, size.width, size.channels, "resize")
