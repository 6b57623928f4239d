"""Image anomaly detection with capsule networks, for normal images of several classes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anocaps.detectors import CapsNetDetector as CapsNetDetector
    from anocaps.detectors import load as load
    from anocaps.images import ImageFolder as ImageFolder

__all__ = ["CapsNetDetector", "ImageFolder", "load"]
__version__ = "0.1.0"

_MODULES = {
    "CapsNetDetector": "anocaps.detectors",
    "ImageFolder": "anocaps.images",
    "load": "anocaps.detectors",
}


def __getattr__(name: str) -> Any:
    """Import torch only when a detector is asked for: `anocaps --help` stays instant."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'anocaps' has no attribute {name!r}")
