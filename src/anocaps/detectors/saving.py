"""Detectors to model files and back: docs/model-file.md says what is in one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from anocaps import modelfile
from anocaps.detectors.plugins import known_method
from anocaps.errors import InputError, ModelFileError

if TYPE_CHECKING:
    from anocaps.detectors.base import Detector


def save(detector: "Detector", path: str | Path) -> None:
    check_is_fitted(detector)
    arrays, learned = detector._learned()
    arrays |= {f"calibration.{k}": v for k, v in detector.calibration_scores_.items()}
    if detector.calibration_classes_ is not None:
        arrays["calibration_classes"] = detector.calibration_classes_.astype(np.int32)
    header = {
        "method": detector.method,
        "params": detector.get_params(),
        "classes": {"dtype": detector.classes_.dtype.str, "values": detector.classes_.tolist()},
        "record": detector.record_,
        "card": detector.card_,
        "heat_scale": detector.heat_scale_,
        "learned": learned,
    }
    modelfile.write(path, "model", arrays, header)


def load(path: str | Path, device: str = "auto") -> "Detector":
    """The detector that `save` wrote, ready to score on `device`."""
    arrays, header = modelfile.read(path, "model")
    try:
        detector = known_method(header["method"])(**(header["params"] | {"device": device}))
        classes = header["classes"]
        detector.classes_ = np.asarray(classes["values"], dtype=classes["dtype"])
        detector.record_ = header["record"]
        detector.card_ = header["card"]
        detector.heat_scale_ = header["heat_scale"]
        detector.calibration_scores_ = {
            name.removeprefix("calibration."): array
            for name, array in arrays.items()
            if name.startswith("calibration.")
        }
        predicted = arrays.get("calibration_classes")
        detector.calibration_classes_ = None if predicted is None else predicted.astype(np.int64)
        _check_calibration(detector)
        detector._relearn(arrays, header["learned"])
    except InputError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ModelFileError(
            f"{path}: its contents do not fit together ({type(error).__name__}); save it again"
        ) from error
    return detector


def _check_calibration(detector: "Detector") -> None:
    """One number of each score, and one class, for every calibration image."""
    columns: list[NDArray[Any]] = [*detector.calibration_scores_.values()]
    if columns and detector.calibration_classes_ is not None:
        columns.append(detector.calibration_classes_)
    if len({column.shape for column in columns}) > 1 or any(c.ndim != 1 for c in columns):
        raise InputError("the scores of the calibration images differ in number")


def arrays_of(module: torch.nn.Module) -> modelfile.Arrays:
    """A network's weights as arrays named `network.…`."""
    return {
        f"network.{name}": tensor.detach().contiguous().cpu().numpy()
        for name, tensor in module.state_dict().items()
    }


def fill(module: torch.nn.Module, arrays: modelfile.Arrays) -> None:
    """The inverse of `arrays_of`; in the memory order of training, since that decides rounding."""
    for part in module.modules():
        if isinstance(part, torch.nn.Conv2d | torch.nn.ConvTranspose2d):
            part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module.load_state_dict(
        {
            name.removeprefix("network."): torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith("network.")
        }
    )
