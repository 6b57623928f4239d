"""Routing without votes against the textbook's, in values and gradients."""

import pytest
import torch
from agreement import assert_agree

from anocaps.capsules import routing, textbook
from anocaps.capsules.routing import route

SHAPES = [  # images, inputs, input size, classes, class size, iterations
    (2, 5, 4, 3, 6, 3),
    (1, 1, 1, 2, 1, 1),
    (3, 7, 8, 9, 16, 2),
    (2, 12, 3, 2, 5, 4),
    (0, 7, 4, 3, 6, 3),
]


def random_case(images, inputs, size, classes, class_size, _=3):
    g = torch.Generator().manual_seed(0)
    shapes = (images, inputs, size), (inputs, classes, class_size, size), (classes, class_size)
    return [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]


def compare(inputs, iterations, gradient):
    def of(form):
        return lambda *x: form(*x, iterations, gradient)

    assert_agree(of(route), of(textbook.route), inputs)
    with torch.no_grad():
        torch.testing.assert_close(of(route)(*inputs), of(textbook.route)(*inputs))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gradient", ["all", "last"])
def test_it_is_the_textbook_s(shape, gradient):
    u, weight, bias = random_case(*shape)
    compare((u, weight, bias), shape[-1], gradient)
    compare((u, weight, None), shape[-1], gradient)


@pytest.mark.parametrize("gradient", ["all", "last"])
def test_blocks_change_nothing(monkeypatch, gradient):
    """Five images in parts of two, seven capsules in blocks of three, the last ones smaller."""
    u, weight, bias = random_case(5, 7, 4, 3, 6)
    monkeypatch.setattr(routing, "_IMAGES", 2)
    monkeypatch.setattr(routing, "_NUMBERS", 2 * 3 * 4 * 2)
    sizes = [[len(block.u[0, 0]) for block in part] for part in routing._parts(u, weight)]
    assert sizes == [[3, 3, 1]] * 3
    compare((u, weight, bias), 3, gradient)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1.0, 1e30])
def test_nothing_is_nan_for_any_finite_input(value):
    u = torch.full((2, 3, 4), value, requires_grad=True)
    weight = torch.full((3, 2, 5, 4), 0.5, requires_grad=True)
    v = route(textbook.squash(u), weight)
    textbook.lengths(v).sum().backward()
    for tensor in (v, u.grad, weight.grad):
        assert torch.isfinite(tensor).all()
