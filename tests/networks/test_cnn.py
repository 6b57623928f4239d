"""The CNN of the paper's Appendix B: its sizes, and what it returns."""

import pytest
import torch
from torch.nn.functional import max_pool2d

from anocaps.base.errors import InputError
from anocaps.networks.cnn import CNN


def test_the_paper_size():
    network = CNN(1, 28, 28, 10)
    sizes = [sum(p.numel() for p in part.parameters()) for part in network.encoder.children()]
    assert sizes == [32 * 9 + 32, 64 * 32 * 9 + 64, 64 * 12 * 12 * 128 + 128]
    assert sum(p.numel() for p in network.parameters()) == sum(sizes) + 128 * 10 + 10


def test_too_small_an_image_is_refused():
    with pytest.raises(InputError, match="at least 6×6"):
        CNN(1, 28, 5, 2)


def test_the_encoder_is_convolutions_relu_pooling_and_a_dense_layer():
    torch.manual_seed(0)
    encoder = CNN(2, 9, 8, 3).encoder
    x = torch.rand(4, 2, 9, 8)
    maps = max_pool2d(encoder.conv2(encoder.conv1(x).relu()).relu(), 2)
    want = encoder.hidden(maps.flatten(1)).relu()
    features = encoder(x)
    assert torch.equal(features, want)
    trained = list(encoder.parameters())
    mine, ref = (torch.autograd.grad(y.square().sum(), trained) for y in (features, want))
    for a, b in zip(mine, ref):
        torch.testing.assert_close(a, b)
