"""What a model says of images, in one shape for trained detectors and exported graphs.

Files are scored through a `Judge` alone, so that the trained model and its export cannot give
different rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anocaps.images.decode import Fit

Values = NDArray[np.float64]  # one per image


@dataclass(frozen=True)
class Judgement:
    """Of N images, in their order."""

    scores: dict[str, Values]  # by score function, all of `Judge.score_names`
    p_value: Values  # of the default score among all calibration images; NaN if there are none
    p_value_class: Values  # among those of the predicted class; NaN if they are too few
    predicted: list[str]  # the class each looks like; "" from a method that knows no classes
    p_values: dict[str, Values] = field(default_factory=dict)  # by score function, where known
    reconstructions: NDArray[np.float32] | None = None  # N×h×w×C in [0, 1], where asked for


class Judge(Protocol):
    @property
    def fit(self) -> Fit:
        """How files become the images that `judge` takes."""

    @property
    def score_function(self) -> str:
        """The score function that decides the verdict."""

    @property
    def score_names(self) -> tuple[str, ...]:
        """All score functions that this model has, `score_function` among them."""

    @property
    def calibration_size(self) -> int:
        """Normal images kept out of training to set false-alarm rates; 0 means no verdicts."""

    @property
    def checksum(self) -> str:
        """Of the model file, as it was compared when the file was read."""

    @property
    def classes(self) -> Sequence[str]:
        """The normal classes."""

    @property
    def heat_scale(self) -> float | None:
        """What counts as full heat in a heatmap, from normal images; None if it is not known."""

    def judge(self, images: NDArray[np.uint8], reconstructions: bool = False) -> Judgement:
        """Images N×H×W×C of the size and channels of `fit`, in one forward pass; with the
        reconstructions of what the network sees of them, where these are asked for and known."""
