"""The score `knn`: how near an image is to normal images, in the space of class capsules.

The class capsules of some training images are kept as unit vectors. An image's score is minus the
mean cosine distance to the 5 nearest of them. It is 0 for equal vectors and −1 at right angles. One
class is enough.

A kept image has distance 0 to itself. So the score is meaningful only for images that were not
trained on: calibration, validation and new images.
"""

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base.arrayfile import Arrays
from anocaps.base.errors import InputError

NEAREST = 5
MOST_VECTORS = 5000
MOST_COMPONENTS = 256  # numbers per image; longer features are projected
MOST_NUMBERS = 1_900_000  # of all vectors together: 7.6 MB of a model file
_SMALLEST_NORM = 1e-12
_PART = 4096  # images compared at a time


def draw(labels: NDArray[np.int64], numbers: int, seed: int) -> NDArray[np.int64]:
    """Choose training images to keep, the same number of each class.

    `numbers` is the length of an image's vector. Of long vectors, fewer are kept. A class that is
    too small for its share keeps all its images. The other classes get the rest.
    """
    generator = np.random.default_rng([seed, 0x5EA2])
    place = np.empty(len(labels), dtype=np.int64)  # position of an image in its shuffled class
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        place[members] = generator.permutation(len(members))
    most = min(MOST_VECTORS, max(NEAREST, MOST_NUMBERS // numbers))
    return np.sort(np.argsort(place, kind="stable")[:most])


class Neighbours:
    def __init__(self, kept: Tensor) -> None:
        self.kept = kept  # unit vectors, float32 [M, D]

    @classmethod
    def fit(cls, capsules: Tensor) -> Self:
        """Class capsules [M, J, E] of the images to keep."""
        return cls(_directions(capsules).float())

    def score(self, capsules: Tensor, among: NDArray[np.bool_] | None = None) -> Tensor:
        """Class capsules [N, J, E] → normality scores [N], float64 in [−2, 0].

        `among` [N, M] says which kept vectors each image is compared with, by default all. Double
        precision is needed: for near neighbours, fp32 would round the cosine to 1.
        """
        kept = self.kept.to(capsules.device, torch.float64)
        nearest = min(NEAREST, len(kept))
        found = []
        for start in range(0, len(capsules), _PART):
            here = slice(start, start + _PART)
            cosines = _directions(capsules[here]) @ kept.T  # [n, M]
            if among is not None:
                cosines[torch.from_numpy(~among[here]).to(cosines.device)] = -1.0
            found.append(cosines.topk(nearest, dim=1).values.mean(1) - 1)
        return torch.cat(found)


class FeatureNeighbours:
    """The score `stem-knn`: the same for features [N, C], with each channel standardised.

    More than MOST_COMPONENTS channels are reduced to principal components.
    """

    def __init__(
        self, mean: Tensor, spread: Tensor, basis: Tensor | None, neighbours: Neighbours
    ) -> None:
        self.mean, self.spread = mean, spread
        self.basis = basis  # [C, components]; None: the channels are not reduced
        self.neighbours = neighbours

    @classmethod
    def fit(cls, features: Tensor) -> Self:
        """Features [M, C] of the images to keep."""
        mean, spread = features.mean(0), features.std(0, correction=0).clamp(min=1e-6)
        standard = (features - mean) / spread
        basis = None
        if features.shape[1] > MOST_COMPONENTS:
            with torch.random.fork_rng(devices=[features.device] if features.is_cuda else []):
                torch.manual_seed(0)  # directions to start from
                most = min(MOST_COMPONENTS, len(features))
                basis = torch.svd_lowrank(standard, most, niter=4)[2]
            standard = standard @ basis
        return cls(mean, spread, basis, Neighbours.fit(standard))

    def score(self, features: Tensor, among: NDArray[np.bool_] | None = None) -> Tensor:
        return self.neighbours.score(self._standard(features), among)

    def nearest(self, features: Tensor) -> Tensor:
        """The index of the most similar kept vector, [N]."""
        kept = self.neighbours.kept.to(features.device, torch.float64)
        parts = torch.split(_directions(self._standard(features)), _PART)
        return torch.cat([(part @ kept.T).argmax(1) for part in parts])

    def _standard(self, features: Tensor) -> Tensor:
        standard = (features - self.mean.to(features)) / self.spread.to(features)
        return standard if self.basis is None else standard @ self.basis.to(features)

    def arrays(self) -> Arrays:
        found = {"mean": self.mean, "spread": self.spread, "kept": self.neighbours.kept}
        found |= {} if self.basis is None else {"basis": self.basis}
        return {f"stem_neighbours.{name}": part.cpu().numpy() for name, part in found.items()}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Self:
        mean, spread, kept = (
            torch.from_numpy(arrays[f"stem_neighbours.{name}"])
            for name in ("mean", "spread", "kept")
        )
        stored = arrays.get("stem_neighbours.basis")
        basis = None if stored is None else torch.from_numpy(stored)
        size = mean.shape if basis is None else basis.shape[1:]
        fits = kept.shape[1:] == size and mean.shape == spread.shape and (spread > 0).all()
        if not fits or (basis is not None and basis.shape[:1] != mean.shape):
            raise InputError("the kept features and their mean and spread do not fit")
        return cls(mean, spread, basis, Neighbours(kept))


def _directions(capsules: Tensor) -> Tensor:
    """[N, J, E] → unit vectors [N, J·E], float64."""
    flat = capsules.flatten(1).double()
    norm: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return flat / norm.clamp(min=_SMALLEST_NORM)
