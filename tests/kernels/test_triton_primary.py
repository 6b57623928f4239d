"""The Triton kernels of the primary convolution against float64; see triton_interpreter.py.

Operands are rounded to bfloat16 in the reference too, so that tolerances can be tight.
"""

import pytest
import torch
from agreement import off
from torch.nn.functional import conv2d
from triton_interpreter import (
    DEVICE,
    HERE,
    ON_GPU,
    WithoutGpu,
    gradient_like,
    in_bfloat16,
    needs_triton,
)

pytestmark = needs_triton
LAST = torch.channels_last


def some(n, c, o, height, width, side):
    """Maps and weight, both in channels-last memory."""
    g = torch.Generator().manual_seed(0)
    maps = torch.randn(n, c, height, width, generator=g).to(DEVICE, torch.bfloat16)
    weight = torch.randn(o, c, side, side, generator=g).to(DEVICE) / side
    return tuple(x.contiguous(memory_format=LAST).requires_grad_() for x in (maps, weight))


def compare(maps, weight, stride):
    from anocaps.kernels.triton.primary import strided_conv

    out = strided_conv(maps, weight, stride)
    m, w = (x.detach().bfloat16().double().requires_grad_() for x in (maps, weight))
    true = conv2d(m, w, None, stride)
    assert out.dtype == torch.bfloat16
    assert out.shape == true.shape
    assert out.is_contiguous(memory_format=LAST)
    assert off(out, in_bfloat16(true)) < 5e-4  # a sum may fall on another side

    grad = gradient_like(out)
    out.backward(grad)
    true.backward(grad.double())
    assert maps.grad.dtype == maps.dtype
    assert maps.grad.is_contiguous(memory_format=LAST)
    assert off(maps.grad, in_bfloat16(m.grad)) < 5e-4
    assert (maps.grad[m.grad == 0] == 0).all()  # at the edge that no patch reaches
    assert weight.grad.dtype == weight.dtype and weight.grad.stride() == weight.stride()
    assert off(weight.grad, w.grad) < 1e-5


class TestStridedConv:
    __test__ = HERE

    @pytest.mark.parametrize(
        ("n", "c", "o", "height", "width", "side", "stride"),
        [
            (3, 64, 64, 9, 9, 5, 2),
            (2, 64, 64, 7, 8, 4, 2),  # the last column is not used
            (3, 64, 64, 7, 9, 3, 1),
            (30, 64, 64, 7, 7, 3, 2),  # columns of the input that share a tile, and others
            (2, 128, 64, 7, 7, 3, 2),
            (2, 64, 512, 6, 7, 3, 2),  # several tiles of maps
            (2, 512, 64, 5, 5, 2, 2),
            (2, 64, 64, 5, 5, 5, 2),  # one place an image
            (2, 64, 64, 6, 6, 1, 2),  # some places of the input have no tap
            (1, 64, 64, 1, 1, 1, 1),
        ],
    )
    def test_shapes(self, n, c, o, height, width, side, stride):
        compare(*some(n, c, o, height, width, side), stride)

    @pytest.mark.parametrize("programs", [1, 7])
    def test_ways_to_share_the_work(self, programs, monkeypatch):
        from anocaps.kernels.triton import primary

        monkeypatch.setattr(primary, "FORWARD_PROGRAMS", programs)
        monkeypatch.setattr(primary, "DWEIGHT_PROGRAMS", programs)
        monkeypatch.setattr(primary, "DWEIGHT_COLUMNS", 64)
        compare(*some(7, 128, 64, 9, 8, 3), 2)

    def test_another_memory_order(self):
        maps, weight = some(2, 64, 64, 7, 7, 3)
        compare(maps, weight.detach().contiguous().requires_grad_(), 2)

    def test_not_a_number_is_not_hidden_nor_spread(self):
        from anocaps.kernels.triton.primary import strided_conv

        maps, weight = some(3, 64, 64, 7, 7, 3)
        with torch.no_grad():
            maps[1, 0, 0, 0] = float("nan")
        out = strided_conv(maps, weight, 2)
        assert out[1, :, 0, 0].isnan().all()
        assert out.isnan().sum() == 64
        grad = gradient_like(out)
        grad[2, 0, 0, 0] = float("nan")
        (dmaps,) = torch.autograd.grad(out, maps, grad)
        assert dmaps[2, :, :3, :3].isnan().all()
        assert dmaps.isnan().sum() == 64 * 9


class TestOnGpu:
    __test__ = ON_GPU

    def test_of_full_size_and_twice_the_same_bits(self):
        from anocaps.kernels.triton.primary import strided_conv

        maps, weight = some(100, 256, 256, 20, 20, 9)
        runs = []
        for _ in range(2):
            out = strided_conv(maps, weight, 2)
            runs.append((out, *torch.autograd.grad(out, (maps, weight), gradient_like(out))))
        assert all(torch.equal(a, b) for a, b in zip(*runs))
        compare(maps, weight, 2)


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE
