"""Join several normality scores into one: `combined`, and the two parts of `patch`.

Each score becomes a surprise: −log p among the scores of normal images that are not in the
calibration set. For the lowest tenth of these scores, an exponential tail extrapolates the p-value.
So below all normal images, a more anomalous image still gets a higher surprise. A surprise is a
continuous function of the score, so that a small rounding error stays small.

Fisher's rule adds the surprises. It suits scores that each show a part of every anomaly.
Bonferroni's rule gives each score a share of the false alarms and takes the largest surprise. It
suits anomalies that only one score shows. The result is calibrated like any other score, so neither
rule needs independent scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError

Values = NDArray[np.float64]

TAIL = 0.1  # share of normal scores that the exponential tail is fitted to
FEWEST_OF_CLASS = 20  # normal images that the reference of a class needs
MOST_NORMAL = 5000  # normal images to score for a reference; more hardly change a p-value
_POINTS = 100  # of a reference
_LEAST_STEP = 0.01  # between points, in standard deviations; smaller steps amplify rounding
_FAR = 1e6  # where the tail ends, in tail lengths


@dataclass(frozen=True)
class Reference:
    """The surprise as a function of the score: points to interpolate between."""

    points: Values  # [2, K]: rising scores and their falling surprises

    @classmethod
    def fit(cls, scores: NDArray[Any]) -> Self:
        ordered = np.sort(np.asarray(scores, dtype=np.float64))
        count, tail = len(ordered), int(TAIL * len(ordered))
        scale = max(float(ordered.std()), 1e-6 * max(1.0, float(np.abs(ordered).max())))
        start = ordered[tail]
        length = float(np.mean(start - ordered[:tail])) if tail > 1 else scale
        length = max(length, _LEAST_STEP * scale)
        found: list[tuple[float, float]] = []  # score and surprise
        for place in np.unique(np.linspace(tail, count - 1, _POINTS).round().astype(int)):
            if not found or ordered[place] >= found[-1][0] + _LEAST_STEP * scale:
                found.append((ordered[place], -np.log((place + 2) / (count + 1))))
        found.insert(0, (start - _FAR * length, found[0][1] + _FAR))
        return cls(np.array(found).T)

    def surprise(self, scores: NDArray[Any]) -> Values:
        """−log p of each score. 0 is the most normal."""
        return np.asarray(np.interp(scores, *self.points), dtype=np.float64)


@dataclass(frozen=True)
class ClassReferences:
    """References among all normal images and within each class that has enough of them."""

    everything: Reference
    of_class: dict[int, Reference]

    @classmethod
    def fit(cls, scores: NDArray[Any], classes: NDArray[np.int64] | None) -> Self:
        """`classes`: the predicted classes of the normal images, as indices."""
        if classes is None:
            return cls(Reference.fit(scores), {})
        found, counts = np.unique(classes, return_counts=True)
        return cls(
            Reference.fit(scores),
            {
                int(c): Reference.fit(scores[classes == c])
                for c, count in zip(found, counts)
                if count >= FEWEST_OF_CLASS
            },
        )

    def surprise(self, scores: NDArray[Any], classes: NDArray[np.int64] | None) -> Values:
        """The surprise among all images plus that within the class. A small class has no reference,
        so the first counts twice."""
        usual = self.everything.surprise(scores)
        within = usual.copy()
        for c, reference in self.of_class.items() if classes is not None else ():
            chosen = classes == c
            within[chosen] = reference.surprise(scores[chosen])
        return usual + within


def arrays_of(references: Mapping[str, ClassReferences]) -> dict[str, Values]:
    """The points by name: `reference.SCORE` and `reference.SCORE.CLASS`."""
    found = {}
    for name, each in references.items():
        found[f"reference.{name}"] = each.everything.points
        found |= {f"reference.{name}.{c}": one.points for c, one in each.of_class.items()}
    return found


def references_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, ClassReferences]:
    """The inverse of `arrays_of`. It refuses points that `fit` cannot have made."""
    found: dict[str, ClassReferences] = {}
    for key in sorted(key for key in arrays if key.startswith("reference.")):
        _, name, *of_class = key.split(".")
        points = arrays[key]
        pairs = points.dtype == np.float64 and points.ndim == 2 and len(points) == 2
        pairs = pairs and points.shape[1] > 1
        if not (pairs and (np.diff(points[0]) > 0).all() and (np.diff(points[1]) < 0).all()):
            raise InputError(f"its reference of {name} is damaged")
        if of_class:
            found[name].of_class[int(of_class[0])] = Reference(points)
        else:
            found[name] = ClassReferences(Reference(points), {})
    return found


def fisher(surprises: Mapping[str, Values]) -> Values:
    """The sum of all surprises, always in the same order, which affects the rounding."""
    return np.asarray(np.sum([surprises[k] for k in sorted(surprises)], axis=0), dtype=np.float64)


def bonferroni(surprises: Mapping[str, Values], shares: Mapping[str, float]) -> Values:
    """The largest surprise + log(share). `shares`: each score's share of the false alarms."""
    found = np.max([surprises[k] + np.log(share) for k, share in shares.items()], axis=0)
    return np.asarray(found, dtype=np.float64)
