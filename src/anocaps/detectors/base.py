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
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from anocaps import modelfile
from anocaps.calibration import check_alpha, p_values, split
from anocaps.circumstances import circumstances
from anocaps.detectors.plugins import known_method, register
from anocaps.errors import InputError, ModelFileError
from anocaps.memory import in_parts
from anocaps.preprocessing import Preprocessing, as_images, stored_dtype
from anocaps.progress import Progress
from anocaps.training import PRECISIONS, Precision, Run, pick_device, train

# For a mean and a standard deviation: fewer calibration images than this will not do, and more
# training images than that add nothing but time.
_FEWEST_STANDARD_IMAGES = 20
_MOST_STANDARD_IMAGES = 5000

# Learned by every method; the rest of its attributes that end in `_` are its own.
_COMMON = ("classes_", "preprocessing_", "record_", "calibration_scores_")


class Detector(BaseEstimator, ABC):  # type: ignore[misc]
    method: ClassVar[str]  # the name in commands, results and model files
    score_names: ClassVar[tuple[str, ...]]  # what score_samples(score=…) accepts

    # What fitting learns, beside the method's own.
    classes_: NDArray[Any]
    preprocessing_: Preprocessing
    record_: dict[str, Any]  # how training went and with what
    calibration_scores_: dict[str, NDArray[np.float64]]  # of normal images never trained on

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "method" in cls.__dict__:
            register(cls)

    def __init__(
        self,
        score: str,
        calibration: float = 0.1,
        seed: int = 0,
        device: str = "auto",
        scoring_precision: Precision = "fp32",
    ) -> None:
        """The arguments that every method has."""
        self.score = score
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
        labels: ArrayLike,
        *,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from normal images and their classes.

        With a `checkpoint` path training can be killed at any moment and continued with
        `resume=True`; on the CPU it ends in the same weights as if it had never stopped.
        """
        paths = None if checkpoint is None else [Path(checkpoint)]
        fit_together([self], [(images, labels)], paths, resume, progress)
        return self

    def _begin(
        self, images: ArrayLike, labels: ArrayLike
    ) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Check everything; the images, their class indices, who is trained on and who is not."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # what an earlier fit learned
        array = as_images(images)
        classes, index = _indexed(labels, len(array))
        self._check_score(self.score)
        if self.scoring_precision not in PRECISIONS:
            raise InputError(
                f"scoring_precision is 'fp32' or 'bf16', not {self.scoring_precision!r}"
            )
        if not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise InputError(f"seed is a whole number, 0 or more, not {self.seed!r}")
        if not 0 <= self.calibration < 1:
            raise InputError(f"calibration is a share in [0, 1), not {self.calibration}")
        if len(classes) == 1:
            warnings.warn(
                f"only one normal class ({classes[0]}): scores that compare classes cannot be used",
                UserWarning,
                stacklevel=4,
            )
        training, kept = split(index, self.calibration, self.seed)
        if self.calibration > 0 and len(kept) == 0:
            raise InputError(
                f"calibration={self.calibration} of {len(array)} images keeps none; "
                "use a larger share, more images, or calibration=0 for scores without verdicts"
            )
        self.classes_ = classes
        self.preprocessing_ = Preprocessing(*array.shape[1:])
        self.record_ = {}
        return array, index, training, kept

    def _end(
        self, array: NDArray[Any], training: NDArray[np.int64], kept: NDArray[np.int64]
    ) -> None:
        """After training: the record, and the scores of normal images."""
        self.record_ |= {
            "training_images": len(training) - self.record_.get("validation_images", 0),
            "calibration_images": len(kept),
            **circumstances(pick_device(self.device)),
        }
        enough = len(kept) >= _FEWEST_STANDARD_IMAGES
        self._standardize(array[kept if enough else self._some(training)])
        usable = self._usable_scores()
        self.calibration_scores_ = self._raw_scores(array[kept], usable) if len(kept) else {}

    def _some(self, training: NDArray[np.int64]) -> NDArray[np.int64]:
        """A seeded draw of at most `_MOST_STANDARD_IMAGES` training images."""
        generator = np.random.default_rng([self.seed, 0x57D])
        return np.sort(generator.permutation(training)[:_MOST_STANDARD_IMAGES])

    def _standardize(self, normal: NDArray[Any]) -> None:
        """Called with normal images after training, for methods whose scores need their spread."""

    # ── using ────────────────────────────────────────────────────────────────────────────────

    def score_samples(self, images: ArrayLike, score: str | None = None) -> NDArray[np.float64]:
        """One number per image, higher = more normal; `score` names another than the default."""
        name = self.score if score is None else score
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

    def p_values(self, images: ArrayLike, score: str | None = None) -> NDArray[np.float64]:
        """How often a normal image would score this low or lower: small = anomalous."""
        return self._p_values(self.score_samples(images, score), score)

    def _p_values(self, scores: NDArray[np.float64], score: str | None) -> NDArray[np.float64]:
        return p_values(scores, self.calibration_scores(score))

    @property
    def calibrated(self) -> bool:
        """Whether normal images were kept out of training to set false-alarm rates."""
        return bool(self.calibration_scores_)

    def calibration_scores(self, score: str | None = None) -> NDArray[np.float64]:
        """Scores of the normal images that were kept out of training."""
        if not self.calibrated:
            raise InputError(
                "this detector was fitted with calibration=0, so no normal images were kept to "
                "set a false-alarm rate: fit with calibration=0.1, or threshold score_samples"
            )
        name = self.score if score is None else score
        self._check_usable(name)
        return self.calibration_scores_[name]

    def predict(
        self, images: ArrayLike, alpha: float = 0.05, score: str | None = None
    ) -> NDArray[np.int64]:
        """+1 normal, −1 anomalous; about a share `alpha` of normal images is called anomalous."""
        array = self._gate(images)
        check_alpha(alpha, len(self.calibration_scores(score)))
        scores = self.score_samples(array, score)
        return np.where(self._p_values(scores, score) <= alpha, -1, 1)

    def _gate(self, images: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        array = as_images(images)
        expected: Preprocessing = self.preprocessing_
        shape = (expected.height, expected.width, expected.channels)
        if array.shape[1:] != shape:
            raise InputError(
                f"images: this detector was fitted on {_by(shape)} images, these are "
                f"{_by(array.shape[1:])}; bring them to the same size and channels"
            )
        return array

    def _check_score(self, name: str) -> None:
        if name not in self.score_names:
            raise InputError(
                f"score {name!r} is unknown to {self.method}: use one of "
                f"{', '.join(self.score_names)}"
            )

    def _check_usable(self, name: str) -> None:
        self._check_score(name)
        if name not in self._usable_scores():
            raise InputError(
                f"score {name!r} compares classes and this detector knows only one "
                f"({self.classes_[0]}): use {' or '.join(self._usable_scores())}"
            )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "calibration_scores_")  # learned last

    # ── the model file ───────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path) -> None:
        """One safetensors file with weights, settings, classes, calibration and record."""
        check_is_fitted(self)
        arrays, learned = self._learned()
        arrays |= {f"calibration.{k}": v for k, v in self.calibration_scores_.items()}
        header = {
            "method": self.method,
            "params": self.get_params(),
            "classes": {"dtype": self.classes_.dtype.str, "values": self.classes_.tolist()},
            "record": self.record_,
            "learned": learned,
        }
        modelfile.write(path, "model", arrays, header)


def fit_together(
    detectors: Sequence[Detector],
    data: Sequence[tuple[ArrayLike, ArrayLike]],
    checkpoints: Sequence[Path] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> None:
    """Fit a fleet: each detector on its own images and labels, all at once where a GPU helps.

    A detector ends in the same weights, within rounding, as if it had been fitted alone. A fleet
    that does not fit into memory is split.
    """
    begun = [detector._begin(*each) for detector, each in zip(detectors, data)]

    def train_part(part: slice) -> None:
        started = time.perf_counter()
        stages = [
            iter(
                detector._training(
                    np.ascontiguousarray(array[training], dtype=stored_dtype(array)),
                    index[training],
                )
            )
            for detector, (array, index, training, _) in zip(detectors[part], begun[part])
        ]
        ends: Sequence[Path | None] = (
            [None] * len(stages) if checkpoints is None else checkpoints[part]
        )
        stage = 0
        while waiting := [(k, run) for k, runs in enumerate(stages) if (run := next(runs, None))]:
            paths = [_stage_path(ends[k], stage) for k, _ in waiting]
            train([run for _, run in waiting], paths, resume, progress)
            stage += 1
        seconds = round(time.perf_counter() - started, 3)
        for detector in detectors[part]:
            detector.record_.setdefault("training_seconds", seconds)

    for _ in in_parts(len(begun), len(begun), train_part, whole="fleet", thing="network"):
        pass
    for detector, (array, _, training, kept) in zip(detectors, begun):
        detector._end(array, training, kept)


def _stage_path(checkpoint: Path | None, stage: int) -> Path | None:
    """Methods that train several networks keep a checkpoint for each."""
    if checkpoint is None or stage == 0:
        return checkpoint
    return checkpoint.with_name(f"{checkpoint.name}.{stage}")


def load(path: str | Path, device: str = "auto") -> Detector:
    """The detector that `save` wrote, ready to score on `device`."""
    arrays, header = modelfile.read(path, "model")
    try:
        detector = known_method(header["method"])(**(header["params"] | {"device": device}))
        classes = header["classes"]
        detector.classes_ = np.asarray(classes["values"], dtype=classes["dtype"])
        detector.record_ = header["record"]
        detector.calibration_scores_ = {
            name.removeprefix("calibration."): array
            for name, array in arrays.items()
            if name.startswith("calibration.")
        }
        detector._relearn(arrays, header["learned"])
    except InputError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ModelFileError(
            f"{path}: its contents do not fit together ({type(error).__name__}); save it again"
        ) from error
    return detector


def arrays_of(module: torch.nn.Module) -> modelfile.Arrays:
    """A network's weights as arrays named `network.…`."""
    return {
        f"network.{name}": tensor.detach().contiguous().cpu().numpy()
        for name, tensor in module.state_dict().items()
    }


def fill(module: torch.nn.Module, arrays: modelfile.Arrays) -> None:
    """The inverse of `arrays_of`; in the memory order of training, since that decides rounding."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module.load_state_dict(
        {
            name.removeprefix("network."): torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith("network.")
        }
    )


def _indexed(labels: ArrayLike, images: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The sorted classes and each image's index into them."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise InputError(f"labels: expected one label per image, got shape {array.shape}")
    if len(array) != images:
        raise InputError(f"labels: {len(array)} labels for {images} images")
    if array.dtype == object:
        array = np.array(array.tolist())  # whole numbers stay whole numbers, text text
    if array.dtype.kind not in "iufbU":
        raise InputError(f"labels: expected whole numbers or text, got {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError("labels: a label is not a finite number")
    classes, index, counts = np.unique(array, return_inverse=True, return_counts=True)
    if counts.min() < 2:
        raise InputError(
            f"class {classes[counts.argmin()]} has one image; every class needs at least two"
        )
    return classes, index.astype(np.int64)


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
