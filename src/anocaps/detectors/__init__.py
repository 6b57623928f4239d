"""One file per method; importing this package makes every method known by its name."""

from anocaps.detectors.base import Detector, find_method, load
from anocaps.detectors.capsnet import CapsNetDetector

__all__ = ["CapsNetDetector", "Detector", "find_method", "load"]
