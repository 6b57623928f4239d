"""CapsNet and the paper's other methods. Each is a scikit-learn outlier detector.

Other rooms use the names below, `judge.DetectorJudge`, `fitting.fit_together`, `presets` and
`saving`. A name is imported on first use, because scoring alone needs no scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anocaps.detectors import scores as scores
    from anocaps.detectors.base import Detector as Detector
    from anocaps.detectors.baselines.cnn_ocsvm import CNNOCSVMDetector as CNNOCSVMDetector
    from anocaps.detectors.baselines.dbn import DBNDetector as DBNDetector
    from anocaps.detectors.baselines.vae import VAEDetector as VAEDetector
    from anocaps.detectors.capsnet import CapsNetDetector as CapsNetDetector
    from anocaps.detectors.plugins import find_method as find_method
    from anocaps.detectors.saving import load as load
    from anocaps.detectors.scorer import anomaly_scorer as anomaly_scorer

_MODULES = {
    "CNNOCSVMDetector": "baselines.cnn_ocsvm",
    "CapsNetDetector": "capsnet",
    "DBNDetector": "baselines.dbn",
    "Detector": "base",
    "VAEDetector": "baselines.vae",
    "anomaly_scorer": "scorer",
    "find_method": "plugins",
    "load": "saving",
}
__all__ = [
    "CNNOCSVMDetector",
    "CapsNetDetector",
    "DBNDetector",
    "Detector",
    "VAEDetector",
    "anomaly_scorer",
    "find_method",
    "load",
    "scores",
]


def __getattr__(name: str) -> Any:
    if name == "scores":
        return import_module("anocaps.detectors.scores")
    if name in _MODULES:
        return getattr(import_module(f"anocaps.detectors.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'anocaps.detectors' has no attribute {name!r}")
