"""Find near-copies, such as frames of one video, by the distance of their features.

The features of preset `photo` are the means of its stem's maps. For the other presets they are grey
thumbnails, because no network is trained yet when the calibration set is drawn.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import adaptive_avg_pool2d

from anocaps.training.preprocessing import Images

_NEAR = 0.4  # share of the median distance in a class
_SAMPLED = 1000  # images of a class for the median
_LARGEST_GROUP = 0.25  # share of a class
_LESS = 0.8  # factor of the distance that splits a larger group
_AT_ONCE = 256  # images that are compared with all others of their class at once
_ROUNDING = 1e-6  # of a squared distance, relative to the largest squared length
_THUMBNAIL = 16  # pixels a side
_READ = 16  # images that are reduced at once, to save memory
_SMALLEST = 32  # pixels of the shorter side; below, many images of a class look alike


def near_copies(means: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each image. Near-copies have the same number.

    Two images of a class are near-copies if their distance is below 0.4 of the median distance in
    their class. Photos that were taken one by one are hardly ever near-copies.
    """
    from scipy.spatial.distance import pdist  # scoring does not need SciPy

    standard = (means - means.mean(0)) / means.std(0).clip(min=1e-6)
    found = np.empty(len(means), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        some = standard[members[:: max(1, len(members) // _SAMPLED)]]
        usual = float(np.median(pdist(some))) if len(some) > 1 else 0.0
        found[members] = members[_linked(standard[members], _NEAR * usual)]
    return found


def near_copies_of(images: Images, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """`near_copies` by thumbnails of images N×H×W×C. None: they are too small to tell."""
    if min(images.shape[1:3]) < _SMALLEST:
        return None
    parts = [_thumbnails(images[k : k + _READ]) for k in range(0, len(images), _READ)]
    return near_copies(np.concatenate(parts), labels)


def _thumbnails(images: NDArray[Any]) -> NDArray[np.float32]:
    """Grey, with mean 0 and variance 1, so that light and contrast do not count: [N, 256]."""
    grey = torch.from_numpy(images.astype(np.float32)).mean(3)  # [N, H, W]
    small = adaptive_avg_pool2d(grey, _THUMBNAIL).flatten(1)
    small -= small.mean(1, keepdim=True)
    found: NDArray[np.float32] = (small / small.std(1, keepdim=True).clamp(min=1e-6)).numpy()
    return found


def _linked(points: NDArray[np.float32], near: float) -> NDArray[np.int64]:
    """For each point the first point of its group. A chain of near points is a group. A group of
    more than a quarter of all points is split with a smaller distance."""
    first = np.arange(len(points))
    waiting = [(np.arange(len(points)), near)]
    while waiting:
        members, distance = waiting.pop()
        group = _chains(points[members], distance)
        for each in np.flatnonzero(np.bincount(group) > 1):
            together = members[group == each]
            if len(together) > max(2, _LARGEST_GROUP * len(points)) and distance > 0:
                waiting.append((together, _LESS * distance))
            else:
                first[together] = together.min()
    return first


def _chains(points: NDArray[np.float32], near: float) -> NDArray[np.int64]:
    """The group of each point: 0, 1, … Points up to `near` apart are in the same group.

    Groups grow part by part, since memory may not hold all pairs of near points.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    square = np.einsum("nc,nc->n", points, points)
    group, groups = np.arange(len(points)), len(points)
    for start in range(0, len(points), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        apart = square[part, None] + square - 2 * (points[part] @ points.T)  # squared, [P, N]
        is_near = apart <= near**2 + _ROUNDING * square.max()
        order = np.argsort(group, kind="stable")
        starts = np.searchsorted(group[order], np.arange(groups))
        touched = np.logical_or.reduceat(is_near[:, order], starts, axis=1)  # [P, groups]
        point, other = np.nonzero(touched)
        edges = group[part][point], other
        graph = coo_matrix((np.ones(len(point), bool), edges), (groups, groups))
        groups, joined = connected_components(graph, directed=False)
        group = joined[group]
    return group
