"""The networks of AnoGAN against the rules of DCGAN (Radford, Metz and Chintala 2016)."""

import pytest
import torch
from torch import nn
from torch.nn.functional import leaky_relu

from anocaps.networks.dcgan import DCGAN


@pytest.mark.parametrize("image", [(1, 28, 28), (2, 9, 6)])
def test_the_sizes(image):
    """4×4 convolutions with stride 2; batch norm except after pixels and before pixels."""
    torch.manual_seed(0)
    network, (channels, height, width) = DCGAN(*image), image
    grid = -(-height // 4) * -(-width // 4)
    filters = 4 * 4 * 128 * 64, 4 * 4 * 64 * channels
    generator = 100 * 128 * grid + 2 * 128 + filters[0] + 2 * 64 + filters[1] + channels
    left = (height // 4) * (width // 4)
    discriminator = filters[1] + 64 + filters[0] + 2 * 128 + 128 * left + 1
    parts = network.generator, network.discriminator
    found = [sum(p.numel() for p in part.parameters()) for part in parts]
    assert found == [generator, discriminator]
    for part in parts:
        for layer in part.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                assert layer.kernel_size == (4, 4) and layer.stride == (2, 2)
                assert float(layer.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_the_generator_is_dense_relu_and_two_transposed_convolutions():
    torch.manual_seed(0)
    made, z = DCGAN(1, 8, 8).generator, torch.randn(3, 100)
    maps = torch.relu(made.norm1((z @ made.start.weight.T).view(3, 128, 2, 2)))
    maps = torch.relu(made.norm2(made.up1(maps)))
    pixels = made(z)
    torch.testing.assert_close(pixels, torch.sigmoid(made.up2(maps)))
    assert pixels.shape == (3, 1, 8, 8)


def test_the_discriminator_is_two_convolutions_with_leaky_relu():
    torch.manual_seed(0)
    judge, x = DCGAN(1, 8, 8).discriminator, torch.rand(3, 1, 8, 8)
    maps = judge.norm(judge.down2(leaky_relu(judge.down1(x), 0.2)))
    features, logits = judge(x)
    torch.testing.assert_close(features, leaky_relu(maps, 0.2).flatten(1))
    torch.testing.assert_close(logits, judge.output(features)[:, 0])
