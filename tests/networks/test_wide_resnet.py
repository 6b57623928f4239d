"""The network of GEOM: WRN-10-4 as Zagoruyko and Komodakis (2016) describe it."""

import torch

from anocaps.networks.wide_resnet import WideResNet


def parameters(channels, classes, width):
    """Depth 10 is 6n + 4 with n = 1 block in each of three groups."""
    count, into = 3 * 3 * channels * 16, 16
    for maps in (16 * width, 32 * width, 64 * width):
        count += 2 * into + 3 * 3 * into * maps  # batch norm comes first
        count += 2 * maps + 3 * 3 * maps * maps
        count += into * maps  # the shortcut
        into = maps
    return count + 2 * into + into * classes + classes


def test_the_published_sizes():
    for width in (1, 4):
        network = WideResNet(3, 72, width)
        assert sum(p.numel() for p in network.parameters()) == parameters(3, 72, width)
    assert sum(p.numel() for p in WideResNet(3, 72).parameters()) == parameters(3, 72, 4)


def test_the_last_two_groups_halve_the_maps():
    network, x = WideResNet(1, 72).eval(), torch.rand(2, 1, 28, 28)
    shapes, maps = [], network.conv(x)
    for block in network.blocks:
        maps = block(maps)
        shapes.append(tuple(maps.shape[1:]))
    assert shapes == [(64, 28, 28), (128, 14, 14), (256, 7, 7)]
    assert network(x).shape == (2, 72)


def test_a_block_adds_two_convolutions_to_a_shortcut():
    """Norm and ReLU come before each convolution, and before the shortcut too."""
    torch.manual_seed(0)
    *_, block = WideResNet(1, 72).blocks
    x = torch.randn(2, 128, 8, 8)
    active = torch.relu(block.norm1(x))
    maps = block.conv2(torch.relu(block.norm2(block.conv1(active))))
    torch.testing.assert_close(block(x), maps + block.short(active))
