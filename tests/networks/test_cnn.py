"""The CNN of the paper's Appendix B: its sizes, and what it returns."""

import pytest
import torch

from anocaps.errors import InputError
from anocaps.networks.cnn import CNN, grid


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


def test_pooling_halves_and_drops_an_odd_row():
    assert grid(28, 28) == (12, 12)
    assert grid(9, 6) == (2, 1)


def test_too_small_an_image_is_refused():
    with pytest.raises(InputError, match="at least 6×6"):
        CNN(1, 28, 5, 2)
