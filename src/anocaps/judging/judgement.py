"""The interface of trained detectors and exported graphs for scoring.

All files are scored through a `Judge`, so that a trained model and its export give the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anocaps.images.decode import Fit

Values = NDArray[np.float64]  # one per image


@dataclass(frozen=True)
class Judgement:
    """The scores of N images, in their order."""

    scores: dict[str, Values]  # by score function: all of `Judge.score_names`
    p_value: Values  # of the verdict, among all calibration images; NaN if there are none
    p_value_class: Values  # among those of the predicted class; NaN if they are too few
    predicted: list[str]  # predicted class; "" from a method without classes
    p_values: dict[str, Values] = field(default_factory=dict)  # by score function, if known
    # the source of heatmaps, on request: one of these two
    reconstructions: NDArray[np.float32] | None = None  # N×h×w×C in [0, 1]
    heat: NDArray[Any] | None = None  # coarse raw heat, N×h×w
    nearest: list[str] | None = None  # names of the most similar training files, if known

    @property
    def heat_source(self) -> NDArray[Any] | None:
        """The source that `heat.heatmaps` takes."""
        return self.heat if self.reconstructions is None else self.reconstructions


class Judge(Protocol):
    @property
    def fit(self) -> Fit:
        """How files become the images that `judge` takes."""

    @property
    def score_function(self) -> str:
        """The score function that decides the verdict."""

    @property
    def score_names(self) -> tuple[str, ...]:
        """All score functions of this model, including `score_function`."""

    @property
    def calibration_size(self) -> int:
        """Number of calibration images. 0 means no verdicts."""

    @property
    def checksum(self) -> str:
        """The verified checksum of the model file."""

    @property
    def classes(self) -> Sequence[str]:
        """The normal classes."""

    @property
    def source(self) -> object:
        """The source of the training images, from the model file."""

    @property
    def card(self) -> dict[str, Any] | None:
        """The facts of the model card, if known."""

    @property
    def heat_scale(self) -> float | None:
        """The raw heat that a heatmap shows as full heat, if known."""

    def judge(self, images: NDArray[np.uint8], with_heat: bool = False) -> Judgement:
        """Score images N×H×W×C of the size and channels of `fit` in one forward pass.

        `with_heat` adds the source of heatmaps, if the method has one.
        """
