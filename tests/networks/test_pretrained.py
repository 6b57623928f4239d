"""The pretrained stem: its shape, its padding, and batch normalisation folded into convolutions."""

import pytest
import torch
from torch import nn

from anocaps.networks.pretrained import CHANNELS, Stem, folded


def published(seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights with the names and shapes of the published file, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}

    def layer(convolution: str, normalisation: str, shape: torch.Size) -> None:
        weights[f"{convolution}.weight"] = torch.randn(shape, generator=generator)
        for name in ("weight", "bias", "running_mean"):
            weights[f"{normalisation}.{name}"] = torch.randn(shape[0], generator=generator)
        weights[f"{normalisation}.running_var"] = torch.rand(shape[0], generator=generator) + 0.1

    stem = Stem()
    layer("_conv_stem", "_bn0", stem.first.weight.shape)
    for k, block in enumerate(stem.blocks):
        if block.expand is not None:
            layer(f"_blocks.{k}._expand_conv", f"_blocks.{k}._bn0", block.expand.weight.shape)
        layer(f"_blocks.{k}._depthwise_conv", f"_blocks.{k}._bn1", block.depthwise.weight.shape)
        layer(f"_blocks.{k}._project_conv", f"_blocks.{k}._bn2", block.project.weight.shape)
    return weights


@pytest.mark.parametrize(("height", "width"), [(112, 112), (113, 130), (17, 47)])
def test_the_map_has_a_place_for_every_16_pixels(height, width):
    maps = Stem()(torch.rand(2, 3, height, width))
    assert maps.shape == (2, CHANNELS, -(-height // 16), -(-width // 16))


def test_folded_weights_do_what_convolution_and_normalisation_do():
    weights = published()
    stem = Stem()
    stem.load_state_dict(folded(weights))
    first = nn.Conv2d(3, 32, 3, stride=2, bias=False)
    first.weight = nn.Parameter(weights["_conv_stem.weight"])
    normal = nn.BatchNorm2d(32, eps=1e-3).eval()
    normal.load_state_dict(
        {k.removeprefix("_bn0."): v for k, v in weights.items() if k.startswith("_bn0.")}
        | {"num_batches_tracked": torch.tensor(0)}
    )
    x = torch.rand(1, 3, 32, 32)
    padded = nn.functional.pad(x, (0, 1, 0, 1))  # TensorFlow pads the end first
    torch.testing.assert_close(stem.first(x), normal(first(padded)), rtol=1e-4, atol=1e-4)


def test_it_is_frozen():
    assert not any(parameter.requires_grad for parameter in Stem().parameters())
