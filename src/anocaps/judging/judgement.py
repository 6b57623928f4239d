"""The interface through which trained detectors and exported graphs score images.

Files are scored through a `Judge` alone, so that a trained model and its export give the same rows.
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
    """The scores of N images, in their order."""

    scores: dict[str, Values]  # by score function, all of `Judge.score_names`
    p_value: Values  # of the default score among all calibration images; NaN if there are none
    p_value_class: Values  # among those of the predicted class; NaN if they are too few
    predicted: list[str]  # the predicted class; "" from a method without classes
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
        """Number of calibration images; 0 means no verdicts."""

    @property
    def checksum(self) -> str:
        """The checksum of the model file, verified when the file was read."""

    @property
    def classes(self) -> Sequence[str]:
        """The normal classes."""

    @property
    def heat_scale(self) -> float | None:
        """The error of full heat in a heatmap; None if it is not known."""

    def judge(self, images: NDArray[np.uint8], reconstructions: bool = False) -> Judgement:
        """Score images N×H×W×C of the size and channels of `fit` in one forward pass.

        `reconstructions` adds those of the network's window, if the method has a decoder.
        """
