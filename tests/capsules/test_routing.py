"""Routing against an independent NumPy version, written loop by loop from the equations."""

import numpy as np
import pytest
import torch

from anocaps.capsules import routing as capsules
from anocaps.capsules.margin import margin_loss
from anocaps.capsules.routing import route
from anocaps.capsules.squash import lengths, squash


def numpy_squash(s: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(s)
    return norm**2 / (1 + norm**2) * s / norm if norm else np.zeros_like(s)


def numpy_route(u, weight, bias, iterations):
    """One image at a time, one capsule at a time: u [N, I, D], weight [I, J, E, D] → [N, J, E]."""
    images, inputs, _ = u.shape
    _, classes, size, _ = weight.shape
    out = np.zeros((images, classes, size))
    for n in range(images):
        logits = np.zeros((inputs, classes))
        votes = np.array([[weight[i, j] @ u[n, i] for j in range(classes)] for i in range(inputs)])
        for iteration in range(iterations):
            couplings = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            for j in range(classes):
                s = sum(couplings[i, j] * votes[i, j] for i in range(inputs)) + bias[j]
                out[n, j] = numpy_squash(s)
            if iteration < iterations - 1:
                for i in range(inputs):
                    for j in range(classes):
                        logits[i, j] += out[n, j] @ votes[i, j]
    return out


SHAPES = [  # images, inputs, input size, classes, class size, iterations
    (2, 5, 4, 3, 6, 3),
    (1, 1, 1, 2, 1, 1),
    (3, 7, 8, 9, 16, 2),
    (2, 12, 3, 2, 5, 4),
]


def random_case(shape, seed=0):
    images, inputs, size, classes, class_size, iterations = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64, requires_grad=True)

    return (
        draw(images, inputs, size),
        draw(inputs, classes, class_size, size),
        draw(classes, class_size),
        iterations,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gradient", ["all", "last"])
def test_route_equals_the_equations(shape, gradient):
    u, weight, bias, iterations = random_case(shape)
    got = route(u, weight, bias, iterations, gradient).detach().numpy()
    want = numpy_route(
        u.detach().numpy(), weight.detach().numpy(), bias.detach().numpy(), iterations
    )
    np.testing.assert_allclose(got, want, atol=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_through_all_iterations(shape):
    u, weight, bias, iterations = random_case(shape)
    assert torch.autograd.gradcheck(
        lambda u, weight, bias: route(u, weight, bias, iterations), (u, weight, bias)
    )


@pytest.mark.parametrize("gradient", ["all", "last"])
def test_blocks_change_nothing(monkeypatch, gradient):
    """Five images in parts of two, seven capsules in blocks of three, the last ones smaller."""
    u, weight, bias, iterations = random_case((5, 7, 4, 3, 6, 3))

    def routed():
        v = route(u, weight, bias, iterations, gradient)
        with torch.no_grad():
            torch.testing.assert_close(route(u, weight, bias, iterations), v)
        return v.detach(), *torch.autograd.grad(v.sin().sum(), (u, weight, bias))

    whole = routed()
    assert len(capsules._parts(u, weight)) == len(capsules._parts(u, weight)[0]) == 1
    monkeypatch.setattr(capsules, "_IMAGES", 2)
    monkeypatch.setattr(capsules, "_NUMBERS", 2 * 3 * 4 * 2)
    sizes = [[len(block.u[0, 0]) for block in part] for part in capsules._parts(u, weight)]
    assert sizes == [[3, 3, 1]] * 3
    torch.testing.assert_close(routed(), whole)


def test_routing_no_image():
    u, weight, bias, _ = random_case((0, 7, 4, 3, 6, 3))
    v = route(u, weight, bias)
    assert v.shape == (0, 3, 6)
    v.sum().backward()
    assert not weight.grad.any()
    assert u.grad.shape == u.shape


def test_gradient_equals_differences_of_the_numpy_version():
    u, weight, bias, iterations = random_case(SHAPES[0], seed=3)
    route(u, weight, bias, iterations).square().sum().backward()
    step = 1e-6
    for tensor, place in ((u, (1, 2, 3)), (weight, (4, 1, 2, 0)), (bias, (2, 5))):
        values = []
        for sign in (1, -1):
            arrays = {id(t): t.detach().numpy().copy() for t in (u, weight, bias)}
            arrays[id(tensor)][place] += sign * step
            moved = numpy_route(*(arrays[id(t)] for t in (u, weight, bias)), iterations)
            values.append(np.square(moved).sum())
        difference = (values[0] - values[1]) / (2 * step)
        assert tensor.grad[place].item() == pytest.approx(difference, rel=1e-5, abs=1e-8)


def test_gradient_of_the_last_iteration_treats_couplings_as_constants():
    u, weight, _, iterations = random_case(SHAPES[0])
    route(u, weight, None, iterations, "last").sin().sum().backward()
    got = u.grad.clone(), weight.grad.clone()
    u.grad = weight.grad = None

    votes = torch.einsum("ijed,nid->nije", weight, u)
    logits = torch.zeros(votes.shape[:3], dtype=torch.float64)
    for _ in range(iterations - 1):
        v = squash((logits.softmax(2)[..., None] * votes.detach()).sum(1))
        logits = logits + (votes.detach() * v[:, None]).sum(-1)
    squash((logits.softmax(2)[..., None] * votes).sum(1)).sin().sum().backward()
    torch.testing.assert_close(got, (u.grad, weight.grad))
    through_all = torch.autograd.grad(route(u, weight, None, iterations).sin().sum(), u)[0]
    assert not torch.allclose(through_all, u.grad)


def test_couplings_compete_over_classes_not_over_inputs():
    """Two inputs that vote only for class 0: over the classes they route more to it."""
    u = torch.ones(1, 2, 1, dtype=torch.float64)
    weight = torch.zeros(2, 2, 1, 1, dtype=torch.float64)
    weight[:, 0] = 3.0
    # over classes: c = e^b/(e^b+1) rises above 1/2 for both inputs; over inputs it would not
    first, second = route(u, weight, iterations=1), route(u, weight, iterations=2)
    assert second[0, 0, 0] > first[0, 0, 0]
    s = 3.0  # both inputs with coupling 1/2
    v = s**2 / (1 + s**2)
    coupling = np.exp(3 * v) / (np.exp(3 * v) + 1)
    s = 2 * coupling * 3
    assert second[0, 0, 0].item() == pytest.approx(s**2 / (1 + s**2), abs=1e-7)


def test_squash_keeps_direction_and_bends_length():
    s = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    v = squash(s)
    torch.testing.assert_close(lengths(v), torch.tensor([25 / 26, 0.2], dtype=torch.float64))
    torch.testing.assert_close(v[0] / lengths(v)[0], s[0] / 5)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e-4, 1.0, 1e10, 1e30])
def test_nothing_is_nan_for_any_finite_input(value):
    u = torch.full((2, 3, 4), value, requires_grad=True)
    weight = torch.full((3, 2, 5, 4), 0.5, requires_grad=True)
    v = route(squash(u), weight)
    (lengths(v).sum() + squash(u).sum()).backward()
    for tensor in (v, u.grad, weight.grad):
        assert torch.isfinite(tensor).all()


def test_margin_loss_by_hand():
    got = margin_loss(torch.tensor([[0.8, 0.3, 0.05], [0.95, 0.0, 0.6]]), torch.tensor([0, 1]))
    first = 0.1**2 + 0.5 * 0.2**2
    second = 0.9**2 + 0.5 * (0.85**2 + 0.5**2)
    assert got.item() == pytest.approx((first + second) / 2, rel=1e-5)
