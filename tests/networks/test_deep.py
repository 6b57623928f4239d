from dataclasses import replace

import pytest
import torch
from torch import nn

from anocaps.base.errors import InputError
from anocaps.capsules.textbook import lengths, margin_loss
from anocaps.detectors.neighbours import MOST_COMPONENTS, MOST_NUMBERS, MOST_VECTORS
from anocaps.networks.deep import DeepCapsNet, DeepConfig, deep_config

SMALL = DeepConfig(
    height=12, width=9, channels=2, classes=3, maps=(6, 8, 10), pools=((1, 1), (2, 1)),
    primary_types=2, primary_size=4, class_size=5, decoder=(7,),
)  # fmt: skip
# The same with a decoder of convolutions: 3×3 places, doubled twice and cut to 12×9.
CONVOLVED = replace(SMALL, decoder_maps=(4, 5))


def built(config: DeepConfig) -> DeepCapsNet:
    torch.manual_seed(0)
    return DeepCapsNet(config)


def test_the_prototype():
    network = built(deep_config(28, 28, 1, 10))
    assert network.config == DeepConfig()
    assert network.config.primary_grid == (5, 5)
    assert network.routing.shape == (25 * 32, 10, 16, 8)
    maps = [module.out_channels for module in network.stem if isinstance(module, nn.Conv2d)]
    assert maps == [64, 64, 128, 128, 256, 256]
    assert sum(p.numel() for p in network.parameters()) == 4_170_576


def test_any_size_has_a_small_grid():
    for side in range(28, 129):
        for classes, types in ((1, 32), (10, 32), (30, 19), (100, 5)):
            config = deep_config(side, side, 3, classes)
            assert all(4 <= places <= 6 for places in config.primary_grid), side
            assert config.primary_types >= types
            assert bool(config.decoder_maps) == (side > 48)


@pytest.mark.parametrize("side", [28, 35, 42, 47, 48, 64, 128])
@pytest.mark.parametrize("classes", [10, 26, 30, 41, 43, 100, 200])
def test_a_model_file_is_small(side, classes):
    """Colour, weights, kept vectors and basis together: under 54 MB with room for the rest, which
    is 7 numbers in double precision of 5,000 calibration images, and a header."""
    config = deep_config(side, side, 3, classes)
    with torch.device("meta"):
        network = DeepCapsNet(config)
    weights = sum(tensor.numel() for tensor in network.state_dict().values())
    kept = min(MOST_NUMBERS, MOST_VECTORS * classes * config.class_size)
    features = MOST_COMPONENTS * (MOST_VECTORS + network.feature_size) + 2 * network.feature_size
    assert weights <= 8_000_000
    assert 4 * (weights + kept + features) <= 54_000_000 - 8 * 7 * 5000 - 60_000


@pytest.mark.parametrize(
    ("height", "width"), [(8, 8), (12, 17), (28, 28), (23, 47), (49, 30), (64, 128), (72, 97)]
)
def test_shapes(height, width):
    config = replace(deep_config(height, width, 3, 4), maps=(4,) * 5, primary_types=2)
    config = replace(config, maps=config.maps[-len(config.pools) - 1 :])
    network = built(config)
    capsules = network(torch.rand(2, 3, height, width))
    assert capsules.shape == (2, 4, 16)
    assert network.decode(capsules, torch.tensor([0, 3])).shape == (2, 3, height, width)


@pytest.mark.parametrize(
    "shape", [(28, 28, 1, 9), (32, 32, 2, 4), (64, 64, 3, 2), (28, 28, 1, 100), (28, 28, 1, 1)]
)
def test_the_start_is_neither_dead_nor_saturated(shape):
    height, width, channels, _ = shape
    length = lengths(built(deep_config(*shape))(torch.rand(8, channels, height, width)))
    assert 0.003 < length.mean() < 0.3


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("config", [SMALL, CONVOLVED])
def test_every_weight_learns(config, classes):
    network = built(replace(config, classes=classes))
    x, labels = torch.rand(8, 2, 12, 9), torch.arange(8) % classes
    capsules = network(x)
    error = (network.decode(capsules, labels) - x).square().mean()
    (margin_loss(lengths(capsules), labels) + error).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_what_cannot_be_built_is_refused():
    with pytest.raises(InputError, match="2×28 images are too small"):
        DeepCapsNet(deep_config(2, 28, 1, 3))
    with pytest.raises(InputError, match="gradient"):
        DeepCapsNet(replace(SMALL, gradient="some"))  # type: ignore[arg-type]
