"""The network of Deep SVDD against the description in Ruff et al. (2018), section 4.2."""

import pytest
import torch
from torch.nn.functional import batch_norm, conv2d, leaky_relu, max_pool2d

from anocaps.networks.lenet import LeNet

# MNIST: 8 and 4 filters of 5×5, a dense layer of 32. CIFAR-10: 32, 64 and 128 filters, 128 units.
PUBLISHED = [((1, 28, 28), [8, 4], 7 * 7, 32), ((3, 32, 32), [32, 64, 128], 4 * 4, 128)]


@pytest.mark.parametrize(("image", "maps", "places", "code"), PUBLISHED)
def test_the_published_sizes(image, maps, places, code):
    network = LeNet(*image)
    encoder = [*network.encoder.parameters(), *network.project.parameters()]
    below = [image[0], *maps]
    filters = [into * out * 5 * 5 for into, out in zip(below, maps)]
    assert [p.numel() for p in encoder] == [*filters, maps[-1] * places * code]
    decoder = [*network.expand.parameters(), *network.decoder.parameters()]
    assert [p.numel() for p in decoder] == [p.numel() for p in reversed(encoder)]  # mirrored
    assert sum(p.numel() for p in network.parameters()) == 2 * sum(p.numel() for p in encoder)
    x = torch.rand(2, *image)
    assert network(x).shape == (2, code) and network.decode(network(x)).shape == x.shape


def test_the_encoder_is_convolution_norm_leaky_relu_and_pooling():
    torch.manual_seed(0)
    network, x = LeNet(1, 28, 28), torch.rand(5, 1, 28, 28)
    maps = x
    for convolution in network.encoder:
        maps = conv2d(maps, convolution.weight, padding=2)
        maps = batch_norm(maps, None, None, training=True)
        maps = max_pool2d(leaky_relu(maps, 0.01), 2)
    want = maps.flatten(1) @ network.project.weight.T
    torch.testing.assert_close(network(x), want, rtol=1e-4, atol=1e-5)


def test_too_small_images_get_fewer_layers():
    network = LeNet(3, 4, 4)
    assert [convolution.out_channels for convolution in network.encoder] == [64, 128]
    assert network(torch.rand(2, 3, 4, 4)).shape == (2, 128)
