"""How the paper trained on each dataset, and what we do where it says nothing."""

from typing import Any

from anocaps.detectors import find_method

# Appendix A and C of the paper; Small-NORB: random 32×32 crops, and, as in Sabour et al.,
# every image standardised (what raw pixels cost: docs/reproduction.md).
_PAPER: dict[str, dict[str, Any]] = {
    "mnist": {"epochs": 20, "batch_size": 100},
    "fashion-mnist": {"epochs": 50, "batch_size": 100},
    "small-norb": {"epochs": 50, "batch_size": 64, "crop": 32, "standardize": True},
}


def settings_for(dataset: str, preset: str) -> dict[str, Any]:
    """Constructor arguments of a detector for a dataset, beside its preset's own."""
    if preset == "paper":
        return dict(_PAPER.get(dataset, {}))
    if dataset == "small-norb":
        return {"crop": 32, "standardize": True}
    return {}


def accepted(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those settings that the method knows: a VAE has no preset, a DBN standardises nothing."""
    known = find_method(method)._get_param_names()
    return {name: value for name, value in settings.items() if name in known}
