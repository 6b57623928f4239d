"""Checkpoints: one file with the state of a training run, so that a stopped run can continue.

A file holds the weights, Adam's moments, the learning rate, the epoch and the losses. With early
stopping it also holds the best weights. `restore` checks the whole file before it changes the run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base import arrayfile
from anocaps.base.errors import ModelFileError

if TYPE_CHECKING:
    from anocaps.training.loop import Run

_MOST = 10.0  # of the ratio of Adam's moments
_ROUNDED = 1e-16  # of a moment whose square is rounded to zero


def save(run: "Run", path: Path) -> None:
    header = {"fingerprint": run.fingerprint, "epoch": run.epoch, "losses": run.losses}
    if run.validation is not None:
        header["validation_losses"] = run.validation.losses
    arrays = {name: _array(tensor) for name, tensor in _tensors(run).items()}
    arrayfile.write(path, "checkpoint", arrays, header)


def restore(run: "Run", path: Path) -> None:
    """Continue from a checkpoint of the same run. Refuse every other file."""
    arrays, header = arrayfile.read(path, "checkpoint")
    _check_header(run, path, header)
    run.prepare()  # resets Adam's moments
    if run.validation is not None:
        run.validation.best = {k: v.clone() for k, v in run.network.state_dict().items()}
    places = _tensors(run)
    _check_arrays(path, arrays, places)
    _check_values(run, path, arrays, header["epoch"] * run.steps)
    with torch.no_grad(), run.on_stream():
        for name, place in places.items():
            place.copy_(torch.from_numpy(arrays[name]).view(place.shape))
    run.epoch, run.losses = header["epoch"], list(header["losses"])
    if run.validation is not None:
        run.validation.losses = list(header["validation_losses"])


def _tensors(run: "Run") -> dict[str, Tensor]:
    """The tensors of a checkpoint by name: the run's own tensors, not copies."""
    found = {f"network.{k}": v for k, v in run.network.state_dict().items()}
    for k, parameter in run.network.named_parameters():
        moments = run.optimizer.state[parameter]
        found |= {f"adam.{name}.{k}": value for name, value in moments.items()}
    if run.validation is not None:
        found |= {f"best.{k}": v for k, v in run.validation.best.items()}
    return found | {"rate": run.rate}


def _array(tensor: Tensor) -> NDArray[Any]:
    """An array with one axis or more: safetensors cannot store NumPy scalars."""
    return np.atleast_1d(tensor.detach().contiguous().cpu().numpy())


def _check_header(run: "Run", path: Path, header: Any) -> None:
    if not isinstance(header, dict) or header.get("fingerprint") != run.fingerprint:
        raise ModelFileError(
            f"{path}: this checkpoint has other data or settings; "
            "use the same ones, or train without resume"
        )
    epoch = header.get("epoch")
    if type(epoch) is not int or not 0 <= epoch <= run.config.epochs:
        _refuse(path, f"its epoch is {epoch!r} of {run.config.epochs}")
    names = ["losses"] if run.validation is None else ["losses", "validation_losses"]
    for name in names:
        values = header.get(name)
        if not isinstance(values, list) or len(values) != epoch or not _all_finite(values):
            _refuse(path, f"its {name} are not {epoch} finite numbers")


def _check_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], places: Mapping[str, Tensor]
) -> None:
    """Check names, shapes, types, and that all numbers are finite."""
    if arrays.keys() != places.keys():
        _refuse(path, f"{min(arrays.keys() ^ places.keys())} is missing or unknown")
    for name, array in arrays.items():
        expected = _array(places[name])
        if (array.shape, array.dtype) != (expected.shape, expected.dtype):
            _refuse(path, f"{name} is {array.dtype} {array.shape}")
        if not np.isfinite(array).all():
            _impossible(path, name)


def _check_values(run: "Run", path: Path, arrays: Mapping[str, NDArray[Any]], steps: int) -> None:
    """Refuse what so many steps of Adam cannot reach. Such values would end in a loss of nan.

    Adam's decays of 0.9 and 0.999 bound the ratio of its moments: |exp_avg| < 7.3 √exp_avg_sq. The
    ratio also bounds a step, in learning rates. The network has its initial weights here.
    """
    highest = run.config.learning_rate
    if not 0 < arrays["rate"][0] <= np.float32(highest):
        _impossible(path, "rate")
    for name, parameter in run.network.named_parameters():
        step, mean, square = (f"adam.{each}.{name}" for each in ("step", "exp_avg", "exp_avg_sq"))
        if not 0 <= arrays[step][0] <= steps:
            _impossible(path, step)
        if (arrays[square] < 0).any():
            _impossible(path, square)
        if (np.abs(arrays[mean]) > _MOST * np.sqrt(arrays[square]) + _ROUNDED).any():
            _impossible(path, mean)
        farthest = 2 * float(parameter.detach().abs().max()) + _MOST * highest * steps
        for weights in {f"network.{name}", f"best.{name}"} & arrays.keys():
            if (np.abs(arrays[weights]) > farthest).any():
                _impossible(path, weights)
    for name in arrays:
        if name.endswith("running_var") and (arrays[name] < 0).any():
            _impossible(path, name)


def _impossible(path: Path, name: str) -> NoReturn:
    _refuse(path, f"{name} has impossible values")


def _all_finite(values: list[Any]) -> bool:
    return all(type(value) is float and np.isfinite(value) for value in values)


def _refuse(path: Path, why: str) -> NoReturn:
    raise ModelFileError(f"{path}: this checkpoint is damaged ({why}); train without resume")
