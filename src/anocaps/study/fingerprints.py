"""The fingerprint of a cell: the hash of a description of it. Equal fingerprints mean equal cells.

The description holds the cell's settings, the dataset's checksums, and the versions of protocol and
preset. Settings at their default are left out, so a new option changes no fingerprint. Device,
jobs, score function and the variant's name are left out too, since they do not change training. If
you change a default, raise the preset's version or PROTOCOL_VERSION.
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

_FORMER_NAMES = {"paper-tuned": "paper"}  # preset → its name when its cells were run


def detector_of(cell: Cell, device: str) -> Detector:
    settings = {**cell.settings, "calibration": 0.0, "seed": cell.seed, "device": device}
    try:
        return find_method(cell.method)(**settings)
    except TypeError as error:
        raise InputError(
            f"method {cell.method!r}: its constructor lacks an argument ({error}); see "
            "docs/your-own-method.md"
        ) from error


def fingerprint_of(cell: Cell, dataset: Dataset, device: str) -> str:
    text = json.dumps(describe(cell, dataset, device), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(cell: Cell, dataset: Dataset, device: str) -> dict[str, Any]:
    """The cell as JSON values. The device matters only if it decides the precision."""
    description = {
        field.name: value
        for field in fields(cell)
        if (value := getattr(cell, field.name)) != _default(field) and field.name != "variant"
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
        settings["preset"] = _FORMER_NAMES.get(preset, preset)
    if source := own_source(find_method(cell.method)):
        description["source"] = source
    return description


def _default(field: Any) -> Any:
    """The default of a dataclass field; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()
