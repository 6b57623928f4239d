"""A memory of normal patches. It gives the distance of each place of an image to normal places.

A patch is one place of the stem's map, averaged with its neighbours (3×3) and standardised per
channel. The memory keeps patches that are far from each other. A greedy selection chooses them (the
k-centre selection of PatchCore, Roth et al. 2022). The distance of a patch to the nearest kept
patch shows how anomalous that place is.

The mean of the largest 2 % of an image's distances finds small defects. The mean of all distances
finds diffuse changes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

LARGEST = 0.02  # share of an image's patches, at least one patch
_PROJECTED = 16  # numbers per patch during the selection
_LEAST_SPREAD = 1e-6
_AT_ONCE = 8192  # patches compared at once


@dataclass(frozen=True)
class PatchMemory:
    kept: Tensor  # float32 [M, C], standardised
    mean: Tensor  # [C]
    spread: Tensor  # [C]
    origin: NDArray[np.int64]  # [M], training image of each patch

    def distances(self, maps: Tensor, among: NDArray[np.bool_] | None = None) -> Tensor:
        """Maps [N, C, h, w] → distance to the nearest kept patch [N, h, w].

        `among` [N, M] says which kept patches each image is compared with. Training images are not
        compared with their own patches.
        """
        n, c, h, w = maps.shape
        patches = self._standard(maps)  # [N, h·w, C]
        if among is None:
            flat = patches.reshape(-1, c)
            nearest = torch.cat([self._nearest(part) for part in torch.split(flat, _AT_ONCE)])
            return nearest.view(n, h, w)
        found = [
            self._nearest(image, torch.from_numpy(others).to(image.device))
            for image, others in zip(patches, among)
        ]
        return torch.stack(found).view(n, h, w)

    def _standard(self, maps: Tensor) -> Tensor:
        """[N, C, h, w] → [N, h·w, C]."""
        flat = averaged(maps).flatten(2).transpose(1, 2)
        return (flat - self.mean) / self.spread

    def _nearest(self, patches: Tensor, among: Tensor | None = None) -> Tensor:
        """[P, C] → [P]: |p − k|² = |p|² + |k|² − 2 p·k, the smallest over k."""
        lengths = self.kept.square().sum(1)
        if among is not None:
            lengths = lengths.masked_fill(~among, torch.inf)
        apart = torch.addmm(lengths, patches, self.kept.T, alpha=-2).amin(1)
        return (apart + patches.square().sum(1)).clamp(min=0).sqrt()


def averaged(maps: Tensor) -> Tensor:
    """The mean of each place and its neighbours: [N, C, h, w] → [N, C, h, w].

    Neighbours beyond the border count as zeros. Without them, means at the border would have fewer
    terms and vary more. Nearly every normal image would have its most distant places there.
    """
    return functional.avg_pool2d(maps, 3, stride=1, padding=1)


def largest_and_mean(distances: Tensor) -> dict[str, Tensor]:
    """Distances [N, h, w] → minus the mean of the largest 2 % and minus the mean of all, [N]."""
    flat = distances.flatten(1)
    return {
        "largest": -flat.topk(most_distant(flat.shape[1]), dim=1).values.mean(1),
        "mean": -flat.mean(1),
    }


def most_distant(places: int) -> int:
    """The number of places in the largest 2 %."""
    return max(1, round(LARGEST * places))


class PatchPool:
    """Collects patches of training images in batches, the same number from each image."""

    def __init__(self, images: int, places: int, seed: int, most: int) -> None:
        self._each = max(1, min(places, most // images))
        self._generator = np.random.default_rng([seed, 0x9A7C])
        self._patches: list[Tensor] = []
        self._origin: list[NDArray[np.int64]] = []
        # which images give patches, if there are more images than the pool can hold
        self._chosen = self._generator.permutation(images) < most
        self._seen = 0

    def add(self, maps: Tensor) -> None:
        """Add patches of the next images, from their maps [N, C, h, w]."""
        here = np.arange(self._seen, self._seen + len(maps))
        self._seen += len(maps)
        flat = averaged(maps).flatten(2).transpose(1, 2)  # [N, h·w, C]
        for k, image in enumerate(here):
            if self._chosen[image]:
                places = self._generator.permutation(flat.shape[1])[: self._each]
                self._patches.append(flat[k, torch.from_numpy(places).to(flat.device)].cpu())
                self._origin.append(np.full(len(places), image))

    def memory(self, device: torch.device, most: int) -> PatchMemory:
        """Choose the patches to keep."""
        patches, origin = torch.cat(self._patches), np.concatenate(self._origin)
        mean, spread = patches.mean(0), patches.std(0).clamp(min=_LEAST_SPREAD)
        patches = (patches - mean) / spread
        kept = _far_apart(patches.to(device), most, int(self._generator.integers(2**31)))
        return PatchMemory(
            patches[kept].to(device), mean.to(device), spread.to(device), origin[kept.numpy()]
        )


def _far_apart(patches: Tensor, most: int, seed: int) -> Tensor:
    """Indices of patches [P, C], each the farthest from those before it: [M] on the CPU.

    A random projection makes distances fast to compute, but approximate.
    """
    if len(patches) <= most:
        return torch.arange(len(patches))
    generator = torch.Generator().manual_seed(seed)
    plane = torch.randn(patches.shape[1], _PROJECTED, generator=generator).to(patches.device)
    small = patches @ plane  # [P, 16]
    lengths = small.square().sum(1)
    apart = torch.full((len(small),), torch.inf, device=small.device)
    kept = torch.empty(most, dtype=torch.int64, device=small.device)
    latest = torch.zeros((), dtype=torch.int64, device=small.device)
    for k in range(most):
        kept[k] = latest
        chosen = small[latest]
        apart = torch.minimum(apart, lengths + lengths[latest] - 2 * (small @ chosen))
        apart[latest] = -torch.inf  # so that rounding cannot choose a patch twice
        latest = apart.argmax()
    return kept.cpu()
