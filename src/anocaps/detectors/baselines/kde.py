"""Kernel density estimation (Parzen 1962) on pixels and on principal components, without labels.

Scores are log-densities of Gaussian kernels around every normal image. `pixels` uses the pixels,
`pca` the principal components that hold 95 % of the variance. The width of the kernel is chosen on
normal images: kernels around most of them must give the others the highest density. The others are
a tenth of the images, 1,000 at most, drawn at random but always the same.
"""

from collections.abc import Set as AbstractSet
from math import log, pi
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.detectors.baselines.one_class_svm import squared_distances
from anocaps.detectors.baselines.pixels import PixelDetector

_VARIANCE = 0.95  # share of the variance that the principal components hold
_HELD_OUT = 0.1  # share of the images that chooses the width
_MOST_HELD_OUT = 1000
_NARROWEST = 1 / 255  # one grey level; the best width for identical images would be 0


class KDEDetector(PixelDetector):
    """Detect anomalous images by the density of normal ones, on pixels.

    Parameters
    ----------
    score_function : {"auto", "pixels", "pca"}, default="auto"
        The score function of the verdict: the density of pixels ("auto"), or of principal
        components.

    Notes
    -----
    The other parameters, `**settings`, are those of `PixelDetector`.
    """

    method = "kde"
    score_names = ("pixels", "pca")

    def _training(self, images: NDArray[Any], labels: NDArray[np.int64]) -> tuple[()]:
        vectors = self._begin(images)
        mean, axes = _principal(vectors)
        self.normal_, self.mean_, self.axes_ = images, mean.cpu().numpy(), axes.cpu().numpy()
        spaces = (vectors, (vectors - mean) @ axes)
        widths = [self.widen * best_width(points) for points in spaces]
        self.widths_ = np.array(widths)
        self.record_ = {"widths": widths, "components": axes.shape[1]}
        return ()

    def _forward(self, images: NDArray[Any], wanted: AbstractSet[str]) -> dict[str, NDArray[Any]]:
        mean, axes = self._tensor(self.mean_), self._tensor(self.axes_)
        normal = torch.cat(list(self._vectors(self.normal_)))
        components = (normal - mean) @ axes
        pixels, pca = self.widths_.tolist()

        def score(vectors: Tensor) -> dict[str, Tensor]:
            found = {}
            if "pixels" in wanted:
                found["pixels"] = log_density(vectors, normal, pixels)
            if "pca" in wanted:
                found["pca"] = log_density((vectors - mean) @ axes, components, pca)
            return found

        return self._scored(images, score)


def log_density(points: Tensor, normal: Tensor, width: float) -> Tensor:
    """[N, D], [M, D] → [N]: the log of the mean of Gaussians around the normal points."""
    inside = _log_kernel_sum(squared_distances(points, normal), width)
    return inside - log(len(normal)) - normal.shape[1] * (log(width) + log(2 * pi) / 2)


def best_width(points: Tensor) -> float:
    """The width with which the other points give the held-out points the highest density."""
    count = min(int(_HELD_OUT * len(points)), _MOST_HELD_OUT)
    if count == 0:
        return _NARROWEST
    drawn = np.random.default_rng(0).permutation(len(points))  # images may be in order of class
    held_out, others = (
        torch.from_numpy(part).to(points.device) for part in np.split(drawn, [count])
    )
    distances = squared_distances(points[held_out], points[others])
    dimensions = points.shape[1]
    # In D dimensions the squared distance to a neighbour is about D × width².
    nearest = float(distances.amin(1).median())
    around = max((nearest / dimensions) ** 0.5, _NARROWEST)
    widths = [float(around * 2 ** (k / 4)) for k in range(-12, 13)]
    likely = [
        float(_log_kernel_sum(distances, width).mean()) - dimensions * log(width)
        for width in widths
    ]
    return max(widths[int(np.argmax(likely))], _NARROWEST)


def _log_kernel_sum(distances: Tensor, width: float) -> Tensor:
    """[N, M] squared distances → [N]"""
    return torch.logsumexp(distances * (-0.5 / width**2), dim=1)


def _principal(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The mean [D], and the principal axes that hold most of the variance [D, k]."""
    mean = vectors.mean(0)
    centred = vectors - mean
    values, axes = torch.linalg.eigh(centred.T @ centred)  # ascending
    share = values.clamp(0).flip(0).cumsum(0) / values.clamp(0).sum().clamp(min=1e-12)
    count = min(int((share < _VARIANCE).sum()) + 1, len(values))
    return mean, axes.flip(1)[:, :count].contiguous()
