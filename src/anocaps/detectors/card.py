"""The facts of a model card: what a model was trained on and what to expect of it.

They are gathered at the end of `fit` and stored in the model file; whoever read the images from
files adds which, and the self-check adds what it found. Everything in them can be written as JSON.
`anocaps.inspect.card` puts them into words.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anocaps.judging.calibration import smallest_alpha

if TYPE_CHECKING:
    from anocaps.detectors.base import Detector

Card = dict[str, Any]


ASKED_FOR = "it was asked for"  # a reason for a preset or a score function
USUAL = "the usual one"  # the reason where "auto" chose


def card_of(detector: "Detector", index: NDArray[np.int64], kept: NDArray[np.int64]) -> Card:
    """Of a detector whose fit is about to end; class `index` of all images, who calibrates."""
    record, shape = detector.record_, detector.preprocessing_
    normal = index[index >= 0]
    counts = np.bincount(normal, minlength=len(detector.classes_))
    return {
        "images": len(normal),
        "classes": {str(name): int(n) for name, n in zip(detector.classes_, counts)},
        "size": [shape.height, shape.width, shape.channels],
        "fit": None,  # a sentence, where images were files
        "skipped": 0,
        "skipped_files": [],  # the first of them: name, reason
        "copies": 0,  # left out, each the same image as another
        "passed_over": {},  # extension → number of files that are not taken for images
        "training_images": record["training_images"],
        "validation_images": record.get("validation_images", 0),
        "calibration_images": len(kept),
        "training_seconds": record.get("training_seconds"),
        "accuracy": _accuracy(detector, index[kept]),
        "smallest_alpha": smallest_alpha(len(kept)) if len(kept) else None,
        "preset": record.get("preset"),
        "preset_reason": _reason(getattr(detector, "preset", None)),
        "score_function": detector.score_function_,
        "score_function_reason": _reason(detector.score_function),
        "self_check": None,
    }


def _reason(given: str | None) -> str:
    return USUAL if given == "auto" else ASKED_FOR


def _accuracy(detector: "Detector", calibration: NDArray[np.int64]) -> dict[str, Any] | None:
    """On validation images or, where there are none, on calibration images."""
    record, predicted = detector.record_, detector.calibration_classes_
    if len(detector.classes_) == 1:
        return None
    if "validation_accuracy" in record:
        return {"share": record["validation_accuracy"], "images": record["validation_images"]}
    if predicted is None:
        return None
    return {"share": float(np.mean(predicted == calibration)), "images": len(predicted)}
