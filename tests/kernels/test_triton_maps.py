"""The Triton kernels around the primary convolution against float64; see triton_interpreter.py.

Where a kernel rounds to bfloat16 the reference rounds too, so that tolerances can be tight.
"""

import pytest
import torch
from agreement import assert_agree, off
from torch.nn.functional import conv2d
from triton_interpreter import (
    DEVICE,
    HERE,
    WithoutGpu,
    gradient_like,
    in_bfloat16,
    needs_triton,
)

from anocaps.capsules import textbook

pytestmark = needs_triton
LAST = torch.channels_last


def images(n, c, height, width, maps, side):
    """Pixels, weight and bias of a first convolution, in the memory order of training."""
    g = torch.Generator().manual_seed(0)
    pixels = torch.rand(n, c, height, width, generator=g)
    weight = torch.randn(maps, c, side, side, generator=g).contiguous(memory_format=LAST) / side
    bias = torch.randn(maps, generator=g) * 0.2
    return pixels.to(DEVICE), weight.to(DEVICE).requires_grad_(), bias.to(DEVICE).requires_grad_()


def compare_first(pixels, weight, bias, stride):
    from anocaps.kernels.triton.maps import first_maps

    maps = first_maps(pixels, weight, bias, stride)
    w = in_bfloat16(weight).double().requires_grad_()
    b = bias.detach().double().requires_grad_()
    before = conv2d(pixels.bfloat16().double(), w, b, stride)
    assert maps.dtype == torch.bfloat16
    assert maps.shape == before.shape
    assert maps.is_contiguous(memory_format=LAST)
    assert off(maps, in_bfloat16(before.relu())) < 5e-4  # a sum may fall on another side
    grad = gradient_like(maps)
    maps.backward(grad)
    before.backward(grad.double() * (maps > 0))  # the mask of what was returned
    for mine, true in ((weight, w), (bias, b)):
        assert mine.grad.dtype == mine.dtype and mine.grad.stride() == mine.stride()
        assert off(mine.grad, true.grad) < 1e-4


def some_maps(n, types, size, h, w):
    """Maps in channels-last memory, and a bias."""
    g = torch.Generator().manual_seed(0)
    maps = torch.randn(n, types * size, h, w, generator=g).to(DEVICE, torch.bfloat16)
    bias = torch.randn(types * size, generator=g).to(DEVICE)
    return maps.contiguous(memory_format=LAST), bias


def compare_squash(maps, bias, size):
    from anocaps.kernels.triton.maps import squash_maps

    assert_agree(
        lambda m, b: squash_maps(m, b, size),
        lambda m, b: textbook.primary_capsules(m + b[:, None, None], size),
        (maps, bias),
        value=1e-6,
        gradient=5e-3,
    )


class TestFirstMaps:
    __test__ = HERE

    @pytest.mark.parametrize(
        ("n", "c", "height", "width", "maps", "side", "stride"),
        [
            (3, 1, 14, 13, 256, 9, 1),
            (3, 2, 12, 11, 100, 9, 1),
            (3, 3, 11, 10, 160, 5, 2),
            (2, 1, 7, 9, 5, 3, 3),
            (1, 1, 17, 16, 40, 16, 1),  # K = 256: the column of ones is one more
            (2, 3, 4, 4, 33, 4, 1),  # one place an image
            (2, 5, 6, 6, 1, 1, 1),
        ],
    )
    def test_shapes(self, n, c, height, width, maps, side, stride):
        compare_first(*images(n, c, height, width, maps, side), stride)

    def test_ranges_of_several_tiles(self, monkeypatch):
        monkeypatch.setattr("anocaps.kernels.triton.maps.FIRST_RANGES", 2)
        monkeypatch.setattr("anocaps.kernels.triton.maps.BACK_RANGES", 3)
        compare_first(*images(5, 1, 13, 13, 96, 5), 1)

    def test_not_a_number_is_not_hidden(self):
        from anocaps.kernels.triton.maps import first_maps

        pixels, weight, bias = images(2, 1, 9, 9, 64, 3)
        pixels[1, 0, 0, 0] = float("nan")
        maps = first_maps(pixels, weight, bias, 1)
        assert maps[1, :, 0, 0].isnan().all()
        assert maps.isnan().sum() == 64


class TestSquashMaps:
    __test__ = HERE

    @pytest.mark.parametrize(
        ("n", "types", "size", "h", "w"),
        [(3, 5, 4, 7, 5), (3, 12, 8, 1, 1), (2, 40, 8, 3, 2), (1, 3, 1, 2, 5), (2, 2, 32, 5, 3)],
    )
    def test_shapes(self, n, types, size, h, w):
        compare_squash(*some_maps(n, types, size, h, w), size)

    def test_ranges_of_several_tiles(self, monkeypatch):
        monkeypatch.setattr("anocaps.kernels.triton.maps.SQUASH_RANGES", 3)
        compare_squash(*some_maps(4, 6, 8, 5, 5), 8)

    def test_zero_and_long_capsules_have_finite_gradients(self):
        from anocaps.kernels.triton.maps import squash_maps

        maps, bias = some_maps(1, 2, 4, 2, 2)
        maps[:, :4], maps[:, 4:] = 0, 1e15
        maps.requires_grad_()
        u = squash_maps(maps, bias * 0, 4)
        u.sum().backward()
        assert u[:, ::2].abs().max() == 0
        assert torch.allclose(u[:, 1::2].norm(dim=-1), torch.ones((), device=DEVICE))
        assert torch.isfinite(maps.grad).all()


class TestTogether:
    __test__ = HERE

    @pytest.mark.parametrize(
        ("kernel", "size"), [(5, 8), (17, 8), (5, 12)], ids=["fused", "large kernel", "size 12"]
    )
    def test_a_network_in_bfloat16(self, kernel, size):
        """Also where a kernel does not take its part, and torch computes it."""
        from anocaps.networks.capsnet import CapsNet, CapsNetConfig

        torch.manual_seed(0)
        config = CapsNetConfig(
            1, 24, 24, 2, conv_maps=16, conv_kernel=kernel, primary_types=2, primary_size=size,
            primary_kernel=3,
        )  # fmt: skip
        net = CapsNet(config).to(DEVICE, memory_format=LAST)
        x = torch.rand(4, 1, 24, 24, device=DEVICE)
        ref = net.primary_capsules(x)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            u = net.primary_capsules(x)
        assert off(u, ref) < 2e-2
        grad = gradient_like(u)
        trained = [*net.conv1.parameters(), *net.primary.parameters()]
        mine, true = (torch.autograd.grad(out, trained, grad) for out in (u, ref))
        for parameter, a, b in zip(trained, mine, true):
            assert a.dtype == parameter.dtype
            assert off(a, b) < 0.1  # the ReLU of some places falls on another side

    def test_twice_the_same_bits(self):
        from anocaps.kernels.triton.maps import first_maps, squash_maps

        pixels, weight, bias = images(3, 1, 12, 12, 64, 5)
        runs = []
        for _ in range(2):
            maps = first_maps(pixels, weight, bias, 1)
            u = squash_maps(maps, bias, 8)
            runs.append((maps, u, *torch.autograd.grad(u, (weight, bias), gradient_like(u))))
        assert all(torch.equal(a, b) for a, b in zip(*runs))


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE
