"""The textbook's functions, against versions written independently or by hand."""

import numpy as np
import pytest
import torch

from anocaps.capsules.textbook import TextbookCapsNet, lengths, margin_loss, route, squash

DOUBLE = torch.float64


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


@pytest.mark.parametrize(
    "shape", [(2, 5, 4, 3, 6, 3), (1, 1, 1, 2, 1, 1), (3, 7, 8, 9, 16, 2), (2, 12, 3, 2, 5, 4)]
)
def test_route_is_the_equations(shape):
    images, inputs, size, classes, class_size, iterations = shape
    torch.manual_seed(0)
    u = torch.randn(images, inputs, size, dtype=DOUBLE)
    weight = torch.randn(inputs, classes, class_size, size, dtype=DOUBLE)
    bias = torch.randn(classes, class_size, dtype=DOUBLE)
    want = numpy_route(u.numpy(), weight.numpy(), bias.numpy(), iterations)
    np.testing.assert_allclose(route(u, weight, bias, iterations), want, atol=1e-8)


def test_couplings_compete_over_classes_not_over_inputs():
    """Two inputs that vote only for class 0: over the classes they route more to it."""
    u = torch.ones(1, 2, 1, dtype=DOUBLE)
    weight = torch.zeros(2, 2, 1, 1, dtype=DOUBLE)
    weight[:, 0] = 3.0
    s = 3.0  # both inputs with coupling 1/2
    v = s**2 / (1 + s**2)
    s = 2 * 3 * np.exp(3 * v) / (np.exp(3 * v) + 1)
    second = route(u, weight, iterations=2)[0, 0, 0].item()
    assert second == pytest.approx(s**2 / (1 + s**2), abs=1e-7)


def test_the_last_gradient_treats_couplings_as_constants():
    """With one iteration the couplings are constants anyway; with three they are not."""
    torch.manual_seed(0)
    u = torch.randn(2, 5, 4, dtype=DOUBLE, requires_grad=True)
    weight = torch.randn(5, 3, 6, 4, dtype=DOUBLE)
    for iterations, same in ((1, True), (3, False)):
        all_, last = (
            torch.autograd.grad(route(u, weight, None, iterations, g).sin().sum(), u)[0]
            for g in ("all", "last")
        )
        assert torch.allclose(all_, last) == same


def test_squash_keeps_direction_and_bends_length():
    s = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=DOUBLE)
    v = squash(s)
    torch.testing.assert_close(lengths(v), torch.tensor([25 / 26, 0.2], dtype=DOUBLE))
    torch.testing.assert_close(v[0] / lengths(v)[0], s[0] / 5)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e-4, 1.0, 1e10, 1e30])
def test_squash_is_finite_for_any_finite_input(value):
    s = torch.full((2, 4), value, requires_grad=True)
    squash(s).sum().backward()
    assert torch.isfinite(squash(s)).all() and torch.isfinite(s.grad).all()


def test_margin_loss_by_hand():
    got = margin_loss(torch.tensor([[0.8, 0.3, 0.05], [0.95, 0.0, 0.6]]), torch.tensor([0, 1]))
    first = 0.1**2 + 0.5 * 0.2**2
    second = 0.9**2 + 0.5 * (0.85**2 + 0.5**2)
    assert got.item() == pytest.approx((first + second) / 2, rel=1e-5)


def test_the_reconstruction_counts_as_in_the_literature():
    """Sabour et al. 2017, section 4.1."""
    assert TextbookCapsNet(classes=2).reconstruction_weight == 0.0005


def test_the_network_adds_the_reconstruction_error_of_the_labelled_capsule():
    torch.manual_seed(0)
    x, labels = torch.rand(2, 1, 28, 28), torch.tensor([1, 0])
    network = TextbookCapsNet(classes=2, reconstruction_weight=0.5)
    with torch.no_grad():
        v = network(x)
        only = torch.zeros(2, 2, 16)
        only[0, 1], only[1, 0] = v[0, 1], v[1, 0]
        error = (network.decoder(only.flatten(1)).view_as(x) - x).square().sum() / 2
        want = margin_loss(lengths(v), labels) + 0.5 * error
        torch.testing.assert_close(network.loss(x, labels), want)
