"""One file per method; importing this package makes every method known by its name."""

from anocaps.detectors.base import Detector
from anocaps.detectors.capsnet import CapsNetDetector
from anocaps.detectors.cnn_ocsvm import CNNOCSVMDetector
from anocaps.detectors.dbn import DBNDetector
from anocaps.detectors.plugins import find_method
from anocaps.detectors.saving import load
from anocaps.detectors.vae import VAEDetector

__all__ = [
    "CNNOCSVMDetector",
    "CapsNetDetector",
    "DBNDetector",
    "Detector",
    "VAEDetector",
    "find_method",
    "load",
]
