"""A fitted detector as a `Judge` of image files."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError
from anocaps.images.decode import Fit
from anocaps.judging.judgement import Judgement

if TYPE_CHECKING:
    from anocaps.detectors.base import Detector


class DetectorJudge:
    """A fitted detector."""

    def __init__(self, detector: "Detector") -> None:
        self.detector = detector
        self.fit = _fit_of(detector)
        self.score_function: str = detector.score_function
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
