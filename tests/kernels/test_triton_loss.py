"""The Triton loss of a capsule network against float64; see triton_interpreter.py.

The reference rounds where the kernels do, so that tolerances can be tight.
"""

from itertools import pairwise

import pytest
import torch
from agreement import off
from torch import Tensor, nn
from triton_interpreter import DEVICE, HERE, WithoutGpu, in_bfloat16, needs_triton

from anocaps.capsules.textbook import lengths, margin_loss

pytestmark = needs_triton


def capsule_loss(*arguments) -> Tensor:
    from anocaps.kernels.triton import loss

    return loss.capsule_loss(*arguments)


def rounded(x: Tensor) -> Tensor:
    """To bfloat16 and back, with the gradient of x itself."""
    return x + (x.detach().bfloat16().double() - x.detach())


def stored(x: Tensor) -> Tensor:
    """The same as a kernel does it."""
    return x + (in_bfloat16(x).double() - x.detach())


def data(n, classes, size, side, *hidden, channels=1):
    """Capsules of all lengths from 0 to 1, labels, pixels and a decoder as CapsNet's."""
    torch.manual_seed(0)
    v = nn.functional.normalize(torch.randn(n, classes, size), dim=-1)
    v = v * torch.linspace(0, 1, n * classes).view(n, classes, 1)
    labels, pixels = torch.randint(0, classes, (n,)), torch.rand(n, channels, side, side + 1)
    layers: list[nn.Module] = []
    for before, after in pairwise((classes * size, *hidden, pixels[0].numel())):
        layers += [nn.Linear(before, after), nn.ReLU()]
    decoder = nn.Sequential(*layers[:-1], nn.Sigmoid()).to(DEVICE)
    return v.to(DEVICE).requires_grad_(), labels.to(DEVICE), pixels.to(DEVICE), decoder


def reference(v, labels, pixels, decoder, weight):
    """Loss and gradients of v and the decoder's parameters."""
    v = v.detach().double().requires_grad_()
    parameters = [p.detach().double().requires_grad_() for p in decoder.parameters()]
    mask = nn.functional.one_hot(labels, v.shape[1]).unsqueeze(-1)
    x = stored((v * mask).flatten(1))
    for k in range(0, len(parameters), 2):
        x = rounded(x @ rounded(parameters[k]).mT + rounded(parameters[k + 1]))
        x = rounded(x.relu()) if k < len(parameters) - 2 else x.sigmoid()
    error = (x - pixels.flatten(1)).square().sum(1).mean()
    loss = margin_loss(lengths(v), labels) + weight * error
    return loss, *torch.autograd.grad(3 * loss, [v, *parameters])


def compare(v, labels, pixels, decoder):
    parameters = list(decoder.parameters())
    loss = capsule_loss(v, labels, pixels, decoder, 0.05)
    grads = torch.autograd.grad(3 * loss, [v, *parameters])
    right, *rights = reference(v, labels, pixels, decoder, 0.05)
    assert loss.dtype == torch.float32 and loss.shape == ()
    assert off(loss, right) < 1e-4  # a sum may round to another side
    for x, mine, true in zip([v, *parameters], grads, rights):
        assert mine.dtype == torch.float32 and mine.stride() == x.stride()
        assert off(mine, true) < 2e-2  # gradients between layers are bfloat16


class TestCapsuleLoss:
    __test__ = HERE

    @pytest.mark.parametrize(
        ("shape", "channels"),
        [((3, 2, 16, 5, 24), 1), ((70, 9, 16, 6, 32, 48), 1), ((5, 1, 8, 4), 2),
         ((130, 3, 5, 3, 17, 33, 9), 3)],
    )  # fmt: skip
    def test_shapes(self, shape, channels):
        compare(*data(*shape, channels=channels))

    def test_the_deep_network_s_dense_decoder(self):
        """Its Unflatten gives the pixels their places, which changes no number."""
        from anocaps.networks.deep import DeepCapsNet, DeepConfig

        v, labels, pixels, _ = data(6, 3, 8, 8, channels=2)
        config = DeepConfig(2, 8, 9, 3, (4, 4, 4), ((1, 1), (2, 1)), 1, 4, 8, decoder=(16, 24))
        network = DeepCapsNet(config).to(DEVICE)
        compare(v, labels, pixels, network.decoder)
        error = (network.decode(v, labels) - pixels).square().sum() / len(v)
        plain = margin_loss(lengths(v), labels) + 0.05 * error
        assert off(capsule_loss(v, labels, pixels, network.decoder, 0.05), plain) < 1e-2

    def test_not_a_number_is_not_hidden(self):
        v, labels, pixels, decoder = data(4, 3, 8, 3, 16)
        with torch.no_grad():
            v[2, 1] = float("nan")
        assert capsule_loss(v, labels, pixels, decoder, 0.0).isnan()

    def test_twice_the_same_bits(self):
        v, labels, pixels, decoder = data(70, 9, 16, 6, 32)
        runs = []
        for _ in range(2):
            loss = capsule_loss(v, labels, pixels, decoder, 0.05)
            runs.append((loss, *torch.autograd.grad(loss, [v, *decoder.parameters()])))
        assert all(torch.equal(a, b) for a, b in zip(*runs))


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE
