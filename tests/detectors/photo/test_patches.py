"""The memory of patches: exact distances, patches far apart, an image without its own patches."""

import numpy as np
import pytest
import torch

from anocaps.detectors.photo.patches import PatchPool, averaged, largest_and_mean

CPU = torch.device("cpu")


def maps(images: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, 6, 5, 7, generator=generator)


def memory(x: torch.Tensor, most: int):
    pool = PatchPool(len(x), x.shape[2] * x.shape[3], seed=0, most=60_000)
    for part in x.split(3):
        pool.add(part)
    return pool.memory(CPU, most)


def test_distances_are_those_to_the_nearest_kept_patch():
    x, new = maps(8), maps(2, seed=1)
    known = memory(x, 40)
    patches = averaged(new).flatten(2).transpose(1, 2).reshape(-1, 6)
    standard = (patches - known.mean) / known.spread
    nearest = torch.cdist(standard, known.kept).amin(1).view(2, 5, 7)
    torch.testing.assert_close(known.distances(new), nearest, rtol=1e-4, atol=1e-4)


def test_a_memory_of_all_patches_knows_its_images_and_not_without_them():
    x = maps(8)
    known = memory(x, 10_000)
    assert known.distances(x).max() < 1e-2
    others = np.arange(8)[:, None] != known.origin
    assert known.distances(x, among=others).min() > 1e-2


def test_kept_patches_cover_better_than_random_ones():
    x = torch.cat([maps(30) * 0.05, maps(2, seed=1) + 20])  # two images unlike the others
    known = memory(x, 60)
    patches = averaged(x).flatten(2).transpose(1, 2).reshape(-1, 6)
    standard = (patches - known.mean) / known.spread
    chosen = torch.randperm(len(standard), generator=torch.Generator().manual_seed(0))[:60]
    random = torch.cdist(standard, standard[chosen]).amin(1).max()
    assert known.distances(x).max() < random
    assert len(np.unique(known.kept.numpy(), axis=0)) == 60


def test_the_largest_distances_see_a_spot_and_the_mean_a_change_everywhere():
    calm = torch.ones(1, 20, 20)
    spot, everywhere = calm.clone(), calm * 1.5
    spot[0, 3, 4] = 20
    found = largest_and_mean(torch.cat([calm, spot, everywhere]))
    largest, mean = found["largest"], found["mean"]
    assert largest[1] < largest[2] < largest[0]
    assert mean[2] < mean[1] < mean[0]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_keeps_the_same_patches(seed):
    x = maps(10)
    pools = [PatchPool(10, 35, seed, 60_000) for _ in range(2)]
    for pool in pools:
        pool.add(x)
    first, second = (pool.memory(CPU, 20) for pool in pools)
    assert torch.equal(first.kept, second.kept)
