"""A capsule network for natural images: a batch-normalised convolutional stem under capsules.

image ─ stages of 3×3 convolutions, pooled ─ primary convolution ─ primary capsules ─ routing
      ─ class capsules;  one class capsule ─ decoder ─ reconstruction

Capsules and routing are those of `capsnet.py`. The stem costs far less than two 9×9 convolutions
and gives better features: docs/decisions.md, "The deep network". `deep_config` derives every size
from the size of the images. The grid has about 5×5 places. Up to 200 classes, there are at most
8 million weights, so that a model file stays under 54 MB.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, prod

import torch
from torch import Tensor, nn

from anocaps.base.errors import InputError
from anocaps.capsules.textbook import Gradient, primary_capsules
from anocaps.kernels import choose

_DENSE_SIDE = 48  # pixels; larger images have a convolutional decoder
_MOST_ROUTING_WEIGHTS = 2_750_000
_MOST_DECODER_WEIGHTS = 3_500_000


@dataclass(frozen=True)
class DeepConfig:
    """28×28×1 and 10 classes by default: 800 primary capsules, 4.2 million weights."""

    channels: int = 1
    height: int = 28
    width: int = 28
    classes: int = 10
    maps: tuple[int, ...] = (64, 128, 256)  # of each stage
    pools: tuple[tuple[int, int], ...] = ((2, 2), (2, 2))  # rows, columns pooled between stages
    primary_types: int = 32
    primary_size: int = 8
    class_size: int = 16
    iterations: int = 3
    gradient: Gradient = "all"
    decoder: tuple[int, ...] = (512, 1024)  # widths of its hidden layers
    decoder_maps: tuple[int, ...] = ()  # of its convolutions, which double the side; (): dense

    def __post_init__(self) -> None:
        for name in ("maps", "pools", "decoder", "decoder_maps"):  # JSON gives lists
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(map(tuple, value) if name == "pools" else value))

    @property
    def primary_grid(self) -> tuple[int, int]:
        """Height and width of the map of primary capsules."""
        rows, columns = (prod(factors) for factors in zip(*self.pools))
        return self.height // rows - 2, self.width // columns - 2

    @property
    def primary_capsules(self) -> int:
        return prod(self.primary_grid) * self.primary_types

    @property
    def decoder_grid(self) -> tuple[int, int]:
        """Height and width that the decoder's convolutions start from."""
        scale = 2 ** len(self.decoder_maps)
        return ceil(self.height / scale), ceil(self.width / scale)


def deep_config(height: int, width: int, channels: int, classes: int) -> DeepConfig:
    """The network for a shape of images and a number of classes."""
    rows, columns = _pools(height), _pools(width)
    between = max(2, len(rows), len(columns))
    pools = tuple(
        zip((1,) * (between - len(rows)) + rows, (1,) * (between - len(columns)) + columns)
    )
    shape = DeepConfig(channels, height, width, classes, pools=pools)
    # Routing weights for one type of primary capsule.
    of_type = prod(shape.primary_grid) * classes * shape.class_size * shape.primary_size
    dense = max(height, width) <= _DENSE_SIDE
    pixels = channels * height * width
    left = _MOST_DECODER_WEIGHTS - 512 * classes * shape.class_size
    return DeepConfig(
        channels,
        height,
        width,
        classes,
        maps=(32,) * (between - 2) + shape.maps,
        pools=pools,
        primary_types=max(1, min(32, _MOST_ROUTING_WEIGHTS // max(1, of_type))),
        decoder=(512, max(64, min(1024, left // (512 + pixels)))) if dense else (512,),
        decoder_maps=() if dense else (64, 64, 32, 16)[-_doublings(max(height, width)) :],
    )


def _pools(side: int) -> tuple[int, ...]:
    """The pooling factors of a side, stage by stage. Sides of 12 or more end at 6 to 8."""
    pools = []
    while side >= 12:
        pools.append(3 if 18 <= side < 24 else 2)
        side //= pools[-1]
    return tuple(pools)


def _doublings(side: int) -> int:
    """How often a side of 8 must be doubled to cover this side."""
    return (ceil(side / 8) - 1).bit_length()


class DeepCapsNet(nn.Module):
    def __init__(self, config: DeepConfig) -> None:
        super().__init__()
        if config.gradient not in ("all", "last"):
            raise InputError(f"gradient must be 'all' or 'last', not {config.gradient!r}")
        if min(config.primary_grid) < 1:
            raise InputError(
                f"{config.height}×{config.width} images are too small for the deep network: "
                "use larger ones, or preset='quick'"
            )
        self.config = config
        self.stem = _stem(config)
        self.primary = nn.Conv2d(config.maps[-1], config.primary_types * config.primary_size, 3)
        # W_ij of the paper, [I, J, E, D], drawn as in CapsNet: class capsules start short.
        self.routing = nn.Parameter(
            torch.empty(
                config.primary_capsules, config.classes, config.class_size, config.primary_size
            )
        )
        spread = config.classes / (config.primary_capsules * config.class_size) ** 0.5
        nn.init.normal_(self.routing, std=0.45 * spread)
        self.decoder = _decoder(config)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → primary capsules before squash, flat [N, I·D], and squashed [N, I, D],
        ordered by row, column, type."""
        maps = self.primary(self.stem(x))
        return maps.flatten(1), primary_capsules(maps, self.config.primary_size)

    @property
    def feature_size(self) -> int:
        return self.config.primary_capsules * self.config.primary_size

    def class_capsules(self, primary: Tensor) -> Tensor:
        """Primary capsules [N, I, D] → class capsules [N, classes, class_size]."""
        return choose.route(
            primary,
            self.routing,
            iterations=self.config.iterations,
            gradient=self.config.gradient,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Encoder input [N, C, H, W] → class capsules [N, classes, class_size]."""
        return self.class_capsules(self.features(x)[1])

    def decode(self, capsules: Tensor, chosen: Tensor) -> Tensor:
        """Reconstruct images from one capsule each: [N, J, E], class index [N] → [N, C, H, W]."""
        mask = nn.functional.one_hot(chosen, self.config.classes).to(capsules.dtype)
        pixels: Tensor = self.decoder((capsules * mask.unsqueeze(-1)).flatten(1))
        return pixels[:, :, : self.config.height, : self.config.width]


def _convolution(before: int, after: int) -> list[nn.Module]:
    """A padded 3×3 convolution, batch normalisation and ReLU; a bias would have no effect."""
    return [
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    ]


def _stem(config: DeepConfig) -> nn.Sequential:
    """[N, C, H, W] → [N, maps, h, w]: one convolution a stage, two in each of the last three."""
    layers: list[nn.Module] = []
    before = config.channels
    for stage, maps in enumerate(config.maps):
        if stage > 0 and config.pools[stage - 1] != (1, 1):
            layers.append(nn.MaxPool2d(config.pools[stage - 1]))
        layers += _convolution(before, maps)
        if stage >= len(config.maps) - 3:
            layers += _convolution(maps, maps)
        before = maps
    return nn.Sequential(*layers)


def _decoder(config: DeepConfig) -> nn.Sequential:
    """[N, J·E] → pixels [N, C, ≥ H, ≥ W] in [0, 1]."""
    maps = config.decoder_maps or (config.channels,)
    start = (maps[0], *config.decoder_grid)
    widths = (config.classes * config.class_size, *config.decoder, prod(start))
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    if not config.decoder_maps:
        return nn.Sequential(*layers[:-1], nn.Unflatten(1, start), nn.Sigmoid())
    layers.append(nn.Unflatten(1, start))
    for before, after in pairwise((maps[0], *maps)):
        layers += [nn.Upsample(scale_factor=2), *_convolution(before, after)]
    return nn.Sequential(*layers, nn.Conv2d(maps[-1], config.channels, 3, padding=1), nn.Sigmoid())
