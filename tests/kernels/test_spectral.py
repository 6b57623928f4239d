"""The spectral convolution is torch's, in values and gradients, for any shape."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agree
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anocaps.kernels.spectral import convolution as spectral
from anocaps.kernels.spectral.convolution import spectral_conv2d, spectral_weight
from anocaps.kernels.spectral.plan import spectral_plan, wins


def _inputs(
    images: int, channels: int, maps: int, size: tuple[int, int], kernel: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(0)
    shapes = (images, channels, *size), (maps, channels, kernel, kernel), (maps,)
    x, weight, bias = (torch.randn(s, generator=make, dtype=dtype) for s in shapes)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def _agree(inputs: tuple[Tensor, Tensor, Tensor], stride: int) -> None:
    x, weight, bias = inputs
    assert_agree(lambda *t: spectral_conv2d(*t, stride), lambda *t: F.conv2d(*t, stride), inputs)
    plan = spectral_plan(x.shape[2], x.shape[3], weight.shape[2], stride, x.dtype)
    with torch.no_grad():
        kept = spectral_conv2d(x, weight, bias, stride, spectral_weight(weight, plan))
    torch.testing.assert_close(kept, F.conv2d(*inputs, stride), rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_shape(data: st.DataObject) -> None:
    kernel = data.draw(st.integers(1, 9), label="kernel")
    stride = data.draw(st.integers(1, 4), label="stride")
    size = tuple(data.draw(st.integers(kernel, kernel + 22), label="side") for _ in range(2))
    images, channels, maps = (data.draw(st.integers(1, 4), label="count") for _ in range(3))
    _agree(_inputs(images, channels, maps, size, kernel, torch.float64), stride)


@pytest.mark.parametrize("most", [1, 2, 3])  # images times tiles, of which an image has two
def test_blocks_of_images(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(spectral, "IMAGES", most)
    _agree(_inputs(5, 3, 3, (20, 31), 9, torch.float64), 2)


def test_only_the_gradients_asked_for() -> None:
    x, weight, _ = _inputs(2, 2, 3, (9, 9), 3, torch.float64)
    frozen = spectral_conv2d(x, weight.detach(), None, 2).sum()
    (dx,) = torch.autograd.grad(frozen, x)
    (wanted,) = torch.autograd.grad(F.conv2d(x, weight, stride=2).sum(), x)
    torch.testing.assert_close(dx, wanted)
    spectral_conv2d(x.detach(), weight, None, 2).sum().backward()
    assert weight.grad is not None
    assert x.grad is None


def test_kept_weights_never_cut_a_gradient() -> None:
    x, weight, _ = _inputs(2, 2, 3, (9, 9), 3, torch.float64)
    kept = spectral_weight(weight, spectral_plan(9, 9, 3, 2, torch.float64))
    assert not any(t.requires_grad for t in kept)
    assert spectral_conv2d(x, weight, None, 2, kept).requires_grad


def test_memory_formats() -> None:
    x, weight, _ = (t.detach() for t in _inputs(3, 4, 5, (20, 20), 9, torch.float64))
    rows = [t.contiguous(memory_format=torch.channels_last).requires_grad_() for t in (x, weight)]
    y = spectral_conv2d(rows[0], rows[1], None, 2)
    torch.testing.assert_close(y, F.conv2d(x, weight, stride=2))
    y.sum().backward()
    for t in rows:
        assert t.grad is not None
        assert t.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("side", "channels", "stride"),
    [(20, 256, 2), (24, 256, 2), (14, 64, 1), (16, 64, 1)],  # 10, 12, 14 and 16 points on an axis
)
def test_single_precision_is_as_good_as_direct(side: int, channels: int, stride: int) -> None:
    x, weight, _ = _inputs(2, channels, 16, (side, side), 9, torch.float32)
    x, weight = torch.relu(x.detach()), weight.detach() / 144
    x64, weight64 = (t.double().requires_grad_() for t in (x, weight))
    x.requires_grad_(), weight.requires_grad_()
    exact = F.conv2d(x64, weight64, stride=stride)
    ours = spectral_conv2d(x, weight, None, stride)
    direct = F.conv2d(x, weight, stride=stride)
    push = torch.randn_like(ours)
    wanted = exact, *torch.autograd.grad(exact, (x64, weight64), push.double())
    for y in (ours, direct):
        have = y, *torch.autograd.grad(y, (x, weight), push)
        for h, w in zip([t.detach() for t in have], [t.detach() for t in wanted]):
            assert float((h - w).norm() / w.norm()) < 1e-6
            assert float((h - w).abs().max() / w.abs().max()) < 2e-6


@pytest.mark.parametrize("side", [9, 20, 24, 56, 120])  # from images of 17, 28, 32, 64 and 128
def test_wins_on_the_papers_layer(side: int) -> None:
    assert wins(side, side, 9, 2, 256, 256)
