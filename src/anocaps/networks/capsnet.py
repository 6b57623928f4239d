"""The capsule network of Sabour, Frosst and Hinton (2017), in the paper's size or any other.

image ─ conv1, ReLU ─ primary convolution ─ primary capsules ─ routing ─ class capsules
one class capsule ─ decoder ─ reconstruction

`capsules/textbook.py` is the readable version. Here `kernels.choose` picks the fastest form.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from anocaps.base.errors import InputError
from anocaps.capsules.textbook import Gradient
from anocaps.kernels import choose
from anocaps.networks.convolution import Convolution

Start = Literal["scaled", "flat", "released"]


@dataclass(frozen=True)
class CapsNetConfig:
    """The paper's network by default; 28×28×1 images and 10 classes give 8,215,568 parameters."""

    channels: int = 1
    height: int = 28
    width: int = 28
    classes: int = 10
    conv_maps: int = 256
    conv_kernel: int = 9
    conv_stride: int = 1
    primary_types: int = 32
    primary_size: int = 8
    primary_kernel: int = 9
    primary_stride: int = 2
    class_size: int = 16
    iterations: int = 3
    gradient: Gradient = "all"
    class_bias: bool = False
    start: Start = "scaled"
    decoder: tuple[int, ...] = (512, 1024)

    @property
    def conv_grid(self) -> tuple[int, int]:
        """Height and width of the maps of the first convolution."""
        return (
            (self.height - self.conv_kernel) // self.conv_stride + 1,
            (self.width - self.conv_kernel) // self.conv_stride + 1,
        )

    @property
    def primary_grid(self) -> tuple[int, int]:
        """Height and width of the map of primary capsules."""
        height, width = self.conv_grid
        return (
            (height - self.primary_kernel) // self.primary_stride + 1,
            (width - self.primary_kernel) // self.primary_stride + 1,
        )

    @property
    def primary_capsules(self) -> int:
        return prod(self.primary_grid) * self.primary_types


class CapsNet(nn.Module):
    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__()
        if config.gradient not in ("all", "last"):
            raise InputError(f"gradient must be 'all' or 'last', not {config.gradient!r}")
        if config.start not in _STARTS:
            raise InputError(f"start must be one of {', '.join(_STARTS)}, not {config.start!r}")
        if min(config.primary_grid) < 1:
            raise InputError(
                f"{config.height}×{config.width} images are too small for a "
                f"{config.conv_kernel}×{config.conv_kernel} and a "
                f"{config.primary_kernel}×{config.primary_kernel} convolution: use larger images"
            )
        self.config = config
        self.conv1 = Convolution(
            config.channels,
            config.conv_maps,
            config.conv_kernel,
            config.conv_stride,
            config.height,
            config.width,
        )
        self.primary = Convolution(
            config.conv_maps,
            config.primary_types * config.primary_size,
            config.primary_kernel,
            config.primary_stride,
            *config.conv_grid,
        )
        # W_ij of the paper: [I, J, E, D]
        self.routing = nn.Parameter(
            torch.empty(
                config.primary_capsules, config.classes, config.class_size, config.primary_size
            )
        )
        self.class_bias = (
            nn.Parameter(torch.full((config.classes, config.class_size), 0.1))
            if config.class_bias
            else None
        )
        widths = (config.classes * config.class_size, *config.decoder)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        pixels = config.channels * config.height * config.width
        self.decoder = nn.Sequential(*layers, nn.Linear(widths[-1], pixels), nn.Sigmoid())
        _STARTS[config.start](self)

    def primary_capsules(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → squashed primary capsules [N, I, D], ordered by row, column, type."""
        return choose.primary_capsules(x, self.conv1, self.primary, self.config.primary_size)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → primary capsules: mean over places [N, types·D], and all [N, I, D]."""
        primary = self.primary_capsules(x)
        return primary.reshape(len(x), -1, self.feature_size).mean(1), primary

    @property
    def feature_size(self) -> int:
        return self.config.primary_types * self.config.primary_size

    def class_capsules(self, primary: Tensor) -> Tensor:
        """Primary capsules [N, I, D] → class capsules [N, classes, class_size]."""
        return choose.route(
            primary,
            self.routing,
            self.class_bias,
            self.config.iterations,
            self.config.gradient,
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → class capsules [N, classes, class_size]."""
        return self.class_capsules(self.primary_capsules(x))

    def decode(self, capsules: Tensor, chosen: Tensor) -> Tensor:
        """Reconstruct each image from its chosen capsule: [N, J, E] → [N, C, H, W]."""
        mask = nn.functional.one_hot(chosen, self.config.classes).to(capsules.dtype)
        pixels: Tensor = self.decoder((capsules * mask.unsqueeze(-1)).flatten(1))
        return pixels.view(-1, self.config.channels, self.config.height, self.config.width)


def _scaled_start(network: CapsNet) -> None:
    """Draw routing weights so small that class capsules start short.

    The sum over I input capsules, divided by J classes, has √I/J times the standard deviation of
    one vote. Without this factor, class capsules of large images start near length 1, where squash
    is flat, and the loss does not fall for epochs (docs/decisions.md, "The start").
    """
    config = network.config
    spread = config.classes / (config.primary_capsules * config.class_size) ** 0.5
    nn.init.normal_(network.routing, std=0.45 * spread)


def _flat_start(network: CapsNet) -> None:
    """Draw routing weights with the same standard deviation for all shapes."""
    nn.init.normal_(network.routing, std=0.1)


def _released_start(network: CapsNet) -> None:
    """Draw all weights as the authors' code does. The weights include its division by 32."""
    nn.init.trunc_normal_(network.conv1.weight, std=0.05, a=-0.1, b=0.1)
    nn.init.trunc_normal_(network.primary.weight, std=0.1 / 32, a=-0.2 / 32, b=0.2 / 32)
    nn.init.trunc_normal_(network.routing, std=0.1, a=-0.2, b=0.2)
    for bias in (network.conv1.bias, network.primary.bias):
        nn.init.constant_(bias, 0.1)


_STARTS = {"scaled": _scaled_start, "flat": _flat_start, "released": _released_start}
