"""The facts of a model card: the training images, and what to expect of the model.

`fit` collects them, and the model file stores them. The command `train` adds facts about the files
and the result of the self-check. All values are JSON. `anocaps.inspect.card` writes the text.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anocaps.images.decode import Fit, describe
from anocaps.judging.calibration import smallest_alpha

if TYPE_CHECKING:
    from anocaps.detectors.base import Detector

Card = dict[str, Any]

_ASKED_FOR = "it was asked for"  # the reason for a preset or a score function


def card_of(detector: "Detector", index: NDArray[np.int64], kept: NDArray[np.int64]) -> Card:
    """The card of a fitted detector. `index`: classes of the images; `kept`: calibration set."""
    record, shape = detector.record_, detector.preprocessing_
    normal = index[index >= 0]
    counts = np.bincount(normal, minlength=len(detector.classes_))
    number = "one class" if len(counts) == 1 else f"{len(counts)} classes"
    chosen = f'"auto" chose it for {number} of {shape.width}×{shape.height} images'
    return {
        "images": len(normal),
        "classes": {str(name): int(n) for name, n in zip(detector.classes_, counts)},
        "size": [shape.height, shape.width, shape.channels],
        "fit": describe(Fit(**record["fit"])) if "fit" in record else None,  # a sentence
        "working_size": record.get("size"),  # height and width that the stem of `photo` sees
        "pretrained": record.get("pretrained"),  # dataset that the stem was trained on
        "skipped": 0,
        "skipped_files": [],  # some of them: name, reason
        "copies": 0,  # copies of other images, which were left out
        "near_copies": record.get("near_copies", 0),  # images that resemble another one
        "passed_over": {},  # extension → number of files that are no images
        "training_images": record["training_images"],
        "validation_images": record.get("validation_images", 0),
        "calibration_images": len(kept),
        "training_seconds": record.get("training_seconds"),
        "accuracy": _accuracy(detector, index[kept]),
        "smallest_alpha": smallest_alpha(len(kept)) if len(kept) else None,
        "preset": record.get("preset"),
        "preset_reason": chosen if getattr(detector, "preset", None) == "auto" else _ASKED_FOR,
        "score_function": detector.score_function_,
        "score_function_reason": chosen if detector.score_function == "auto" else _ASKED_FOR,
        "self_check": None,
    }


def _accuracy(detector: "Detector", calibration: NDArray[np.int64]) -> dict[str, Any] | None:
    """Accuracy on validation images, or on calibration images if there are none."""
    record, predicted = detector.record_, detector.calibration_classes_
    if len(detector.classes_) == 1:
        return None
    if "validation_accuracy" in record:
        return {"share": record["validation_accuracy"], "images": record["validation_images"]}
    if predicted is None:
        return None
    return {"share": float(np.mean(predicted == calibration)), "images": len(predicted)}
