"""The contract of a detector, and all of it that does not depend on the method.

A detector is a scikit-learn estimator: the constructor only stores its arguments, `fit` takes
normal images with their class labels, learned attributes end in `_`. Scores are normality
scores: higher = more normal. `predict` answers +1 (normal) or −1 (anomalous).

A method is one subclass in one file: it names its scores and fills in the `_…` hooks below, as
docs/your-own-method.md shows.
"""

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import InputError
from anocaps.detectors import saving
from anocaps.detectors.card import card_of
from anocaps.detectors.labels import indexed
from anocaps.detectors.plugins import register
from anocaps.judging import calibration
from anocaps.judging import heat as heatmaps
from anocaps.judging.calibration import (
    USUAL_ALPHA,
    check_alpha,
    class_p_values,
    p_values,
    split,
    threshold,
)
from anocaps.judging.judgement import Judgement
from anocaps.training.device import PRECISIONS, Precision, circumstances, pick_device
from anocaps.training.loop import Run, train
from anocaps.training.memory import in_parts
from anocaps.training.preprocessing import Chosen, Preprocessing, as_images
from anocaps.training.progress import Progress

# The images, their class indices, who is trained on and who is not.
_Begun = tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

_MOST_HEATED = 500  # images that set the scale of heatmaps: more add nothing but time

# Learned by every method; the rest of its attributes that end in `_` are its own.
_COMMON = (
    "classes_", "preprocessing_", "record_", "calibration_scores_", "calibration_classes_",
    "heat_scale_", "card_",
)  # fmt: skip


class Detector(BaseEstimator, ABC):  # type: ignore[misc]
    method: ClassVar[str]  # the name in commands, results and model files
    score_names: ClassVar[tuple[str, ...]]  # what score_samples(score_function=…) accepts
    learns_in_parts: ClassVar[bool] = False  # whether Chosen images will do, in place of an array

    # What fitting learns, beside the method's own.
    classes_: NDArray[Any]
    preprocessing_: Preprocessing
    record_: dict[str, Any]  # how training went and with what
    calibration_scores_: dict[str, NDArray[np.float64]]  # of normal images never trained on
    calibration_classes_: NDArray[np.int64] | None  # the classes they are given, as indices
    heat_scale_: float | None  # of heatmaps; None where the method redraws nothing
    card_: dict[str, Any]  # what to expect of the model: anocaps.card

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "method" in cls.__dict__:
            register(cls)

    def __init__(
        self,
        score_function: str,
        calibration: float | None = None,
        seed: int = 0,
        device: str = "auto",
        scoring_precision: Precision = "fp32",
    ) -> None:
        """The arguments that every method has."""
        self.score_function = score_function
        self.calibration = calibration
        self.seed = seed
        self.device = device
        self.scoring_precision = scoring_precision

    # ── what a method fills in ───────────────────────────────────────────────────────────────

    @abstractmethod
    def _training(
        self,
        images: NDArray[Any],  # N×H×W×C, uint8 or float32
        labels: NDArray[np.int64],  # 0 … classes−1
    ) -> Iterable[Run]:
        """Yield what is to be trained, one run after the other; each is trained when the next
        is asked for. A method that trains no network learns here and returns ().
        """

    @abstractmethod
    def _raw_scores(
        self, images: NDArray[Any], names: Iterable[str]
    ) -> dict[str, NDArray[np.float64]]:
        """The scores `names` of images that passed the gate, from one pass over them."""

    def _judged(
        self, images: NDArray[Any], names: Iterable[str]
    ) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64] | None]:
        """The same, and the index of the class that each image is given, where the method gives
        one; in one pass where the method can."""
        classify = getattr(self, "classify", None)
        predicted = None if classify is None else np.searchsorted(self.classes_, classify(images))
        return self._raw_scores(images, names), predicted

    def _learned(self) -> tuple[modelfile.Arrays, dict[str, Any]]:
        """What `_relearn` needs, as arrays and JSON; here every learned array of the method."""
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

    def _usable_scores(self) -> tuple[str, ...]:
        """The scores that make sense for what was fitted."""
        return self.score_names

    # ── fitting ──────────────────────────────────────────────────────────────────────────────

    def fit(
        self,
        images: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from normal images and their classes; without labels they are all of one class.

        With a `checkpoint` path training can be killed at any moment and continued with
        `resume=True`; on the CPU it ends in the same weights as if it had never stopped.
        """
        paths = None if checkpoint is None else [Path(checkpoint)]
        fit_together([self], [(images, labels)], paths, resume, progress)
        return self

    def _begin(self, images: ArrayLike, labels: ArrayLike | None) -> _Begun:
        """Check everything before training."""
        self._forget()  # what an earlier fit learned
        array = as_images(images)
        known = ["normal"] * len(array) if labels is None else labels
        classes, index = indexed(known, len(array))
        self._check_score(self.score_function)
        if self.scoring_precision not in PRECISIONS:
            raise InputError(f"scoring_precision is fp32 or bf16, not {self.scoring_precision!r}")
        if not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise InputError(f"seed is a whole number, 0 or more, not {self.seed!r}")
        share = self.calibration_share(len(array))
        if not 0 <= share < 1:
            raise InputError(f"calibration is a share in [0, 1), not {share}")
        self.classes_ = classes
        if share > 0:  # else all_scores is asked, as the study does
            self._check_usable(self.score_function)
        if len(classes) == 1:
            warnings.warn(
                f"only one normal class ({classes[0]}): scores that compare classes cannot be used",
                UserWarning,
                stacklevel=4,
            )
        training, kept = split(index, share, self.seed)
        if share > 0 and len(kept) == 0:
            raise InputError(
                f"calibration={share} of {len(array)} images keeps none; "
                "use a larger share, more images, or calibration=0 for scores without verdicts"
            )
        self.preprocessing_ = Preprocessing(*array.shape[1:])
        self.record_ = {}
        return array, index, training, kept

    def calibration_share(self, images: int) -> float:
        """Of so many images, the share kept out of training to set false-alarm rates."""
        return calibration.share_for(images) if self.calibration is None else self.calibration

    def _end(self, begun: _Begun) -> None:
        """After training: the record, the scores of normal images, the card."""
        array, index, training, kept = begun
        self.record_ |= {
            "training_images": len(training) - self.record_.get("validation_images", 0),
            "calibration_images": len(kept),
            **circumstances(pick_device(self.device)),
        }
        self.calibration_scores_, self.calibration_classes_ = {}, None
        if len(kept):
            scores, predicted = self._judged(array[kept], self._usable_scores())
            self.calibration_scores_, self.calibration_classes_ = scores, predicted
        self.heat_scale_ = None
        if hasattr(self, "reconstruct"):
            generator = np.random.default_rng([self.seed, 0x4EA7])
            normal = array[generator.permutation(kept if len(kept) else training)[:_MOST_HEATED]]
            self.heat_scale_ = heatmaps.scale_of(heatmaps.heat(normal, self.reconstruct(normal)))
        self.card_ = card_of(self, index, kept)

    def _forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    # ── using ────────────────────────────────────────────────────────────────────────────────

    def score_samples(
        self, images: ArrayLike, score_function: str | None = None
    ) -> NDArray[np.float64]:
        """One number per image, higher = more normal; `score_function` names another than the default."""
        name = self.score_function if score_function is None else score_function
        return self.all_scores(images, (name,))[name]

    def all_scores(
        self, images: ArrayLike, names: Iterable[str] | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Several scores, by default all usable ones, from one pass over the images."""
        array = self._gate(images)
        wanted = tuple(self._usable_scores() if names is None else names)
        for name in wanted:
            self._check_usable(name)
        return self._raw_scores(array, wanted)

    def p_values(self, images: ArrayLike, score_function: str | None = None) -> NDArray[np.float64]:
        """How often a normal image would score this low or lower: small = anomalous."""
        return p_values(
            self.score_samples(images, score_function), self.calibration_scores(score_function)
        )

    def class_p_values(
        self, images: ArrayLike, score_function: str | None = None
    ) -> NDArray[np.float64]:
        """The same among normal images of the class that an image looks like; NaN where too few
        of them were kept out of training (calibration.FEWEST_OF_CLASS)."""
        name = self.score_function if score_function is None else score_function
        self.calibration_scores(name)  # which says so if there are none
        return self._judgement(self._gate(images), name, (name,)).p_value_class

    def judge(self, images: ArrayLike) -> Judgement:
        """Every score with its p-value, and the class, in one pass over the images."""
        array = self._gate(images)
        self._check_usable(self.score_function)
        return self._judgement(array, self.score_function, self._usable_scores())

    def _judgement(self, array: NDArray[Any], decisive: str, names: Iterable[str]) -> Judgement:
        scores, predicted = self._judged(array, names)
        p = {k: p_values(scores[k], v) for k, v in self.calibration_scores_.items() if k in scores}
        unknown = np.full(len(array), np.nan)
        within = unknown
        if p and predicted is not None and self.calibration_classes_ is not None:
            normal = self.calibration_scores_[decisive], self.calibration_classes_
            within = class_p_values(scores[decisive], predicted, *normal)
        labels = [""] * len(array) if predicted is None else map(str, self.classes_[predicted])
        return Judgement(scores, p.get(decisive, unknown), within, list(labels), p)

    @property
    def calibrated(self) -> bool:
        """Whether normal images were kept out of training to set false-alarm rates."""
        return bool(self.calibration_scores_)

    def calibration_scores(self, score_function: str | None = None) -> NDArray[np.float64]:
        """Scores of the normal images that were kept out of training."""
        check_is_fitted(self)
        if not self.calibrated:
            raise InputError(
                "this detector was fitted with calibration=0, so no normal images were kept to "
                "set a false-alarm rate: fit without that, or threshold score_samples"
            )
        name = self.score_function if score_function is None else score_function
        self._check_usable(name)
        return self.calibration_scores_[name]

    def predict(
        self, images: ArrayLike, alpha: float = USUAL_ALPHA, score_function: str | None = None
    ) -> NDArray[np.int64]:
        """+1 normal, −1 anomalous; at most a share `alpha` of normal images is called anomalous,
        on average over draws of the calibration images.

        As PyOD has it: `(predict(images) == -1).astype(int)` is 1 for an anomaly, and
        `-score_samples(images)` is higher for one.
        """
        check_alpha(alpha, len(self.calibration_scores(score_function)))
        return np.where(self.p_values(images, score_function) <= alpha, -1, 1)

    def decision_function(
        self, images: ArrayLike, alpha: float = USUAL_ALPHA, score_function: str | None = None
    ) -> NDArray[np.float64]:
        """The score less its threshold: below 0 where `predict` answers −1."""
        least = threshold(self.calibration_scores(score_function), alpha)
        return self.score_samples(images, score_function) - least

    def heatmaps(self, images: ArrayLike) -> NDArray[np.float32]:
        """Where each image is odd: N×h×w in [0, 1], on one scale from normal images."""
        array = self._gate(images)
        if self.heat_scale_ is None:
            raise InputError(f"{self.method} redraws no images, so it has no heatmaps")
        return heatmaps.heatmaps(array, self.reconstruct(array), self.heat_scale_)

    def _gate(self, images: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        array = as_images(images)
        expected: Preprocessing = self.preprocessing_
        shape = (expected.height, expected.width, expected.channels)
        if array.shape[1:] != shape:
            raise InputError(
                f"images: this detector was fitted on {'×'.join(map(str, shape))} images, these "
                f"are {'×'.join(map(str, array.shape[1:]))}; bring them to the same size and "
                "channels"
            )
        return array

    def _check_score(self, name: str) -> None:
        if name not in self.score_names:
            raise InputError(
                f"score function {name!r} is unknown to {self.method}: use one of "
                f"{', '.join(self.score_names)}"
            )

    def _check_usable(self, name: str) -> None:
        self._check_score(name)
        if name not in self._usable_scores():
            raise InputError(
                f"score function {name!r} compares classes and there is only one ({self.classes_[0]}): "
                f"use score_function={' or '.join(map(repr, self._usable_scores()))}"
            )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path) -> None:
        """One safetensors file with weights, settings, classes, calibration and record."""
        check_is_fitted(self)
        saving.save(self, path)


def fit_together(
    detectors: Sequence[Detector],
    data: Sequence[tuple[ArrayLike, ArrayLike | None]],
    checkpoints: Sequence[Path] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> None:
    """Fit a fleet: each detector on its own images and labels, all at once where a GPU helps.

    A detector ends in the same weights, within rounding, as if it had been fitted alone. A fleet
    that does not fit into memory is split.
    """
    with _whole_or_nothing(detectors):
        begun = [detector._begin(*each) for detector, each in zip(detectors, data)]
        ends: Sequence[Path | None] = checkpoints or [None] * len(begun)

        def train_part(part: slice) -> None:
            started = time.perf_counter()
            stages = [
                iter(detector._training(_chosen(detector, array, training), index[training]))
                for detector, (array, index, training, _) in zip(detectors[part], begun[part])
            ]
            stage = 0
            while waiting := [
                (k, run) for k, runs in enumerate(stages) if (run := next(runs, None))
            ]:
                paths = [_stage_path(ends[part][k], stage) for k, _ in waiting]
                train([run for _, run in waiting], paths, resume, progress)
                stage += 1
            seconds = round(time.perf_counter() - started, 3)
            for detector in detectors[part]:
                detector.record_.setdefault("training_seconds", seconds)

        for _ in in_parts(len(begun), len(begun), train_part, whole="fleet", thing="network"):
            pass
        for detector, each in zip(detectors, begun):
            detector._end(each)


def _chosen(detector: Detector, array: NDArray[Any], training: NDArray[np.int64]) -> Any:
    """What to learn from; a copy of it only where the method wants an array."""
    images = Chosen(array, training)
    return images if detector.learns_in_parts else images[:]


@contextmanager
def _whole_or_nothing(detectors: Sequence[Detector]) -> Iterator[None]:
    """A fit that fails or is stopped leaves nothing behind."""
    try:
        yield
    except BaseException:
        for detector in detectors:
            detector._forget()
        raise


def _stage_path(checkpoint: Path | None, stage: int) -> Path | None:
    """Methods that train several networks keep a checkpoint for each."""
    if checkpoint is None or stage == 0:
        return checkpoint
    return checkpoint.with_name(f"{checkpoint.name}.{stage}")
