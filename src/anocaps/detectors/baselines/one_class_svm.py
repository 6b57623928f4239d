"""One-class support vector machines. One is a hyperplane between the points and the origin
(Schölkopf et al. 2001), the other a hypersphere around the points (SVDD, Tax and Duin 2004).

    minimise ½ Σ α_i α_j k(x_i, x_j) [− ½ Σ α_i k(x_i, x_i)]   with 0 ≤ α_i ≤ 1/(νn), Σ α_i = 1

Only the hypersphere has the part in brackets. With a Gaussian kernel, k = exp(−γ‖x − y‖²), this
part is constant, so both machines are the same (`OneClassSVM`). With a linear kernel, k = x·y, they
differ (`LinearMachine`).

γ is chosen from normal points alone: 1/γ is the median squared distance of a point to its nearest
neighbour. Normal images come from several classes, so their features form several clusters.
Anomalies fall into the gaps, so the kernel must be as narrow as the distance of neighbours within a
cluster. The usual choice is the median distance of any two points. This is the distance between
clusters, and it closes the gaps. With the narrow kernel, no weight reaches its upper limit in the
cells of results/ocsvm.json (20,000 points), so ν changes nothing there. False-alarm rates come from
calibration images, not from the zero of the decision function.

On a CPU, scikit-learn's solver finds α. Its time grows at least with the square of n. On a GPU, an
accelerated projected gradient finds the same α. It keeps the kernel matrix in memory, 4 n² bytes.
All points are used, because fewer give a lower accuracy. benchmarks/ocsvm.py compares the solvers,
the widths and the numbers of points. docs/decisions.md has its results.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anocaps.base.arrayfile import Arrays
from anocaps.training import memory
from anocaps.training.inference import inference
from anocaps.training.recording import repeat

NU = 0.1
_NEIGHBOUR_SAMPLE = 1000  # points whose nearest neighbours are searched
_STEPS = 300  # of projected gradient; the result is as exact as with scikit-learn's tolerance
_LINEAR_STEPS = 500
_ROWS = 4096  # of the kernel matrix at a time


@dataclass(frozen=True)
class OneClassSVM:
    support: Tensor  # [S, D] float32
    weights: Tensor  # α of the support vectors, [S] float64
    gamma: float
    level: float  # Σ α_i k(x_i, x) on the boundary

    @classmethod
    def fit(cls, points: Tensor, seed: int, widen: float = 1.0) -> Self:
        """Points [n, D] float32. `widen` is a factor on the width of the kernel."""
        gamma = 1 / (_neighbour_distance(points, seed) * widen**2)
        with inference(points.device):
            weights, level = _solve(points, gamma)
        kept = weights > 0
        return cls(points[kept].clone(), weights[kept], gamma, level)

    def decision(self, points: Tensor) -> Tensor:
        """log Σ α_i k(x_i, x) − log of the level: positive inside. [N, D] → [N] float64.

        The order of points is that of the usual decision value. The logarithm keeps distant points
        apart, for which the sum underflows.
        """
        distance = squared_distances(points.double(), self.support.double())
        inside = torch.logsumexp(self.weights.log() - self.gamma * distance, dim=1)
        return inside - float(np.log(self.level))

    def arrays(self) -> Arrays:
        return {
            "svm.support": self.support.cpu().numpy(),
            "svm.weights": self.weights.cpu().numpy(),
            "svm.gamma_level": np.array([self.gamma, self.level]),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, device: torch.device) -> Self:
        support, weights = (
            torch.from_numpy(arrays[f"svm.{name}"]).to(device) for name in ("support", "weights")
        )
        gamma, level = arrays["svm.gamma_level"].tolist()
        return cls(support, weights, gamma, level)


@dataclass(frozen=True)
class LinearMachine:
    """A machine without a kernel: a hyperplane, or a hypersphere."""

    centre: Tensor  # Σ α_i x_i, [D] float64: the hyperplane's normal, or the sphere's centre
    level: float  # minus x·centre on the hyperplane, or the sphere's squared radius
    sphere: bool

    @classmethod
    def fit(cls, points: Tensor, sphere: bool) -> Self:
        """Points [n, D]. No kernel matrix is made."""
        points = points.double()
        # a hypersphere moves with its points; around 0 the solver converges faster
        mean = points.mean(0) if sphere else torch.zeros_like(points[0])
        moved = points - mean
        linear = moved.square().sum(1) / 2 if sphere else torch.zeros_like(points[:, 0])
        with inference(points.device):
            weights = _minimise(lambda v: moved @ (moved.T @ v), linear, _LINEAR_STEPS)
        machine = cls(moved.T @ weights + mean, 0.0, sphere)
        return replace(machine, level=-_level(machine.decision(points), weights))

    def decision(self, points: Tensor) -> Tensor:
        """Positive inside: level + x·w, or level − ‖x − centre‖². [N, D] → [N] float64."""
        points = points.double()
        if self.sphere:
            return self.level - (points - self.centre).square().sum(1)
        return points @ self.centre + self.level

    def array(self) -> NDArray[np.float64]:
        """The whole machine as one array [D + 2]."""
        return np.append(self.centre.cpu().numpy(), [self.level, self.sphere])

    @classmethod
    def from_array(cls, array: NDArray[np.float64], device: torch.device) -> Self:
        *centre, level, sphere = array.tolist()
        place = torch.tensor(centre, dtype=torch.float64, device=device)
        return cls(place, level, bool(sphere))


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """[N, D], [M, D] → [N, M]."""
    return (
        torch.addmm(b.square().sum(1), a, b.T, alpha=-2).add_(a.square().sum(1)[:, None]).clamp_(0)
    )


def _neighbour_distance(points: Tensor, seed: int) -> float:
    """The median squared distance to the nearest neighbour, over a seeded sample of points."""
    chosen = np.random.default_rng([seed, 0x5B3]).permutation(len(points))[:_NEIGHBOUR_SAMPLE]
    everyone = points.double()
    nearest = []
    for part in torch.from_numpy(chosen).to(points.device).split(100):  # type: ignore[no-untyped-call]
        distance = squared_distances(everyone[part], everyone)
        distance.scatter_(1, part[:, None], torch.inf)  # not to itself
        nearest.append(distance.amin(1))
    median = float(torch.cat(nearest).median())
    return median if 0 < median < np.inf else 1.0  # all points alike, or only one


def _solve(points: Tensor, gamma: float) -> tuple[Tensor, float]:
    """α [n] and the level. The kernel matrix of many points may be too large for a GPU."""
    if points.is_cuda:
        try:
            return _solve_on_gpu(points, gamma)
        except torch.OutOfMemoryError:
            memory.release()
            memory.tell(
                f"the kernel matrix of {len(points)} points does not fit into the GPU's memory: "
                "the one-class SVM is fitted on the CPU, which takes minutes"
            )
    weights, level = _solve_on_cpu(points.cpu(), gamma)
    return weights.to(points.device), level


def _solve_on_cpu(points: Tensor, gamma: float) -> tuple[Tensor, float]:
    from sklearn.svm import OneClassSVM as Solver

    solver = Solver(gamma=gamma, nu=NU, cache_size=1000)
    solver.random_state = 0  # unused, but scikit-learn would draw it from NumPy's global generator
    solver.fit(points.double().numpy())
    weights = torch.zeros(len(points), dtype=torch.float64)
    weights[torch.from_numpy(solver.support_).long()] = torch.from_numpy(solver.dual_coef_[0])
    total = float(weights.sum())
    return weights / total, -float(solver.intercept_[0]) / total


def _solve_on_gpu(points: Tensor, gamma: float) -> tuple[Tensor, float]:
    """Accelerated projected gradient with restarts (Beck and Teboulle 2009, O'Donoghue 2015)."""
    n = len(points)
    kernel = torch.empty(n, n, device=points.device)
    for start in range(0, n, _ROWS):
        rows = squared_distances(points[start : start + _ROWS], points)
        torch.exp(rows.mul_(-gamma), out=kernel[start : start + _ROWS])
    weights = _minimise(lambda v: kernel @ v, torch.zeros(n, device=points.device), _STEPS)
    return weights.double(), _level(kernel @ weights, weights)


def _minimise(product: Callable[[Tensor], Tensor], linear: Tensor, steps: int) -> Tensor:
    """The weights [n] that minimise ½ α·Kα − α·linear; `product` is v → Kv."""
    n = len(linear)
    ceiling = 1 / (NU * n)
    weights = torch.full_like(linear, 1 / n)
    ahead = weights.clone()
    rate = 1 / (1.02 * _largest_eigenvalue(product, linear)).clamp(min=1e-12)
    momentum = torch.ones_like(linear[0])

    def step() -> None:
        after = _project(ahead - rate * (product(ahead) - linear), ceiling)
        uphill = (ahead - after) @ (after - weights) > 0
        before = torch.where(uphill, 1.0, momentum)
        momentum.copy_((1 + (1 + 4 * before.square()).sqrt()) / 2)
        ahead.copy_(after + (before - 1) / momentum * (after - weights))
        weights.copy_(after)

    repeat(step, steps, linear.device)
    return weights


def _level(inside: Tensor, weights: Tensor) -> float:
    """The value of points on the boundary: those whose weight is neither 0 nor at its ceiling."""
    free = (weights > 0) & (weights < 0.999 / (NU * len(weights)))
    return float(inside[free].mean() if free.any() else inside[weights > 0].max())


def _largest_eigenvalue(product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """Power iteration. The start is not orthogonal to the eigenvector of the largest eigenvalue."""
    vector = torch.linspace(1, 2, len(like), dtype=like.dtype, device=like.device)
    for _ in range(30):
        vector = product(vector / torch.linalg.vector_norm(vector).clamp(min=1e-30))
    size: Tensor = torch.linalg.vector_norm(vector)
    return size


def _project(weights: Tensor, ceiling: float) -> Tensor:
    """The nearest weights with 0 ≤ α ≤ ceiling and sum 1. Bisection finds their common shift."""
    low, high = weights.min() - ceiling, weights.max()
    for _ in range(40):
        middle = (low + high) / 2
        too_much = (weights - middle).clamp(0, ceiling).sum() > 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    return (weights - high).clamp(0, ceiling)
