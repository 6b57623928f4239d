"""Save detectors to model files and load them. docs/model-file.md describes the file."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from anocaps.base import arrayfile as modelfile
from anocaps.base.errors import AnocapsError, InputError, ModelFileError
from anocaps.detectors.plugins import known_method
from anocaps.images.decode import Fit
from anocaps.images.limits import MOST_PIXELS
from anocaps.judging.calibration import check_card, check_finite, check_joined, check_scores
from anocaps.judging.heat import check_scale, heatmaps
from anocaps.training.device import PRECISIONS, pick_device
from anocaps.training.memory import ran_out

if TYPE_CHECKING:
    from anocaps.detectors.base import Detector
    from anocaps.detectors.verdicts import Verdicts

Network = TypeVar("Network", bound=torch.nn.Module)
Kind = TypeVar("Kind", bound="Verdicts")


def save(detector: "Detector", path: str | Path) -> None:
    arrays, learned = detector._learned()
    arrays |= {f"calibration.{k}": v for k, v in detector.calibration_scores_.items()}
    if detector.calibration_classes_ is not None:
        arrays["calibration_classes"] = detector.calibration_classes_.astype(np.int32)
    header = {
        "method": detector.method,
        "params": detector.get_params(),
        "classes": {"dtype": detector.classes_.dtype.str, "values": detector.classes_.tolist()},
        "record": detector.record_,
        "score_function": detector.score_function_,
        "card": detector.card_,
        "heat_scale": detector.heat_scale_,
        "learned": learned,
    }
    modelfile.write(path, "model", arrays, header)


def load(path: str | Path, device: str = "auto") -> "Detector":
    """Load the detector that `save` wrote.

    Parameters
    ----------
    path : path
        A model file, .safetensors.
    device : str, default="auto"
        The device of scoring: "auto", "cpu" or "cuda".

    Returns
    -------
    detector : Detector
        Ready to score.
    """
    return _loaded(path, device, known_method)


def load_scoring(path: str | Path, device: str = "auto") -> "Verdicts":
    """Load the half of a detector that scores. CapsNet then needs no scikit-learn."""
    return _loaded(path, device, _scoring_half)


def _scoring_half(method: str) -> "type[Verdicts]":
    if method == "capsnet":
        from anocaps.detectors.capsnet_scoring import CapsNetScoring

        return CapsNetScoring
    return known_method(method)


def _loaded(path: str | Path, device: str, find: Callable[[str], type[Kind]]) -> Kind:
    """Load a file as the class that `find` returns for its method.

    The checksum does not show whether the contents make sense. All wrong contents raise a
    ModelFileError here, not an error in the middle of a run.
    """
    pick_device(device)  # raises an error if there is no such device
    arrays, header = modelfile.read(path, "model")
    try:
        detector = find(header["method"])(**(header["params"] | {"device": device}))
        detector.classes_ = _classes(**header["classes"])
        detector.record_ = header["record"]
        detector.card_ = header["card"]
        detector.score_function_ = header["score_function"]
        detector.heat_scale_ = header["heat_scale"]
        detector.checksum_ = header["checksum"]
        detector.calibration_scores_ = {
            name.removeprefix("calibration."): array
            for name, array in arrays.items()
            if name.startswith("calibration.")
        }
        predicted = arrays.get("calibration_classes")
        if predicted is not None and predicted.dtype.kind != "i":
            raise InputError("the classes of its calibration images are no whole numbers")
        detector.calibration_classes_ = None if predicted is None else predicted.astype(np.int64)
        check_finite([header, *arrays.values()])
        detector._relearn(arrays, header["learned"])
        _check(detector)
        _check_calibration(detector)
        _try(detector)
    except AnocapsError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except Exception as error:  # bad contents make NumPy and torch fail in many ways
        wrong = (
            "need more memory than there is"
            if ran_out(error)
            else f"are inconsistent ({type(error).__name__})"
        )
        raise ModelFileError(f"{path}: its contents {wrong}; save it again") from error
    return detector


# ── checks ───────────────────────────────────────────────────────────────────────────────────


def _classes(dtype: str, values: list[Any]) -> NDArray[Any]:
    """The classes as an array. They must be distinct numbers or words, as from `gate.indexed`."""
    kind = np.dtype(str(dtype)).kind
    classes = np.asarray(values, "U" if kind == "U" else dtype)  # "U": text of any length
    sensible = kind in "iufbU" and len(values) > 0 and classes.tolist() == values
    if not (sensible and classes.ndim == 1 and len(np.unique(classes)) == len(classes)):
        raise InputError("its list of classes is damaged")
    return classes


def _check(detector: "Verdicts") -> None:
    """Check types and sizes in the rest of the header."""
    for name in ("record_", "card_"):
        if not isinstance(getattr(detector, name), dict):
            raise InputError(f"its {name.rstrip('_')} is damaged")
    detector._check_known(detector.score_function_)
    if detector.scoring_precision not in PRECISIONS:
        raise InputError("its scoring_precision is neither 'fp32' nor 'bf16'")
    if detector.heat_scale_ is not None:
        check_scale(detector.heat_scale_)
    stored, size = detector.record_.get("fit"), detector.preprocessing_
    if stored is not None:
        fit = Fit(**stored)
        if (fit.height, fit.width, fit.channels) != (size.height, size.width, size.channels):
            raise InputError("its image size does not fit its network")


def _check_calibration(detector: "Verdicts") -> None:
    """Check that every calibration image has one number for each score, and one class."""
    found, chosen = detector.calibration_scores_, detector.calibration_classes_
    images = detector.record_.get("calibration_images", max(map(len, found.values()), default=0))
    check_card(detector.card_, images)
    if set(found) != (set(detector._usable_scores()) if images else set()):
        raise InputError("its calibration set has other score functions than the model")
    for name, scores in found.items():
        check_scores(scores, images, detector._range(name))
    if (chosen is not None) != (bool(images) and "class" in detector.gives):
        raise InputError("the classes of its calibration images are missing or unexpected")
    if chosen is not None:
        known = (chosen >= 0) & (chosen < len(detector.classes_))
        if chosen.shape != (images,) or not known.all():
            raise InputError("its calibration images have unknown classes")
    if images:
        given = found if chosen is None else found | {"class": chosen}
        for name, follows in detector._joined(given).items():
            check_joined(name, found[name], follows)


def _try(detector: "Verdicts") -> None:
    """Score a test image. Inconsistent parts fail here."""
    size = detector.preprocessing_
    shape = (1, size.height, size.width, size.channels)
    if prod(shape) > MOST_PIXELS:
        raise InputError("its images are larger than any file that can be read")
    image = np.resize(np.arange(256, dtype=np.uint8), shape)
    names = detector._usable_scores()
    found = detector._forward(image, {*names, *detector.gives})
    if any(np.shape(found[name]) != (1,) for name in names):
        raise InputError("it does not give one number per score and image")
    if not all(np.isfinite(found[name]).all() for name in names):
        raise InputError("its scores are not finite")
    source = detector._heat_from()
    if detector.heat_scale_ is not None and source is not None:
        heatmaps(image, found[source], detector.heat_scale_)


# ── networks ─────────────────────────────────────────────────────────────────────────────────


def arrays_of(module: torch.nn.Module) -> modelfile.Arrays:
    """A network's weights as arrays named `network.…`."""
    return {
        f"network.{name}": tensor.detach().contiguous().cpu().numpy()
        for name, tensor in module.state_dict().items()
    }


def rebuilt(build: Callable[[], Network], arrays: modelfile.Arrays) -> Network:
    """The inverse of `arrays_of`: build the network and load these weights.

    Sizes are compared first, so that a header cannot demand more memory than its file has.
    """
    weights = {
        name.removeprefix("network."): torch.from_numpy(array)
        for name, array in arrays.items()
        if name.startswith("network.")
    }
    sizes = {name: weight.numel() for name, weight in outline(build).state_dict().items()}
    if sizes != {name: weight.numel() for name, weight in weights.items()}:
        raise InputError("its weights do not fit the network that it describes")
    with _NoStart():
        network = build()
    for part in network.modules():  # the memory order of training, since it affects rounding
        if isinstance(part, torch.nn.Conv2d | torch.nn.ConvTranspose2d):
            part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.load_state_dict(weights)
    return network


def outline(build: Callable[[], Network]) -> Network:
    """The network that `build` makes, with weights that have sizes but take no memory."""
    with _NoStart(), torch.device("meta"):
        return build()


class _NoStart(TorchFunctionMode):
    """Skip `torch.nn.init`: weights come from a file.

    On the meta device, initialisation would import torch's compiler.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == torch.nn.init.__name__:
            return kwargs.get("tensor", args[0] if args else None)
        return func(*args, **kwargs)
