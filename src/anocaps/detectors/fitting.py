"""Fit one detector or a fleet: from images and labels to calibration and card."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anocaps.base.errors import InputError
from anocaps.detectors.card import card_of
from anocaps.detectors.gate import Given, ImagesLike, given, indexed
from anocaps.detectors.neighbours import draw
from anocaps.detectors.photo.copies import near_copies_of
from anocaps.detectors.photo.features import Features
from anocaps.judging import heat
from anocaps.judging.calibration import split
from anocaps.networks.pretrained import CHANNELS
from anocaps.training.device import PRECISIONS, circumstances, pick_device
from anocaps.training.loop import train
from anocaps.training.memory import in_parts
from anocaps.training.preprocessing import Chosen, Preprocessing
from anocaps.training.progress import Progress

if TYPE_CHECKING:
    from anocaps.detectors.base import Detector

_log = logging.getLogger("anocaps")
_MOST_HEATED = 500  # images that set the scale of heatmaps; more only take time


@dataclass(frozen=True)
class _Begun:
    """The images, and the indices of the training set and of the calibration set."""

    given: Given
    training: NDArray[np.int64]
    kept: NDArray[np.int64]  # the calibration set
    groups: NDArray[np.int64]  # a number for each image; near-copies have the same


def fit_together(
    detectors: "Sequence[Detector]",
    data: Sequence[tuple[ImagesLike, ArrayLike | None]],
    checkpoints: Sequence[Path] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    calibrate_on: ArrayLike | None = None,  # indices of images, the same for all detectors
) -> None:
    """Fit each detector on its own images and labels; on a GPU all at once.

    Weights are the same as for a detector fitted alone, up to rounding. A fleet that does not fit
    into memory is split.
    """
    with _whole_or_nothing(detectors):
        begun = [_begin(detector, *each, calibrate_on) for detector, each in zip(detectors, data)]
        ends: Sequence[Path | None] = checkpoints or [None] * len(begun)

        def train_part(part: slice) -> None:
            started = time.perf_counter()
            stages = [
                iter(detector._training(_chosen(detector, each), each.given.index[each.training]))
                for detector, each in zip(detectors[part], begun[part])
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
            _end(detector, each)


def _begin(
    detector: "Detector",
    images: ImagesLike,
    labels: ArrayLike | None,
    calibrate_on: ArrayLike | None,
) -> _Begun:
    """Check everything before training."""
    detector._forget()
    data = detector._prepared(given(images, labels))
    normal = np.flatnonzero(data.index >= 0)
    if detector.scoring_precision not in PRECISIONS:
        raise InputError(
            f"scoring_precision must be 'fp32' or 'bf16', not {detector.scoring_precision!r}"
        )
    if not isinstance(detector.seed, int | np.integer) or detector.seed < 0:
        raise InputError(f"seed must be an integer of at least 0, not {detector.seed!r}")
    share = detector.calibration_share(len(normal))
    if not 0 <= share < 1:
        raise InputError(f"calibration must be in [0, 1), not {share}")
    detector.classes_ = data.classes
    detector.score_function_ = detector._chosen_score_function(data.images, strictly=share > 0)
    training, kept, groups = calibration_split(detector, data.images, data.index)
    if share > 0 and len(kept) == 0:
        raise InputError(
            f"calibration={share} keeps none of {len(normal)} images: use a larger share, "
            "more images, or calibration=0 for scores without verdicts"
        )
    detector.preprocessing_ = Preprocessing(*data.images.shape[1:])
    detector.record_ = {}
    if calibrate_on is not None:
        chosen = np.unique(np.asarray(calibrate_on, dtype=np.int64))
        if len(chosen) == 0 or not np.isin(chosen, normal).all():
            raise InputError("calibrate_on must be one or more indices of normal images")
        return _Begun(data, np.setdiff1d(normal, chosen), chosen, groups)
    return _Begun(data, training, kept, groups)


def calibration_split(
    detector: "Detector", images: Any, index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the training set and of the calibration set, and the group of each image.

    Near-copies are one group. A group stays together.
    """
    normal, groups = np.flatnonzero(index >= 0), np.arange(len(index))
    share = detector.calibration_share(len(normal))
    if isinstance(images, Features):
        groups = images.copies
    elif share > 0:
        found = near_copies_of(Chosen(images, normal), index[normal])
        groups[normal] = groups[normal] if found is None else normal[found]
    training, kept = split(index[normal], share, detector.seed, copies=groups[normal])
    if len(kept) == 0:  # all images are copies of each other
        training, kept = split(index[normal], share, detector.seed)
    return normal[training], normal[kept], groups


def kept_images(detector: "Detector", images: Any, labels: ArrayLike) -> NDArray[np.int64] | None:
    """The images that the output "nearest" of a fitted detector refers to, if it has one."""
    if "nearest" not in detector.gives or not isinstance(images, Features):
        return None
    _, index = indexed(labels, len(images))
    training, *_ = calibration_split(detector, images, index)
    return training[draw(index[training], CHANNELS, detector.seed)]


def _end(detector: "Detector", begun: _Begun) -> None:
    """Add the record, the calibration, the scale of heatmaps and the card after training."""
    data, kept = begun.given, begun.kept
    detector.record_ |= {
        "training_images": len(begun.training) - detector.record_.get("validation_images", 0),
        "calibration_images": len(kept),
        "near_copies": len(begun.training) - len(np.unique(begun.groups[begun.training])),
        **circumstances(pick_device(detector.device)),
    }
    if isinstance(data.images, Features):
        detector.record_["training_seconds"] += round(data.images.seconds, 3)
    if data.fit is not None:
        detector.record_["fit"] = asdict(data.fit)
    _calibrate(detector, data.images, begun.training, kept)
    _log.info(
        "preset %s, score function %s",
        detector.record_.get("preset", "none"),
        detector.score_function_,
    )
    detector.card_ = card_of(detector, data.index, kept)


def _calibrate(
    detector: "Detector",
    images: NDArray[Any],
    training: NDArray[np.int64],
    kept: NDArray[np.int64],
) -> None:
    """Compute scores and classes of the calibration set and the scale of heatmaps in one pass.

    Only the images that set the scale get heat: the heat of all may not fit into memory.
    """
    names = (*detector._usable_scores(), *({"class"} & set(detector.gives)))
    generator = np.random.default_rng([detector.seed, 0x4EA7])
    source = detector._heat_from()
    most = 0 if source is None else _MOST_HEATED
    shown = np.sort(generator.permutation(kept if len(kept) else training)[:most])
    rest = np.setdiff1d(kept, shown)
    parts = []
    detector.heat_scale_ = None
    if len(shown):
        assert source is not None
        found = detector._forward(images[shown], {*names, source})
        detector.heat_scale_ = heat.scale_of(heat.raw_heat(images[shown], found[source]))
        parts.append(found)
    if len(rest):
        parts.append(detector._forward(images[rest], set(names)))
    detector.calibration_scores_, detector.calibration_classes_ = {}, None
    if len(kept):
        order = np.argsort(np.concatenate([shown, rest]))
        whole = {name: np.concatenate([part[name] for part in parts])[order] for name in names}
        detector.calibration_classes_ = whole.pop("class", None)
        detector.calibration_scores_ = whole


def _chosen(detector: "Detector", begun: _Begun) -> Any:
    """The training images. They are copied only if the method needs an array."""
    if isinstance(begun.given.images, Features):
        return begun.given.images[begun.training]
    images = Chosen(begun.given.images, begun.training)
    return images if detector.learns_in_parts else images[:]


@contextmanager
def _whole_or_nothing(detectors: "Sequence[Detector]") -> Iterator[None]:
    """Forget everything if a fit fails or is stopped."""
    try:
        yield
    except BaseException:
        for detector in detectors:
            detector._forget()
        raise


def _stage_path(checkpoint: Path | None, stage: int) -> Path | None:
    """The checkpoint of a stage. A method with several networks has one for each."""
    if checkpoint is None or stage == 0:
        return checkpoint
    return checkpoint.with_name(f"{checkpoint.name}.{stage}")
