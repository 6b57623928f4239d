"""Image anomaly detection with capsule networks, for normal images of one or several classes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anocaps.detectors import CapsNetDetector as CapsNetDetector
    from anocaps.detectors import anomaly_scorer as anomaly_scorer
    from anocaps.detectors import load as load
    from anocaps.detectors import scores as scores
    from anocaps.images import ImageFolder as ImageFolder
    from anocaps.inspect.scoring import ScoredFile as ScoredFile
    from anocaps.inspect.scoring import score_files as score_files

__version__ = "0.1.0"

_MODULES = {
    "CapsNetDetector": "anocaps.detectors",
    "ImageFolder": "anocaps.images",
    "ScoredFile": "anocaps.inspect.scoring",
    "anomaly_scorer": "anocaps.detectors",
    "load": "anocaps.detectors",
    "score_files": "anocaps.inspect.scoring",
    "scores": "anocaps.detectors",
}
__all__ = [  # imported on first use
    "CapsNetDetector",
    "ImageFolder",
    "ScoredFile",
    "anomaly_scorer",
    "load",
    "score_files",
    "scores",
]


def __getattr__(name: str) -> Any:
    """Import torch only when a detector is first used, so that `anocaps --help` is instant."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'anocaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
