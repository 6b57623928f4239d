"""Make a fitted detector a `Judge` of image files."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anocaps.detectors.gate import fit_of
from anocaps.judging.judgement import Judgement

if TYPE_CHECKING:
    from anocaps.detectors.verdicts import Verdicts


class DetectorJudge:
    """The `Judge` of a fitted detector."""

    def __init__(self, detector: "Verdicts") -> None:
        self.detector = detector
        self.fit = fit_of(detector.preprocessing_, detector.record_)
        self.score_function: str = detector.score_function_
        self.score_names = detector._usable_scores()
        self.calibration_size = len(detector.calibration_scores()) if detector.calibrated else 0
        self.classes = [str(name) for name in detector.classes_]
        self.heat_scale = detector.heat_scale_
        self.source: object = detector.record_.get("source")
        self.card: dict[str, Any] | None = detector.card_ or None
        self.checksum: str = getattr(detector, "checksum_", "")  # "" if not loaded from a file

    def judge(self, images: NDArray[np.uint8], with_heat: bool = False) -> Judgement:
        return self.detector.judge(images, with_heat)
