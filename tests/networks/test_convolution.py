"""Every form of the convolution is torch's, in values and gradients."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agree

from anocaps.kernels import choose
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
    stride = layer.stride[0]
    assert_agree(
        lambda *inputs: choose.convolution(form, *inputs, stride, None),
        lambda *inputs: F.conv2d(*inputs, stride),
        (x, layer.weight, layer.bias),
    )
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias, stride))


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


CHANGES = {  # of a layer between two scorings
    "weights loaded": lambda layer: layer.load_state_dict(_others(layer)),
    "training": lambda layer: _train(layer),
    "a step in eval mode": lambda layer: _step(layer),
    "another precision": lambda layer: layer.float(),
}


def _others(layer):
    return {name: 2 * value for name, value in layer.state_dict().items()}


def _train(layer):
    layer.train()
    layer.weight.data.mul_(2)  # as kernels do: torch does not hear of it
    layer.eval()


def _step(layer):
    x = torch.ones(1, layer.in_channels, 20, 20, dtype=torch.float64)
    layer(x).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=1.0).step()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("change", CHANGES)
def test_the_kept_transform_follows_the_weights(change, mode):
    layer, x = case("spectral")
    layer.eval()
    with mode():
        layer(x)
    CHANGES[change](layer)
    x = x.detach().to(layer.weight.dtype)
    with mode():
        y = layer(x)
    torch.testing.assert_close(y, F.conv2d(x, layer.weight, layer.bias, layer.stride))


def test_weights_made_in_inference_mode():
    """They do not tell of changes, so that nothing is kept of them."""
    with torch.inference_mode():
        layer, x = case("spectral")
        layer.eval()
        for _ in range(2):
            wanted = F.conv2d(x, layer.weight, layer.bias, layer.stride)
            torch.testing.assert_close(layer(x), wanted)
            layer.weight.mul_(2)
