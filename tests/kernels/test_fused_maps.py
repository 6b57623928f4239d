"""The Triton kernels around the primary convolution against plain float64 PyTorch.

Where a kernel rounds to bfloat16 the reference rounds too, so that tolerances can be tight.
They run as triton_interpreter.py says.
"""

import pytest
import torch
from torch.nn.functional import conv2d
from triton_interpreter import (
    DEVICE,
    HERE,
    WithoutGpu,
    gradient_like,
    in_bfloat16,
    needs_triton,
    off,
)

from anocaps.capsules.squash import squash

pytestmark = needs_triton


def images(n, c, height, width, maps, side, seed=0):
    """Pixels, weight and bias of a first convolution."""
    g = torch.Generator().manual_seed(seed)
    pixels = torch.rand(n, c, height, width, generator=g)
    weight = torch.randn(maps, c, side, side, generator=g) / side
    bias = torch.randn(maps, generator=g) * 0.2
    return pixels.to(DEVICE), weight.to(DEVICE).requires_grad_(), bias.to(DEVICE).requires_grad_()


def compare_first(pixels, weight, bias, stride):
    from anocaps.kernels.maps import first_maps

    maps = first_maps(pixels, weight, bias, stride)
    w = in_bfloat16(weight).double().requires_grad_()
    b = bias.detach().double().requires_grad_()
    before = conv2d(pixels.bfloat16().double(), w, b, stride)
    assert maps.dtype == torch.bfloat16
    assert maps.shape == before.shape
    assert maps.is_contiguous(memory_format=torch.channels_last)
    assert off(maps, in_bfloat16(before.relu())) < 5e-4  # a sum may fall on another side
    assert off(maps, before.relu()) < 1e-2

    grad = gradient_like(maps)
    maps.backward(grad)
    before.backward(grad.double() * (maps > 0))  # the mask of what was returned
    for mine, true in ((weight, w), (bias, b)):
        assert mine.grad.dtype == mine.dtype
        assert mine.grad.shape == mine.shape
        assert off(mine.grad, true.grad) < 1e-4


def some_maps(n, types, size, h, w, dtype=torch.bfloat16, seed=0):
    """Maps in channels-last memory, and a bias."""
    g = torch.Generator().manual_seed(seed)
    maps = torch.randn(n, types * size, h, w, generator=g).to(DEVICE, dtype)
    bias = torch.randn(types * size, generator=g).to(DEVICE).requires_grad_()
    return maps.contiguous(memory_format=torch.channels_last).requires_grad_(), bias


def compare_squash(maps, bias, size):
    from anocaps.kernels.maps import squash_maps

    u = squash_maps(maps, bias, size)
    m, b = (x.detach().double().requires_grad_() for x in (maps, bias))
    s = (m + b[:, None, None]).permute(0, 2, 3, 1).reshape(len(m), -1, size)
    ref = squash(s)
    assert u.dtype == torch.float32
    assert u.shape == ref.shape
    assert u.is_contiguous()
    assert off(u, ref) < 1e-6

    grad = gradient_like(u)
    u.backward(grad)
    ref.backward(grad.double())
    assert maps.grad.dtype == maps.dtype
    assert maps.grad.is_contiguous(memory_format=torch.channels_last)
    exact = maps.dtype == torch.float32
    assert off(maps.grad, m.grad if exact else in_bfloat16(m.grad)) < (2e-6 if exact else 5e-4)
    assert bias.grad.dtype == bias.dtype
    assert off(bias.grad, b.grad) < 1e-5


class TestFirstMaps:
    __test__ = HERE

    @pytest.mark.parametrize(
        ("n", "c", "height", "width", "maps", "side", "stride"),
        [
            (1, 1, 12, 12, 64, 9, 1),
            (3, 1, 14, 13, 256, 9, 1),
            (3, 2, 12, 11, 100, 9, 1),
            (1, 3, 13, 12, 72, 9, 2),
            (3, 3, 11, 10, 160, 5, 2),
            (1, 2, 9, 8, 200, 3, 1),
            (2, 1, 7, 9, 5, 3, 3),
            (1, 1, 17, 16, 40, 16, 1),  # K = 256: the column of ones is one more
            (2, 3, 4, 4, 33, 4, 1),  # one place an image
            (2, 5, 6, 6, 1, 1, 1),
        ],
    )
    def test_shapes(self, n, c, height, width, maps, side, stride):
        compare_first(*images(n, c, height, width, maps, side), stride)

    def test_ranges_of_several_tiles(self, monkeypatch):
        from anocaps.kernels import maps as fused_maps

        monkeypatch.setattr(fused_maps, "FIRST_RANGES", 2)
        monkeypatch.setattr(fused_maps, "BACK_RANGES", 3)
        compare_first(*images(5, 1, 13, 13, 96, 5), 1)

    @pytest.mark.parametrize("order", ["channels last", "transposed", "with gaps"])
    def test_any_order_of_memory(self, order):
        pixels, weight, bias = images(2, 3, 9, 8, 64, 3)
        with torch.no_grad():
            if order == "channels last":
                weight = weight.contiguous(memory_format=torch.channels_last)
                pixels = pixels.contiguous(memory_format=torch.channels_last)
            elif order == "transposed":
                weight = weight.transpose(0, 3).contiguous().transpose(0, 3)
            else:
                weight = torch.stack([weight, weight], dim=-1)[..., 0]
                pixels = torch.stack([pixels, pixels], dim=-1)[..., 0]
                bias = torch.stack([bias, bias], dim=-1)[..., 0]
        weight, bias = (x.detach().requires_grad_() for x in (weight, bias))
        compare_first(pixels, weight, bias, 1)
        if order != "with gaps":
            assert weight.grad.stride() == weight.stride()

    def test_gradients_in_another_order_of_memory(self):
        from anocaps.kernels.maps import first_maps

        pixels, weight, bias = images(2, 1, 9, 8, 64, 3)
        maps = first_maps(pixels, weight, bias, 1)
        grad = gradient_like(maps).contiguous(memory_format=torch.channels_last)
        leaves = weight, bias
        last = torch.autograd.grad(maps, leaves, grad, retain_graph=True)
        first = torch.autograd.grad(maps, leaves, grad.contiguous())
        assert all(torch.equal(a, b) for a, b in zip(last, first))

    def test_not_a_number_is_not_hidden(self):
        from anocaps.kernels.maps import first_maps

        pixels, weight, bias = images(2, 1, 9, 9, 64, 3)
        pixels[1, 0, 0, 0] = float("nan")
        maps = first_maps(pixels, weight, bias, 1)
        assert maps[1, :, 0, 0].isnan().all()
        assert maps.isnan().sum() == 64

    def test_what_does_not_fit_is_refused(self):
        from anocaps.base.errors import InputError
        from anocaps.kernels.maps import available, first_maps

        pixels, weight, bias = images(1, 1, 20, 20, 8, 3)
        assert available(pixels)
        assert not available(pixels.double())
        for message, arguments in {
            "float64": (pixels.double(), weight, bias, 1),
            "do not fit": (pixels, weight, bias[1:], 1),
            "289 numbers": (pixels, torch.zeros(8, 1, 17, 17, device=DEVICE), bias, 1),
            "stride 0": (pixels, weight, bias, 0),
            "no gradient for pixels": (pixels.clone().requires_grad_(), weight, bias, 1),
        }.items():
            with pytest.raises(InputError, match=message):
                first_maps(*arguments)


class TestSquashMaps:
    __test__ = HERE

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    @pytest.mark.parametrize(
        ("n", "types", "size", "h", "w"),
        [(1, 32, 8, 3, 3), (3, 5, 4, 7, 5), (3, 12, 8, 1, 1), (2, 40, 8, 3, 2), (1, 3, 1, 2, 5),
         (2, 2, 32, 5, 3), (1, 1, 2, 9, 9)],
    )  # fmt: skip
    def test_shapes(self, n, types, size, h, w, dtype):
        compare_squash(*some_maps(n, types, size, h, w, dtype), size)

    def test_ranges_of_several_tiles(self, monkeypatch):
        from anocaps.kernels import maps as fused_maps

        monkeypatch.setattr(fused_maps, "SQUASH_RANGES", 3)
        compare_squash(*some_maps(4, 6, 8, 5, 5), 8)

    def test_any_order_of_memory(self):
        from anocaps.kernels.maps import squash_maps

        maps, bias = some_maps(2, 4, 8, 3, 5)
        assert torch.equal(squash_maps(maps.contiguous(), bias, 8), squash_maps(maps, bias, 8))

    def test_zero_and_long_capsules_have_finite_gradients(self):
        from anocaps.kernels.maps import squash_maps

        maps, bias = some_maps(1, 2, 4, 2, 2)
        with torch.no_grad():
            maps[:, :4], maps[:, 4:] = 0, 1e15
            bias.zero_()
        u = squash_maps(maps, bias, 4)
        u.sum().backward()
        assert u[:, ::2].abs().max() == 0
        assert torch.allclose(u[:, 1::2].norm(dim=-1), torch.ones((), device=DEVICE))
        assert torch.isfinite(maps.grad).all()
        assert torch.isfinite(bias.grad).all()

    def test_what_does_not_fit_is_refused(self):
        from anocaps.base.errors import InputError
        from anocaps.kernels.maps import squash_maps

        maps, bias = some_maps(1, 3, 8, 2, 2)
        for message, arguments in {
            "float64": (maps.double(), bias, 8),
            "not 3": (maps, bias, 3),
            "not 64": (maps, bias, 64),
            "do not fit": (maps, bias[1:], 8),
            "capsules of 16": (maps, bias, 16),
        }.items():
            with pytest.raises(InputError, match=message):
                squash_maps(*arguments)


class TestTogether:
    __test__ = HERE

    def test_the_encoder_of_a_network_under_autocast(self):
        """conv1 and primary capsules of a small CapsNet, parameters in channels-last memory."""
        from anocaps.kernels.maps import first_maps, squash_maps
        from anocaps.networks.capsnet import CapsNet, CapsNetConfig

        torch.manual_seed(0)
        config = CapsNetConfig(
            2, 16, 15, 2, conv_maps=24, conv_kernel=5, primary_types=3, primary_kernel=5
        )
        net = CapsNet(config).to(DEVICE, memory_format=torch.channels_last)
        x = torch.rand(3, 2, 16, 15, device=DEVICE)
        trained = [*net.conv1.parameters(), *net.primary.parameters()]
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            maps = first_maps(x, net.conv1.weight, net.conv1.bias, 1)
            maps = conv2d(maps, net.primary.weight, None, 2)
            u = squash_maps(maps, net.primary.bias, config.primary_size)
        assert maps.dtype == torch.bfloat16
        ref = net.primary_capsules(x)
        assert off(u, ref) < 2e-2
        grad = gradient_like(u)
        mine = torch.autograd.grad(u, trained, grad)
        true = torch.autograd.grad(ref, trained, grad)
        for parameter, a, b in zip(trained, mine, true):
            assert a.dtype == parameter.dtype
            assert a.stride() == parameter.stride()
            assert off(a, b) < 5e-2  # the ReLU of some places falls on another side

    @pytest.mark.parametrize("kernel", [5, 17], ids=["fused", "too large for the kernel"])
    def test_a_network_takes_first_kernels_of_any_size(self, kernel):
        from anocaps.networks.capsnet import CapsNet, CapsNetConfig

        torch.manual_seed(0)
        config = CapsNetConfig(
            1, 24, 24, 2, conv_maps=16, conv_kernel=kernel, primary_types=2, primary_kernel=3
        )
        net = CapsNet(config).to(DEVICE, memory_format=torch.channels_last)
        x = torch.rand(16, 1, 24, 24, device=DEVICE)
        ref = net.primary_capsules(x)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            u = net.primary_capsules(x)
        assert off(u, ref) < 2e-2
        grad = gradient_like(u)
        trained = [*net.conv1.parameters(), *net.primary.parameters()]
        mine, true = (torch.autograd.grad(out, trained, grad) for out in (u, ref))
        for a, b in zip(mine, true):
            assert off(a, b) < 0.1  # the ReLU of some places falls on another side

    def test_twice_the_same_bits(self):
        from anocaps.kernels.maps import first_maps, squash_maps

        pixels, weight, bias = images(3, 1, 12, 12, 64, 5)
        runs = []
        for _ in range(2):
            maps = first_maps(pixels, weight, bias, 1)
            u = squash_maps(maps, bias, 8)
            runs.append((maps, u, *torch.autograd.grad(u, (weight, bias), gradient_like(u))))
        assert all(torch.equal(a, b) for a, b in zip(*runs))


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE

    def test_cpu_tensors_are_left_to_the_plain_path(self):
        from anocaps.kernels.maps import available

        assert not available(torch.zeros(1, 1, 28, 28))
