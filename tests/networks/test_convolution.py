"""Every form of the convolution is torch's, in values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from anocaps.networks.convolution import Convolution

SHAPES = {  # channels, maps, kernel, stride, height, width
    "patches": (2, 6, 3, 2, 9, 12),
    "spectral": (96, 64, 9, 2, 20, 20),
    "direct": (30, 8, 3, 1, 6, 6),
}


def case(form, dtype=torch.float64):
    torch.manual_seed(0)
    layer = Convolution(*SHAPES[form]).to(dtype)
    assert layer.form == form
    channels, *_, height, width = SHAPES[form]
    return layer, torch.randn(3, channels, height, width, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("form", SHAPES)
def test_values_and_gradients(form):
    layer, x = case(form)
    wanted = F.conv2d(x, layer.weight, layer.bias, layer.stride)
    y = layer(x)
    torch.testing.assert_close(y, wanted)
    push, inputs = torch.randn_like(wanted), (x, layer.weight, layer.bias)
    for have, want in zip(*(torch.autograd.grad(t, inputs, push) for t in (y, wanted))):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("form", SHAPES)
def test_an_activation_in_place(form):
    """In place on a view would be refused, or copy every map."""
    layer, x = case(form)
    y = layer(x)
    assert not y._is_view() or form == "direct"
    (have,) = torch.autograd.grad(torch.relu_(y).square().sum(), x)
    wanted = torch.relu(F.conv2d(x, layer.weight, layer.bias, layer.stride))
    (want,) = torch.autograd.grad(wanted.square().sum(), x)
    torch.testing.assert_close(have, want)


@pytest.mark.parametrize("form", ["patches", "spectral"])
def test_channels_are_last_in_memory(form):
    layer, x = case(form)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


def test_patches_in_the_precision_of_autocast():
    layer, x = case("patches", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    wanted = F.conv2d(x, layer.weight, layer.bias, layer.stride)
    torch.testing.assert_close(y.float(), wanted, rtol=0.02, atol=0.02)
    (want,) = torch.autograd.grad(wanted.square().sum(), layer.weight)
    torch.testing.assert_close(layer.weight.grad, want, rtol=0.05, atol=0.5)


def test_the_kept_transform_follows_the_weights():
    layer, x = case("spectral")
    layer.eval()
    for _ in range(2):
        with torch.inference_mode():
            y = layer(x)
        torch.testing.assert_close(y, F.conv2d(x, layer.weight, layer.bias, layer.stride))
        with torch.no_grad():
            layer.weight.mul_(2)
        layer.train().eval()
