"""EM routing in float64 against plain loops in NumPy: values, and gradients by differences."""

from itertools import product

import numpy as np
import pytest
import torch

from anocaps.networks.matrix_capsules import (
    CapsuleLayer,
    MatrixCapsNet,
    em_routing,
    overlap,
    spread_loss,
)


def by_loops(places, active, cost, threshold):
    """Procedure 1 of Hinton et al. for one image.

    places: for each place, the capsules below that it sees and their votes, {i: [J, 16]}.
    Activations of the capsules below [all of them] → poses and activations above, in one vector.
    """
    above = [(p, j) for p in range(len(places)) for j in range(len(cost))]
    seers = {i: [(p, j) for p, j in above if i in places[p]] for i in range(len(active))}
    share = {(i, *a): 1 / len(seers[i]) for i in seers for a in seers[i]}
    mean, variance, chance = {}, {}, {}
    for step in range(3):
        inverse = 0.01 * (1 - 0.95 ** (step + 1))
        for p, j in above:
            votes = np.array([v[j] for v in places[p].values()])  # [I, 16]
            weight = np.array([share[i, p, j] * active[i] for i in places[p]])
            total = weight.sum() + 1e-6
            mean[p, j], variance[p, j], bits = np.zeros(16), np.zeros(16), 0.0
            for h in range(16):
                mean[p, j][h] = (weight * votes[:, h]).sum() / total
                off = (votes[:, h] - mean[p, j][h]) ** 2
                variance[p, j][h] = (weight * off).sum() / total + 0.01
                bits += (cost[j] + np.log(np.sqrt(variance[p, j][h]))) * total
            chance[p, j] = 1 / (1 + np.exp(-inverse * (threshold[j] - bits)))
        for i, seen_by in seers.items():
            likely = {}
            for p, j in seen_by:
                off = (places[p][i][j] - mean[p, j]) ** 2 / (2 * variance[p, j])
                density = np.exp(-off) / np.sqrt(2 * np.pi * variance[p, j])
                likely[p, j] = chance[p, j] * np.prod(density)
            for each, value in likely.items():
                share[i, *each] = value / sum(likely.values())
    return np.concatenate([*(mean[a] for a in above), [chance[a] for a in above]])


def numbers(*shapes):
    """Random arrays. The second holds activations."""
    generator = np.random.default_rng(0)
    drawn = [generator.normal(0, 1, shape) for shape in shapes]
    return [drawn[0], generator.uniform(0.1, 0.9, shapes[1]), *drawn[2:]]


def assert_same(network, loops, given):
    """Two functions of arrays have the same values, and slopes in random directions."""
    tensors = [torch.from_numpy(each).requires_grad_() for each in given]
    found = network(*tensors)
    np.testing.assert_allclose(found.detach(), loops(*given), rtol=1e-8, atol=1e-10)
    generator = np.random.default_rng(1)
    weights = generator.normal(size=len(found))
    gradients = torch.autograd.grad((found * torch.from_numpy(weights)).sum(), tensors)
    for number, gradient in enumerate(gradients):
        for _ in range(2):
            way = generator.normal(size=given[number].shape)
            ends = []
            for step in (1e-5, -1e-5):
                moved = [*given[:number], given[number] + step * way, *given[number + 1 :]]
                ends.append(weights @ loops(*moved))
            slope = (ends[0] - ends[1]) / 2e-5
            assert float((gradient.numpy() * way).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def flat(poses, active):
    return torch.cat([poses.flatten(), active.flatten()])


def test_em_routing_equals_plain_loops():
    """One place, which sees 5 capsules."""

    def network(votes, active, cost, threshold):
        votes = votes.transpose(1, 2)[:, None, None]  # [5, 1, 1, 16, 3]
        poses, chance = em_routing(votes, active[:, None, None], cost, threshold)
        return flat(poses.transpose(2, 3), chance)

    def loops(votes, *rest):
        return by_loops([dict(enumerate(votes))], *rest)

    assert_same(network, loops, numbers((5, 3, 16), 5, 3, 3))


@pytest.mark.parametrize(("side", "stride"), [((4, 5), 1), ((6, 5), 2)])
def test_a_layer_equals_plain_loops(side, stride):
    """Overlapping windows. With stride 2, no window sees the last row."""
    layer = CapsuleLayer(2, 2, 3, stride, *side)
    rows, columns = ((x - 3) // stride + 1 for x in side)
    assert (rows, columns) == ((2, 3) if stride == 1 else (2, 2))

    def network(poses, active, *own):
        named = dict(zip(("weight", "cost", "threshold"), own))
        found, chance = torch.func.functional_call(layer, named, (poses[None], active[None]))
        assert found.shape == (1, 2, 16, rows, columns) and chance.shape == (1, 2, rows, columns)
        return flat(found[0].permute(2, 3, 0, 1), chance[0].permute(1, 2, 0))

    def loops(poses, active, weight, cost, threshold):
        number = np.arange(active.size).reshape(active.shape)
        places = [{} for _ in range(rows * columns)]
        for y, x, b, down, right in product(range(rows), range(columns), range(2), *[range(3)] * 2):
            at = b, stride * y + down, stride * x + right
            pose = poses[b, :, at[1], at[2]].reshape(4, 4)
            own = weight[9 * b + 3 * down + right]
            votes = [(pose @ own[j]).ravel() for j in range(2)]
            places[columns * y + x][number[at]] = votes
        return by_loops(places, active.ravel(), cost, threshold)

    assert_same(network, loops, numbers((2, 16, *side), (2, *side), (18, 2, 4, 4), 2, 2))


class ClassCapsules(MatrixCapsNet):
    forward = MatrixCapsNet._class_capsules


def test_class_capsules_equal_plain_loops():
    """All 3×2 places share their matrices, and a vote adds the coordinates of its place."""
    layer = ClassCapsules(1, 8, 8, 3, capsules=2)

    def network(poses, active, *own):
        named = dict(zip(("classes.weight", "classes.cost", "classes.threshold"), own))
        return flat(*torch.func.functional_call(layer, named, (poses[None], active[None])))

    def loops(poses, active, weight, cost, threshold):
        seen = {}
        for b, y, x in product(range(2), range(3), range(2)):
            votes = np.array([poses[b, :, y, x].reshape(4, 4) @ weight[b, j] for j in range(3)])
            votes[:, 0, 3] += y / 2
            votes[:, 1, 3] += x
            seen[len(seen)] = votes.reshape(3, 16)
        return by_loops([seen], active.ravel(), cost, threshold)

    assert_same(network, loops, numbers((2, 16, 3, 2), (2, 3, 2), (2, 3, 4, 4), 3, 3))


def test_routing_is_one_graph_for_torch_s_compiler():
    """`choose.fused` compiles it on a GPU, inside a recorded step."""
    torch.manual_seed(0)
    layer = CapsuleLayer(2, 3, 3, 2, 6, 5)
    given = torch.randn(18, 2, 4, 16, 3), torch.rand(18, 2, 4), layer.cost, layer.threshold
    compiled = torch.compile(em_routing, backend="eager", fullgraph=True, dynamic=False)
    for windows in ((layer.seen, layer.position), None):
        for found, want in zip(compiled(*given, windows), em_routing(*given, windows)):
            torch.testing.assert_close(found, want)


def test_a_window_of_its_own_competes_with_no_other():
    seen, position = overlap(2, 4, 6, 2, 2)
    assert seen.shape == (48, 1) and sorted(position.tolist()) == list(range(48))


def test_agreeing_votes_are_found():
    generator = torch.Generator().manual_seed(0)
    votes = torch.randn(6, 1, 1, 16, 2, generator=generator) * 3
    votes[..., 0] = 0.5 + 0.01 * torch.randn(6, 1, 1, 16, generator=generator)
    mean, chance = em_routing(votes, torch.ones(6, 1, 1), torch.zeros(2), torch.zeros(2))
    assert chance[0, 0, 0] > chance[0, 0, 1]
    torch.testing.assert_close(mean[0, 0, :, 0], torch.full((16,), 0.5), atol=0.05, rtol=0)


def test_shapes_and_the_true_class_is_decoded():
    network = MatrixCapsNet(2, 28, 28, 4)
    poses, active = network(torch.rand(3, 2, 28, 28))
    assert poses.shape == (3, 4, 16) and active.shape == (3, 4)
    pixels = network.decode(poses, torch.tensor([0, 1, 2]))
    assert pixels.shape == (3, 2, 28, 28)
    other = poses.clone()
    other[0, 1:] = 0
    torch.testing.assert_close(network.decode(other, torch.tensor([0, 1, 2]))[0], pixels[0])


def test_the_sizes_of_the_smaller_published_network():
    """A = 64, B = 8, C = D = 16, and a 4×4 matrix for each pair of capsule types and offset."""
    network = MatrixCapsNet(1, 28, 28, 9)
    sizes = {name: tuple(each.shape) for name, each in network.named_parameters()}
    assert sizes["conv.weight"] == (64, 1, 5, 5)
    assert sizes["poses.0.weight"] == (8 * 16, 64, 1, 1)
    assert sizes["active.0.weight"] == (8, 64, 1, 1)
    assert sizes["layers.0.weight"] == (8 * 3 * 3, 16, 4, 4)
    assert sizes["layers.1.weight"] == (16 * 3 * 3, 16, 4, 4)
    assert sizes["classes.weight"] == (16, 9, 4, 4)
    first, second = network.layers
    assert network.conv.stride == (2, 2) and (first.stride, second.stride) == (2, 1)


def test_the_spread_loss():
    active = torch.tensor([[0.9, 0.2, 0.6]])
    found = spread_loss(active, torch.tensor([0]), torch.tensor(0.5))
    assert abs(float(found) - (0.5 - 0.3) ** 2) < 1e-6
