"""Class capsules on the maps of a frozen pretrained stem, for real photos.

image ─ resized ─ stem ─ map [N, 112, h, w] ─ pooled to 4×4 ─ 1×1 convolution ─ primary capsules
      ─ routing ─ class capsules

The 16 places share their routing weights: an object may lie anywhere, and a few hundred photos are
too few to learn weights for each place (docs/decisions.md, "Photos").
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from anocaps.capsules.textbook import squash
from anocaps.images.resampling import resampling
from anocaps.kernels import choose
from anocaps.networks.pretrained import CHANNELS, Stem

GRID = 4  # places per side of the pooled map


@dataclass(frozen=True)
class PhotoConfig:
    before: tuple[int, int]  # height and width of the images
    size: tuple[int, int]  # height and width of the stem's input
    classes: int
    primary_types: int = 8
    primary_size: int = 8
    class_size: int = 16
    iterations: int = 3

    def __post_init__(self) -> None:
        for name in ("before", "size"):  # JSON gives lists
            object.__setattr__(self, name, tuple(getattr(self, name)))


class CapsuleHead(nn.Module):
    """Pooled maps [N, 112, 4, 4] → class capsules [N, classes, 16]."""

    mean: Tensor
    spread: Tensor

    def __init__(self, config: PhotoConfig) -> None:
        super().__init__()
        self.config = config
        # of each channel, over the training images
        self.register_buffer("mean", torch.zeros(CHANNELS))
        self.register_buffer("spread", torch.ones(CHANNELS))
        self.primary = nn.Conv2d(CHANNELS, config.primary_types * config.primary_size, 1)
        # W_ij [types, J, E, D], the same at every place
        self.routing = nn.Parameter(
            torch.empty(
                config.primary_types, config.classes, config.class_size, config.primary_size
            )
        )
        inputs = config.primary_types * GRID**2
        # small, so that class capsules start short
        std = 0.45 * config.classes / (inputs * config.class_size) ** 0.5
        nn.init.normal_(self.routing, std=std)

    def forward(self, pooled: Tensor) -> Tensor:
        standard = (pooled - self.mean.view(-1, 1, 1)) / self.spread.view(-1, 1, 1)
        maps = self.primary(standard)  # [N, types·D, 4, 4]
        u = maps.permute(0, 2, 3, 1).reshape(len(maps), -1, self.config.primary_size)
        return choose.route(squash(u.float()), self.weight, iterations=self.config.iterations)

    @property
    def weight(self) -> Tensor:
        """Routing weights [I, J, E, D]; primary capsules are ordered by place, then type."""
        return self.routing.repeat(GRID**2, 1, 1, 1)


class PhotoNetwork(nn.Module):
    """The stem and, for more than one class, the capsules."""

    def __init__(self, config: PhotoConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem()
        self.head = CapsuleHead(config) if config.classes > 1 else None

    def maps(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1], [N, 1 or 3, H, W] → [N, 112, h, w]."""
        for axis, (before, after) in enumerate(zip(self.config.before, self.config.size)):
            if before != after:
                matrix = torch.from_numpy(resampling(before, after)).to(pixels.device)
                pixels = matrix @ pixels if axis == 0 else pixels @ matrix.T
        pixels = pixels.expand(-1, 3, -1, -1)
        found: Tensor = self.stem(pixels.contiguous(memory_format=torch.channels_last))
        return found


def pooled(maps: Tensor) -> Tensor:
    """[N, C, h, w] → [N, C, 4, 4]."""
    return functional.adaptive_avg_pool2d(maps, GRID)
