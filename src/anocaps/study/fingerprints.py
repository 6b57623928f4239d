"""When two cells are the same: the fingerprint is the hash of a description of the cell.

The description holds what the study asks for, the content of the dataset and the versions of what
is asked for by name. Whatever a cell leaves at its default is left out, so a new option changes no
fingerprint. Device, jobs and score function are left out too: they do not change training.
A changed default changes what finished cells mean: raise the preset's version or PROTOCOL_VERSION.
"""

import hashlib
import json
from dataclasses import MISSING, fields
from typing import Any

from anocaps.base.errors import InputError
from anocaps.data import Dataset
from anocaps.detectors import Detector, find_method
from anocaps.detectors.plugins import own_source
from anocaps.detectors.presets import find_preset
from anocaps.study.protocol import PROTOCOL_VERSION
from anocaps.study.studies import Cell
from anocaps.training.device import pick_device, pick_precision


def detector_of(cell: Cell, device: str) -> Detector:
    settings = {**cell.settings, "calibration": 0.0, "seed": cell.seed, "device": device}
    try:
        return find_method(cell.method)(**settings)
    except TypeError as error:
        raise InputError(
            f"method {cell.method!r} cannot be made ({error}): its constructor must take the "
            "arguments that docs/your-own-method.md names"
        ) from error


def fingerprint_of(cell: Cell, dataset: Dataset, device: str) -> str:
    text = json.dumps(describe(cell, dataset, device), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(cell: Cell, dataset: Dataset, device: str) -> dict[str, Any]:
    """The cell as JSON values; a device matters only where it decides the precision."""
    description = {
        field.name: value
        for field in fields(cell)
        if (value := getattr(cell, field.name)) != _default(field)
    }
    settings = {name: value for name, value in cell.settings.items() if name != "precision"}
    precision = detector_of(cell, device).get_params().get("precision", "fp32")
    description |= {
        "protocol": PROTOCOL_VERSION,
        "hashes": dataset.hashes,
        "settings": settings,
        "precision": pick_precision(precision, pick_device(device)),
    }
    if preset := settings.get("preset"):
        description["preset_version"] = find_preset(preset).version
    if source := own_source(find_method(cell.method)):
        description["source"] = source
    return description


def _default(field: Any) -> Any:
    """MISSING, which equals nothing, where a field has no default."""
    return field.default if field.default_factory is MISSING else field.default_factory()
