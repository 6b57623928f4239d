"""What makes two cells the same: then the result of one is the result of the other.

A fingerprint covers dataset and its content, held-out classes, method and settings (and the file of
a method of your own, or a preset's version), seed, precision, protocol; not the device, the jobs or
the fleet.
"""

import hashlib
import json

from anocaps.base.errors import InputError
from anocaps.data import Dataset
from anocaps.detectors import CapsNetDetector, Detector, find_method
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
            f"method {cell.method!r} cannot be made ({error}): its constructor needs the arguments "
            "score, calibration, seed, device and scoring_precision"
        ) from error


def fingerprint_of(cell: Cell, dataset: Dataset, device: str) -> str:
    detector = detector_of(cell, device)
    params = detector.get_params()
    precision = pick_precision(params.pop("precision", "fp32"), pick_device(params.pop("device")))
    told = {**vars(cell), "settings": params, "precision": precision, "hashes": dataset.hashes}
    if source := own_source(find_method(cell.method)):
        told["source"] = source
    # the settings name a preset only; its first version goes without saying
    if isinstance(detector, CapsNetDetector):
        preset = find_preset(detector.preset)
        if preset.version > 1:
            told["preset_version"] = preset.version
        if detector.final_share is None:  # once no preset's but one number for all
            told["settings"] |= {"final_share": preset.final_share}
    if cell.mock and dataset.train.objects is not None:  # else every sixth image plays the test
        told["mock"] = "unseen objects"
    text = json.dumps([PROTOCOL_VERSION, told], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
