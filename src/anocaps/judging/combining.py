"""Several normality scores joined into one: `combined`, and the two halves of `patch`.

Each score becomes a surprise, −log p among the scores of normal images that were not trained on.
Below the lowest tenth of these the p-value is extrapolated by an exponential tail: beyond all
normal images a more anomalous image still gets a higher surprise.

Fisher's rule adds surprises; it is right where each score sees something of every anomaly.
Bonferroni's rule takes the largest after each score has paid for its share of false alarms; it is
right where an anomaly shows in one score only. The result is calibrated like any other score, so
neither rule needs the scores to be independent.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

TAIL = 0.1  # the share of normal scores that the exponential tail is fitted to
FEWEST_OF_CLASS = 20  # normal images of a class that give it p-values of its own
MOST_NORMAL = 5000  # scores that a reference keeps: more change no p-value that counts


@dataclass(frozen=True)
class Reference:
    """Scores of normal images, as much of them as a p-value needs."""

    normal: Values  # sorted

    @classmethod
    def fit(cls, scores: NDArray[Any]) -> Self:
        """Every k-th of the sorted scores where they are very many."""
        ordered = np.sort(np.asarray(scores, dtype=np.float64))
        if len(ordered) > MOST_NORMAL:
            place = np.linspace(0, len(ordered) - 1, MOST_NORMAL).round().astype(int)
            ordered = ordered[place]
        return cls(ordered)

    def surprise(self, scores: NDArray[Any]) -> Values:
        """−log p of each score; 0 is usual."""
        normal, count = self.normal, len(self.normal)
        below = np.searchsorted(normal, scores, side="right")
        found = -np.log((below + 1) / (count + 1))
        tail = int(TAIL * count)
        if tail < 2:
            return found
        start = normal[tail]
        slope = np.mean(start - normal[:tail])
        if slope <= 0:  # the lowest scores are all alike: nothing to extrapolate
            return found
        return np.where(scores < start, (start - scores) / slope - np.log(tail / count), found)


@dataclass(frozen=True)
class ClassReferences:
    """References over all normal images and within each class that has enough of them."""

    everything: Reference
    of_class: dict[int, Reference]

    @classmethod
    def fit(cls, scores: NDArray[Any], classes: NDArray[np.int64] | None) -> Self:
        """`classes` are those that the normal images are given, as indices."""
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
        """The sum of both; a class without a reference of its own counts everything twice."""
        usual = self.everything.surprise(scores)
        within = usual.copy()
        for c, reference in self.of_class.items() if classes is not None else ():
            chosen = classes == c
            within[chosen] = reference.surprise(scores[chosen])
        return usual + within


def bonferroni(surprises: dict[str, Values], shares: dict[str, float]) -> Values:
    """The largest surprise, each less what its share of the false alarms costs."""
    found = np.max([surprises[k] + np.log(share) for k, share in shares.items()], axis=0)
    return np.asarray(found, dtype=np.float64)
