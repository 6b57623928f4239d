"""From a detector's outputs to scores, p-values and verdicts.

This half of a detector scores. It does not import scikit-learn, so that scoring commands start
fast.
"""

from __future__ import annotations  # short types in help()

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError
from anocaps.detectors.gate import ImagesLike, to_score
from anocaps.judging.calibration import (
    USUAL_ALPHA,
    check_alpha,
    class_p_values,
    p_values,
    threshold,
)
from anocaps.judging.judgement import Judgement
from anocaps.training.device import Precision
from anocaps.training.preprocessing import Preprocessing


class Verdicts(ABC):
    """The scores and verdicts of every fitted detector."""

    method: ClassVar[str]  # name in commands, results and model files
    score_names: ClassVar[tuple[str, ...]]  # the score functions
    # further outputs: "class", "class_lengths", "reconstruction", "heat", "nearest"
    gives: ClassVar[tuple[str, ...]] = ()

    device: str
    scoring_precision: Precision

    # learned by every method
    classes_: NDArray[Any]
    preprocessing_: Preprocessing
    record_: dict[str, Any]
    score_function_: str
    calibration_scores_: dict[str, NDArray[np.float64]]
    calibration_classes_: NDArray[np.int64] | None  # predicted classes of the same images, indices
    heat_scale_: float | None
    card_: dict[str, Any]
    checksum_: str  # of the loaded model file

    @abstractmethod
    def _forward(self, images: NDArray[Any], wanted: AbstractSet[str]) -> dict[str, NDArray[Any]]:
        """At least the outputs `wanted`, from one pass over checked images.

        Every score function is an output, float64 N. `gives` names the others:

        class           int64 N, index into `classes_`
        class_lengths   float64 N×classes
        reconstruction  float32 N×h×w×C in [0, 1]
        heat            N×h×w, coarse raw heat
        nearest         int64 N, index of the most similar kept training image
        """

    @abstractmethod
    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        """Restore the learned attributes from a model file."""

    def _range(self, score: str) -> tuple[float, float]:
        """The lowest and the highest possible value of a score."""
        return -inf, inf

    def _usable_scores(self) -> tuple[str, ...]:
        """The score functions that suit the fitted classes and preset."""
        return self.score_names

    def _joined(self, found: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        """The scores that follow from other scores and the class."""
        return {}

    def _heat_from(self) -> str | None:
        """The output that is the source of heatmaps; None: no heatmaps."""
        return next((name for name in ("heat", "reconstruction") if name in self.gives), None)

    def outputs(self, X: ImagesLike, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
        """The outputs of one forward pass.

        Parameters
        ----------
        X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
            Images of the size and channels that the detector was fitted on.
        names : iterable of str, default=None
            Score functions, and names in `gives`: "class" (an index into `classes_`),
            "class_lengths", "reconstruction", "heat", "nearest". None: all usable score functions.

        Returns
        -------
        outputs : dict of str to array
            By name, one row per image.
        """
        array = self._gate(X)
        wanted = tuple(self._usable_scores() if names is None else names)
        for name in wanted:
            if name not in self.gives:
                self._check_usable(name)
        found = self._forward(array, frozenset(wanted))
        return {name: found[name] for name in wanted}

    def score_samples(
        self, X: ImagesLike, score_function: str | None = None
    ) -> NDArray[np.float64]:
        """Normality scores: higher = more normal.

        Parameters
        ----------
        X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
            Images of the size and channels that the detector was fitted on.
        score_function : str, default=None
            One of `score_names`. None: `score_function_`.

        Returns
        -------
        scores : float array of shape (N,)
            One number per image.
        """
        name = self._named(score_function)
        return self.outputs(X, (name,))[name]

    def p_values(self, X: ImagesLike, score_function: str | None = None) -> NDArray[np.float64]:
        """The probability that a normal image scores this low or lower: small = anomalous.

        Parameters
        ----------
        X, score_function
            As in `score_samples`.

        Returns
        -------
        p_values : float array of shape (N,)
            From 1 / (n + 1), with n calibration images, to 1.
        """
        normal = self.calibration_scores(score_function)
        return p_values(self.score_samples(X, score_function), normal)

    def class_p_values(
        self, X: ImagesLike, score_function: str | None = None
    ) -> NDArray[np.float64]:
        """p-values among the calibration images of the same predicted class.

        Parameters
        ----------
        X, score_function
            As in `score_samples`.

        Returns
        -------
        p_values : float array of shape (N,)
            NaN if the calibration set has fewer than 20 images of the class.
        """
        name = self._named(score_function)
        self.calibration_scores(name)  # raises an error if there are none
        return self._judgement(X, name, (name,)).p_value_class

    def judge(self, X: ImagesLike, with_heat: bool = False) -> Judgement:
        """Every score with its p-value, and the class, from one forward pass.

        Parameters
        ----------
        X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
            Images of the size and channels that the detector was fitted on.
        with_heat : bool, default=False
            Whether to add the source of heatmaps: reconstructions or raw heat.

        Returns
        -------
        judgement : Judgement
            Scores, p-values, classes, and reconstructions or heat.
        """
        decisive, source = self._named(None), self._heat_from()
        also = (source, "nearest") if with_heat and source is not None else ()
        return self._judgement(X, decisive, (*self._usable_scores(), *also))

    def _judgement(self, X: ImagesLike, decisive: str, names: Iterable[str]) -> Judgement:
        also = ("class", "reconstruction", "heat", "nearest")
        found = self.outputs(X, [n for n in (*names, "class") if n not in also or n in self.gives])
        predicted, reconstructed, heat, nearest = (found.pop(name, None) for name in also)
        files = self.record_.get("kept_files") or []
        similar = None
        if nearest is not None and files and nearest.max() < len(files):
            similar = [str(files[k]) for k in nearest]
        p = {k: p_values(found[k], v) for k, v in self.calibration_scores_.items() if k in found}
        within = unknown = np.full(len(found[decisive]), np.nan)
        labels = [""] * len(unknown)
        if predicted is not None:
            labels = [str(name) for name in self.classes_[predicted]]
            if p and self.calibration_classes_ is not None:
                normal = self.calibration_scores_[decisive], self.calibration_classes_
                within = class_p_values(found[decisive], predicted, *normal)
        p_value = p.get(decisive, unknown)
        return Judgement(found, p_value, within, labels, p, reconstructed, heat, similar)

    @property
    def calibrated(self) -> bool:
        """Whether normal images were kept out of training to set false-alarm rates."""
        return bool(self.calibration_scores_)

    def calibration_scores(self, score_function: str | None = None) -> NDArray[np.float64]:
        """Scores of the calibration set.

        Parameters
        ----------
        score_function : str, default=None
            One of `score_names`. None: `score_function_`.

        Returns
        -------
        scores : float array of shape (calibration images,)
            In the order of the images.
        """
        self._check_fitted()
        if not self.calibrated:
            raise InputError(
                "this detector was fitted with calibration=0, so it has no false-alarm rate: "
                "leave calibration out, or choose a threshold for score_samples"
            )
        name = self._named(score_function)
        self._check_usable(name)
        return self.calibration_scores_[name]

    def predict(
        self, X: ImagesLike, alpha: float = USUAL_ALPHA, score_function: str | None = None
    ) -> NDArray[np.int64]:
        """Verdicts at a false-alarm rate.

        On average over draws of the calibration set, at most a share `alpha` of new normal images
        gets the verdict anomalous.

        Parameters
        ----------
        X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
            Images of the size and channels that the detector was fitted on.
        alpha : float, default=0.05
            The false-alarm rate, between 0 and 1.
        score_function : str, default=None
            One of `score_names`. None: `score_function_`.

        Returns
        -------
        verdicts : int array of shape (N,)
            +1 normal, −1 anomalous.
        """
        check_alpha(alpha, len(self.calibration_scores(score_function)))
        return np.where(self.p_values(X, score_function) <= alpha, -1, 1)

    def decision_function(
        self, X: ImagesLike, alpha: float = USUAL_ALPHA, score_function: str | None = None
    ) -> NDArray[np.float64]:
        """Scores minus the threshold. They are below 0 where `predict` returns −1.

        Parameters
        ----------
        X, alpha, score_function
            As in `predict`.

        Returns
        -------
        decisions : float array of shape (N,)
            At the default `alpha`, `score_samples(X) - offset_`.
        """
        least = threshold(self.calibration_scores(score_function), alpha)
        return self.score_samples(X, score_function) - least

    @property
    def offset_(self) -> float:
        """The threshold of `predict` at its default alpha, 0.05."""
        return threshold(self.calibration_scores(), USUAL_ALPHA)

    def _named(self, score_function: str | None) -> str:
        self._check_fitted()
        return self.score_function_ if score_function is None else score_function

    def _gate(self, X: ImagesLike) -> NDArray[Any]:
        self._check_fitted()
        return to_score(X, self.preprocessing_, self.record_)

    def _check_known(self, name: str) -> None:
        if name not in self.score_names:
            raise InputError(
                f"score_function {name!r} is unknown to {self.method}: use one of "
                f"{', '.join(self.score_names)}"
            )

    def _check_usable(self, name: str, usable: tuple[str, ...] | None = None) -> None:
        self._check_known(name)
        usable = usable or self._usable_scores()
        if name not in usable:
            alone = len(self.classes_) == 1
            why = "it needs two classes or another preset" if alone else "the preset lacks it"
            names = " or ".join(map(repr, usable))
            raise InputError(f"score_function {name!r} cannot be used, {why}: use {names}")

    def _check_fitted(self) -> None:
        if not hasattr(self, "classes_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")
