"""One tuning rule for every method that it tunes. It was fixed before its first run.

- Every method has four choices of settings: as described, and three that change one setting.
- GEOM, AnoGAN and matrix capsules are not tuned: trainings with all epochs take too long.
- Mock anomalies come from training images alone (protocol.mock_dataset). Two classes that are
  neighbours in the dataset's order are held out together. Every class is in two of these pairs.
- A network without the classes a and b serves two cells. For the cell that holds out a, the mock
  anomaly is b. For the cell that holds out b, it is a. So the class that a cell holds out does not
  affect the cell's choice: it is neither trained on nor tested on. So a choice rests on two mock
  anomalies, the neighbours of the cell's class.
- Networks are trained with all epochs and images of the study, and with seed 0.
- A cell takes the choice with the highest mean AUROC over its mock anomalies and the method's
  scores. If several are equal, it takes the first.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from anocaps.base.errors import InputError
from anocaps.judging.metrics import auroc
from anocaps.study.cell import CellResult

TUNED = "tuned"  # the variant of cells with chosen settings
DESCRIBED = "as described"

Choices: TypeAlias = Mapping[str, Mapping[str, Mapping[str, str]]]  # dataset, method, class → name

_SHIFTS = {"shifts of 2 pixels": {"shift": 2}}
_EPOCHS = {"1 epoch": {"epochs": 1}, "5 epochs": {"epochs": 5}}
_WIDTHS = {f"width ×{factor:g}": {"widen": factor} for factor in (0.5, 2.0, 4.0)}  # of a kernel
_CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "capsnet": {
        "reconstruction ×8": {"reconstruction_weight": 0.004},
        "decay to a tenth": {"final_share": 0.1},
        **_SHIFTS,
    },
    "cnn-ocsvm": _EPOCHS | _SHIFTS,
    "vae": _EPOCHS | _SHIFTS,
    "dbn": _EPOCHS | _SHIFTS,
    "cnn-scores": _EPOCHS | _SHIFTS,
    "vae-scores": _EPOCHS | _SHIFTS,
    "dbn-scores": _EPOCHS | _SHIFTS,
    "deep-svdd": _EPOCHS | _SHIFTS,
    "kde": _WIDTHS,
    "svm": _WIDTHS,
}
METHODS = tuple(_CHANGES)
# The scores whose AUROC decides: those that the paper names, or the method's own.
_SCORES = {
    "capsnet": ("pp", "re"), "cnn-ocsvm": ("ocsvm",), "vae": ("re",), "dbn": ("re",),
    "cnn-scores": ("knn",), "vae-scores": ("elbo",), "dbn-scores": ("energy",),
    "deep-svdd": ("distance",), "kde": ("pixels", "pca"), "svm": ("rbf",),
}  # fmt: skip


def changes(method: str) -> dict[str, dict[str, Any]]:
    """The choices of a method: name → changed settings."""
    if method not in _CHANGES:
        raise InputError(f"tuning has no choices for {method!r}: use {', '.join(_CHANGES)}")
    return {DESCRIBED: {}, **_CHANGES[method]}


def pairs(classes: Sequence[str]) -> list[tuple[str, str]]:
    """Each class with the next one, and the last with the first."""
    return [(name, classes[(k + 1) % len(classes)]) for k, name in enumerate(classes)]


def mock_aurocs(results: Iterable[CellResult]) -> dict[tuple[str, str, str], dict[str, float]]:
    """(dataset, method, class) → choice → mean mock AUROC; only if all choices are measured."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for result in results:
        for held_out, mock in (result.held_out, result.held_out[::-1]):
            anomalous = result.labels == result.class_names.index(mock)
            scores = [result.scores[name] for name in _SCORES[result.method]]
            each = [auroc(s[~result.anomalous], s[anomalous]) for s in scores]
            key = result.dataset, result.method, held_out
            found.setdefault(key, {}).setdefault(result.variant, []).append(fmean(each))
    return {
        key: {choice: fmean(each[choice]) for choice in changes(key[1])}
        for key, each in found.items()
        if all(len(each.get(choice, ())) == 2 for choice in changes(key[1]))
    }


def chosen(results: Iterable[CellResult]) -> dict[str, dict[str, dict[str, str]]]:
    """The choices of the rule: dataset → method → held-out class → choice."""
    taken: dict[str, dict[str, dict[str, str]]] = {}
    for (dataset, method, held_out), each in mock_aurocs(results).items():
        best = list(each)[int(np.argmax(list(each.values())))]
        taken.setdefault(dataset, {}).setdefault(method, {})[held_out] = best
    return taken
