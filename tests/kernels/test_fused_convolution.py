"""The Triton kernels of the primary convolution against plain float64 PyTorch.

Operands are rounded to bfloat16 in the reference too, so that tolerances can be tight. They run
as triton_interpreter.py says.
"""

import pytest
import torch
from torch.nn.functional import conv2d
from triton_interpreter import (
    DEVICE,
    HERE,
    ON_GPU,
    WithoutGpu,
    gradient_like,
    in_bfloat16,
    needs_triton,
    off,
)

pytestmark = needs_triton


def some(n, c, o, height, width, side, dtype=torch.bfloat16, seed=0):
    """Maps and weight, both in channels-last memory."""
    g = torch.Generator().manual_seed(seed)
    maps = torch.randn(n, c, height, width, generator=g).to(DEVICE, dtype)
    weight = torch.randn(o, c, side, side, generator=g).to(DEVICE) / side
    return tuple(
        x.contiguous(memory_format=torch.channels_last).requires_grad_() for x in (maps, weight)
    )


def compare(maps, weight, stride):
    from anocaps.kernels.primary import available, strided_conv

    assert available(maps, weight, stride)
    out = strided_conv(maps, weight, stride)
    m, w = (x.detach().bfloat16().double().requires_grad_() for x in (maps, weight))
    true = conv2d(m, w, None, stride)
    assert out.dtype == torch.bfloat16
    assert out.shape == true.shape
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert off(out, in_bfloat16(true)) < 5e-4  # a sum may fall on another side
    assert off(out, true) < 1e-2

    grad = gradient_like(out)
    out.backward(grad)
    true.backward(grad.double())
    assert maps.grad.dtype == maps.dtype
    assert maps.grad.is_contiguous(memory_format=torch.channels_last)
    assert off(maps.grad, in_bfloat16(m.grad)) < 5e-4
    assert (maps.grad[m.grad == 0] == 0).all()  # at the edge that no patch reaches
    assert weight.grad.dtype == weight.dtype
    assert off(weight.grad, w.grad) < (1e-5 if weight.dtype == torch.float32 else 1e-2)


class TestStridedConv:
    __test__ = HERE

    @pytest.mark.parametrize(
        ("n", "c", "o", "height", "width", "side", "stride"),
        [
            (3, 64, 64, 9, 9, 5, 2),
            (2, 64, 64, 8, 7, 3, 2),
            (2, 64, 64, 7, 8, 4, 2),  # the last column is not used
            (3, 64, 64, 7, 9, 3, 1),
            (2, 64, 64, 9, 8, 4, 1),
            (
                30,
                64,
                64,
                7,
                7,
                3,
                2,
            ),  # columns of the input that share a tile, and those that do not
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

    def test_as_for_mnist(self):
        """Maps 20 × 20 and a 9 × 9 kernel, as in the paper, with fewer images and maps."""
        compare(*some(1, 64, 64, 20, 20, 9), 2)

    @pytest.mark.parametrize("programs", [1, 7, 8])
    def test_ways_to_share_the_work(self, programs, monkeypatch):
        from anocaps.kernels import primary as fused_convolution

        monkeypatch.setattr(fused_convolution, "FORWARD_PROGRAMS", programs)
        monkeypatch.setattr(fused_convolution, "DWEIGHT_PROGRAMS", programs)
        monkeypatch.setattr(fused_convolution, "DWEIGHT_COLUMNS", 64)
        compare(*some(7, 128, 64, 9, 8, 3), 2)

    @pytest.mark.parametrize("bulk", [False, True])
    def test_ways_to_bring_the_weight(self, bulk, monkeypatch):
        from anocaps.kernels import primary as fused_convolution

        monkeypatch.setattr(fused_convolution, "DMAPS_BULK", bulk)
        compare(*some(5, 128, 64, 7, 8, 3), 2)

    @pytest.mark.parametrize("order", ["plain", "transposed", "with gaps"])
    def test_any_order_of_memory(self, order):
        maps, weight = some(2, 64, 64, 7, 7, 3)
        with torch.no_grad():
            if order == "plain":
                maps, weight = maps.contiguous(), weight.contiguous()
            elif order == "transposed":
                weight = weight.transpose(0, 3).contiguous().transpose(0, 3)
            else:
                maps, weight = (torch.stack([x, x], dim=-1)[..., 0] for x in (maps, weight))
        weight = weight.detach().requires_grad_()
        whole = maps.detach().requires_grad_()
        from anocaps.kernels.primary import strided_conv

        out = strided_conv(whole, weight, 2)
        grad = gradient_like(out)
        mine = torch.autograd.grad(out, (whole, weight), grad.contiguous())
        same = [x.detach().contiguous(memory_format=torch.channels_last) for x in (maps, weight)]
        same = [x.requires_grad_() for x in same]
        again = strided_conv(*same, 2)
        assert torch.equal(out, again)
        true = torch.autograd.grad(again, same, grad.contiguous(memory_format=torch.channels_last))
        assert all(torch.equal(a, b) for a, b in zip(mine, true))
        if order != "with gaps":
            assert mine[1].stride() == weight.stride()

    def test_other_dtypes(self):
        compare(*some(2, 64, 64, 7, 7, 3, torch.float32), 2)
        maps, weight = some(2, 64, 64, 7, 7, 3)
        compare(maps, weight.detach().bfloat16().requires_grad_(), 2)

    def test_only_the_gradients_that_are_asked_for(self):
        from anocaps.kernels.primary import strided_conv

        maps, weight = some(2, 64, 64, 7, 7, 3)
        strided_conv(maps, weight.detach(), 2).sum().backward()
        assert maps.grad is not None
        strided_conv(maps.detach(), weight, 2).sum().backward()
        assert weight.grad is not None

    def test_under_autocast(self):
        from anocaps.kernels.primary import strided_conv

        maps, weight = some(2, 64, 64, 7, 7, 3)
        runs = []
        for enabled in (False, True):
            with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=enabled):
                out = strided_conv(maps, weight, 2)
            runs.append((out, *torch.autograd.grad(out, (maps, weight), gradient_like(out))))
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(*runs))

    def test_not_a_number_is_not_hidden_nor_spread(self):
        from anocaps.kernels.primary import strided_conv

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

    def test_what_does_not_fit_is_refused(self):
        from anocaps.base.errors import InputError
        from anocaps.kernels.primary import available, strided_conv

        maps, weight = some(2, 64, 64, 7, 7, 3)
        for message, arguments in {
            "float64": (maps.double(), weight, 2),
            "do not fit": (maps[:, :32], weight, 2),
            "not fit": (maps[:0], weight, 2),
            "not fit; use a plain convolution": (maps[:, :, :2], weight, 2),
            "stride 3": (maps, weight, 3),
            "96 → 64 maps": (*some(1, 96, 64, 4, 4, 3), 1),
            "64 → 32 maps": (maps, weight[:32], 1),
            "one device": (maps[0], weight, 2),
        }.items():
            assert not available(*arguments)
            with pytest.raises(InputError, match=message):
                strided_conv(*arguments)


class TestOnGpu:
    __test__ = ON_GPU

    def test_of_full_size_and_twice_the_same_bits(self):
        from anocaps.kernels.primary import strided_conv

        maps, weight = some(100, 256, 256, 20, 20, 9)
        runs = []
        for _ in range(2):
            out = strided_conv(maps, weight, 2)
            runs.append((out, *torch.autograd.grad(out, (maps, weight), gradient_like(out))))
        assert all(torch.equal(a, b) for a, b in zip(*runs))
        compare(maps, weight, 2)


class TestWithoutGpu(WithoutGpu):
    __test__ = not HERE

    def test_cpu_tensors_are_left_to_the_plain_path(self):
        from anocaps.kernels.primary import available

        assert not available(torch.zeros(1, 64, 9, 9), torch.zeros(64, 64, 3, 3), 2)
