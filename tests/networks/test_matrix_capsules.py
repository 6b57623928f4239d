"""EM routing in float64 against plain loops in NumPy: values, and gradients by differences."""

import numpy as np
import torch

from anocaps.networks.matrix_capsules import MatrixCapsNet, em_routing, spread_loss

SIZES = 5, 3  # capsules below and above


def by_loops(votes, active, cost, threshold):
    """Procedure 1 of Hinton et al. for one image: votes [I, J, 16]."""
    below, above = SIZES
    share = np.full((below, above), 1 / above)
    mean, variance, chance = np.zeros((above, 16)), np.zeros((above, 16)), np.zeros(above)
    for step in range(3):
        inverse = 0.01 * (1 - 0.95 ** (step + 1))
        for j in range(above):
            weight = share[:, j] * active
            total = weight.sum() + 1e-6
            bits = 0.0
            for h in range(16):
                mean[j, h] = (weight * votes[:, j, h]).sum() / total
                variance[j, h] = (weight * (votes[:, j, h] - mean[j, h]) ** 2).sum() / total + 0.01
                bits += (cost[j] + np.log(np.sqrt(variance[j, h]))) * total
            chance[j] = 1 / (1 + np.exp(-inverse * (threshold[j] - bits)))
        likely = np.zeros((below, above))
        for i in range(below):
            for j in range(above):
                density = np.exp(-((votes[i, j] - mean[j]) ** 2) / (2 * variance[j]))
                density /= np.sqrt(2 * np.pi * variance[j])
                likely[i, j] = chance[j] * np.prod(density)
        share = likely / likely.sum(1, keepdims=True)
    return np.concatenate([mean.ravel(), chance])


def inputs():
    generator = np.random.default_rng(0)
    return [
        generator.normal(0, 1, (*SIZES, 16)), generator.uniform(0.1, 0.9, SIZES[0]),
        generator.normal(0, 1, SIZES[1]), generator.normal(0, 1, SIZES[1]),
    ]  # fmt: skip


def test_em_routing_equals_plain_loops_in_values_and_gradients():
    given = inputs()
    tensors = [torch.from_numpy(each).requires_grad_() for each in given]
    votes, active, cost, threshold = tensors
    mean, chance = em_routing(votes[None], active[None], cost, threshold)
    found = torch.cat([mean.flatten(), chance.flatten()])
    np.testing.assert_allclose(found.detach(), by_loops(*given), rtol=1e-9)
    weights = np.random.default_rng(1).normal(size=len(found))
    gradients = torch.autograd.grad((found * torch.from_numpy(weights)).sum(), tensors)
    places = np.random.default_rng(2)
    for number, gradient in enumerate(gradients):
        for _ in range(6):
            place = tuple(places.integers(0, size) for size in given[number].shape)
            moved = []
            for step in (1e-5, -1e-5):
                other = [each.copy() for each in given]
                other[number][place] += step
                moved.append(weights @ by_loops(*other))
            want = (moved[0] - moved[1]) / 2e-5
            assert abs(float(gradient[place]) - want) < 1e-4 * max(1, abs(want))


def test_agreeing_votes_are_found():
    votes = torch.randn(1, 6, 2, 16, generator=torch.Generator().manual_seed(0)) * 3
    votes[:, :, 0] = 0.5 + 0.01 * torch.randn(1, 6, 16)
    mean, chance = em_routing(votes, torch.ones(1, 6), torch.zeros(2), torch.zeros(2))
    assert chance[0, 0] > chance[0, 1]
    torch.testing.assert_close(mean[0, 0], torch.full((16,), 0.5), atol=0.05, rtol=0)


def test_shapes_and_the_true_class_is_decoded():
    network = MatrixCapsNet(2, 28, 28, 4)
    poses, active = network(torch.rand(3, 2, 28, 28))
    assert poses.shape == (3, 4, 16) and active.shape == (3, 4)
    pixels = network.decode(poses, torch.tensor([0, 1, 2]))
    assert pixels.shape == (3, 2, 28, 28)
    other = poses.clone()
    other[0, 1:] = 0
    torch.testing.assert_close(network.decode(other, torch.tensor([0, 1, 2]))[0], pixels[0])


def test_the_spread_loss():
    active = torch.tensor([[0.9, 0.2, 0.6]])
    found = spread_loss(active, torch.tensor([0]), torch.tensor(0.5))
    assert abs(float(found) - (0.5 - 0.3) ** 2) < 1e-6
