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


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 32, 32), (3, 9, 6)])
def test_shapes(shape):
    features, logits = CNN(*shape, classes=4)(torch.rand(5, *shape))
    assert features.shape == (5, 128) and logits.shape == (5, 4)
    assert (features >= 0).all() and (features > 0).any()


def test_too_small_an_image_is_refused():
    with pytest.raises(InputError, match="at least 6×6"):
        CNN(1, 28, 5, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_encoder_is_convolutions_relu_pooling_and_a_dense_layer(dtype):
    torch.manual_seed(0)
    encoder = CNN(2, 9, 8, 3).encoder.to(dtype)
    x = torch.rand(4, 2, 9, 8, dtype=dtype)
    maps = max_pool2d(encoder.conv2(encoder.conv1(x).relu()).relu(), 2)
    want = encoder.hidden(maps.flatten(1)).relu()
    features = encoder(x)
    assert torch.equal(features, want)
    trained = list(encoder.parameters())
    mine, ref = (torch.autograd.grad(y.square().sum(), trained) for y in (features, want))
    for a, b in zip(mine, ref):
        torch.testing.assert_close(a, b)
