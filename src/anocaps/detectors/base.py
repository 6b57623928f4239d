"""The contract of a detector, and the code that all methods share.

A detector is a scikit-learn outlier detector for images: the constructor only stores its
arguments, `fit` learns from normal images, learned attributes end in `_`. Scores are normality
scores: higher = more normal.

A method is one subclass in one file. It names its score functions and implements the hooks below,
whose names start with `_` (docs/your-own-method.md). One forward pass, `outputs`, gives all scores.
"""

from __future__ import annotations  # short types in help()

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.metaestimators import available_if

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError
from anocaps.detectors import saving
from anocaps.detectors.fitting import fit_together
from anocaps.detectors.gate import Given, ImagesLike, given, without_channels
from anocaps.detectors.plugins import register
from anocaps.detectors.verdicts import Verdicts
from anocaps.judging import calibration, heat
from anocaps.training.device import Precision
from anocaps.training.loop import Run
from anocaps.training.preprocessing import Preprocessing
from anocaps.training.progress import Progress

AUTO = "auto"

# Learned by every method. All other attributes that end in `_` belong to one method.
_COMMON = (
    "classes_", "preprocessing_", "record_", "score_function_", "calibration_scores_",
    "calibration_classes_", "heat_scale_", "card_", "checksum_",
)  # fmt: skip


def _gives(name: str) -> Any:
    """Decorate a method that only detectors with this output have."""
    return available_if(lambda detector: name in detector.gives)


class Detector(Verdicts, OutlierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Base class of every detector. It has the methods of `CapsNetDetector`.

    Parameters
    ----------
    score_function : str, default="auto"
        The score function of the verdict. "auto" lets the method choose.
    calibration : float, default=None
        The share of images kept out of training to set false-alarm rates. None: 0.1, or more for
        few images. 0: scores without verdicts.
    seed : int, default=0
        Seed of everything random.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device of training and scoring. "auto" takes a GPU if there is one.
    scoring_precision : {"fp32", "bf16"}, default="fp32"
        Precision of scoring. Only fp32 gives the same scores on every device.
    """

    learns_in_parts: ClassVar[bool] = False  # `_training` takes `preprocessing.Chosen`
    needs_seed: ClassVar[bool] = True  # whether training depends on the seed

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "method" in cls.__dict__:
            register(cls)

    def __init__(
        self,
        score_function: str = AUTO,
        calibration: float | None = None,
        seed: int = 0,
        device: str = "auto",
        scoring_precision: Precision = "fp32",
    ) -> None:
        self.score_function = score_function
        self.calibration = calibration
        self.seed = seed
        self.device = device
        self.scoring_precision = scoring_precision

    # ── hooks of a method ────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _training(
        self,
        images: NDArray[Any],  # N×H×W×C, uint8 or float32
        labels: NDArray[np.int64],  # 0 … classes−1
    ) -> Iterable[Run]:
        """Yield the runs to train. Each is trained before the next is requested.

        A method without a network learns here and returns ().
        """

    def _prepared(self, data: Given) -> Given:
        """The data for training and calibration, by default the images themselves."""
        return data

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        """Arrays and JSON for `_relearn`, by default every learned array of the method."""
        own = {k: v for k, v in vars(self).items() if k.endswith("_") and k not in _COMMON}
        for name, value in own.items():
            if not isinstance(value, np.ndarray):
                raise TypeError(f"{name} is not a NumPy array: write _learned and _relearn for it")
        arrays = {f"learned.{name}": array for name, array in own.items()}
        return arrays, {"preprocessing": asdict(self.preprocessing_)}

    def _relearn(self, arrays: modelfile.Arrays, header: dict[str, Any]) -> None:
        """The inverse of `_learned`."""
        self.preprocessing_ = Preprocessing(**header["preprocessing"])
        for name, array in arrays.items():
            if name.startswith("learned."):
                setattr(self, name.removeprefix("learned."), array)

    def _auto_score_function(self) -> str:
        """The score function that "auto" chooses."""
        return self._usable_scores()[0]

    # ── fitting ──────────────────────────────────────────────────────────────────────────────

    def fit(
        self,
        X: ImagesLike,
        y: ArrayLike | None = None,
        *,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        progress: Progress | None = None,
        calibrate_on: ArrayLike | None = None,
    ) -> Self:
        """Learn from normal images.

        Parameters
        ----------
        X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
            Images, uint8 or float in [0, 1].
        y : array of shape (N,), default=None
            The normal class of each image, numbers or text. The number −1 marks anomalies, which
            are left out. None: the labels of an ImageFolder, otherwise one class.
        checkpoint : path, default=None
            The file that keeps the state of training after each epoch.
        resume : bool, default=False
            Continue from the checkpoint. On a CPU the final weights are the same as without a
            stop.
        progress : callable, default=None
            Receives step, number of steps, loss and images per second, a few times a second.
        calibrate_on : array of indices, default=None
            The calibration set; training uses all other images. None: a random set. A set that was
            chosen by its scores would make the false-alarm rate wrong.

        Returns
        -------
        self : Detector
            The fitted detector.
        """
        paths = None if checkpoint is None else [Path(checkpoint)]
        fit_together([self], [(X, y)], paths, resume, progress, calibrate_on)
        return self

    def prepare(self, X: ImagesLike, y: ArrayLike | None = None) -> Any:
        """Compute the features that `fit` and the self-check share.

        Parameters
        ----------
        X, y
            As in `fit`.

        Returns
        -------
        X : array or Features
            Pass it to `fit` instead of the images. For preset "photo" it has the features of the
            pretrained stem, otherwise the images themselves.
        """
        return self._prepared(given(X, y)).images

    def fit_predict(
        self, X: ImagesLike, y: ArrayLike | None = None, **options: Any
    ) -> NDArray[np.int64]:
        """Fit on X and return the verdicts on the same images.

        Verdicts on training images are too favourable.

        Parameters
        ----------
        X, y, **options
            As in `fit`.

        Returns
        -------
        verdicts : int array of shape (N,)
            +1 normal, −1 anomalous.
        """
        return self.fit(X, y, **options).predict(X)

    def calibration_share(self, images: int) -> float:
        """The share of images kept out of training to set false-alarm rates.

        Parameters
        ----------
        images : int
            The number of normal images to fit on.

        Returns
        -------
        share : float
            Between 0 and 1.
        """
        return calibration.share_for(images) if self.calibration is None else self.calibration

    def _chosen_score_function(self, images: Any, strictly: bool) -> str:
        """The given score function, or the choice for `classes_`. `strictly`: training on these
        images must make it usable."""
        if self.score_function == AUTO:
            return self._auto_score_function()
        self._check_known(self.score_function)
        if strictly:
            self._check_usable(self.score_function, self._scores_after(images))
        return self.score_function

    def _scores_after(self, images: Any) -> tuple[str, ...]:
        """The score functions that training on these images makes usable."""
        return self._usable_scores()

    def _forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    # ── using ────────────────────────────────────────────────────────────────────────────────

    @property
    def n_features_in_(self) -> int:
        """Numbers per image: height × width × channels."""
        size = self.preprocessing_
        return prod((size.height, size.width, size.channels))

    @_gives("class")  # type: ignore[untyped-decorator]
    def classify(self, X: ImagesLike) -> NDArray[Any]:
        """The normal class that each image looks most like.

        Parameters
        ----------
        X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
            Images of the size and channels that the detector was fitted on.

        Returns
        -------
        labels : array of shape (N,)
            Labels of `classes_`.
        """
        found: NDArray[Any] = self.classes_[self.outputs(X, ("class",))["class"]]
        return found

    @_gives("class_lengths")  # type: ignore[untyped-decorator]
    def class_lengths(self, X: ImagesLike) -> NDArray[np.float64]:
        """Lengths of the class capsules.

        Parameters
        ----------
        X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
            Images of the size and channels that the detector was fitted on.

        Returns
        -------
        lengths : float array of shape (N, classes)
            In the order of `classes_`.
        """
        return self.outputs(X, ("class_lengths",))["class_lengths"]

    @_gives("reconstruction")  # type: ignore[untyped-decorator]
    def reconstruct(self, X: ImagesLike) -> NDArray[np.float32]:
        """Reconstruct the window of each image that the network sees.

        Parameters
        ----------
        X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
            Images of the size and channels that the detector was fitted on.

        Returns
        -------
        reconstructions : float32 array of shape (N, h, w) or (N, h, w, C)
            Pixels in [0, 1]. They have a channel axis if the images have one.
        """
        found = self.outputs(X, ("reconstruction",))["reconstruction"]
        return found[..., 0] if without_channels(X) else found

    def heatmaps(self, X: ImagesLike) -> NDArray[np.float32]:
        """Heatmaps that show where each image is anomalous.

        Parameters
        ----------
        X : array of shape (N, H, W) or (N, H, W, C), list of paths, or ImageFolder
            Images of the size and channels that the detector was fitted on.

        Returns
        -------
        heat : float32 array of shape (N, h, w)
            In [0, 1], on one scale: 19 of 20 normal images are below 0.5 everywhere.
        """
        array = self._gate(X)
        source = self._heat_from()
        if self.heat_scale_ is None or source is None:
            raise InputError(f"{self.method} has no heatmaps")
        return heat.heatmaps(array, self._forward(array, {source})[source], self.heat_scale_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True  # scikit-learn has no tag for four axes
        return tags

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with weights, settings, classes, calibration and record.

        Parameters
        ----------
        path : path
            The file to write. An existing file is replaced.
        """
        self._check_fitted()
        saving.save(self, path)
