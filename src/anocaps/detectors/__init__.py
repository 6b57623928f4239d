"""One file per method; importing this package makes every method known by its name."""

from anocaps.detectors.base import Detector, find_method, load
from anocaps.detectors.capsnet import CapsNetDetector
from anocaps.detectors.cnn_ocsvm import CNNOCSVMDetector
from anocaps.detectors.dbn import DBNDetector
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
