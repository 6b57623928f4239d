"""A deep convolutional GAN (Radford, Metz and Chintala 2016) for small images.

z ─ maps of a quarter of the image's size ─ 4×4, stride 2 ─ 4×4, stride 2 ─ pixels
image ─ 4×4, stride 2 ─ 4×4, stride 2 ─ features ─ real or not

Differs from the original: two stages instead of four, for small images. Pixels are in [0, 1] and
come from a sigmoid, not in [−1, 1] from tanh.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

LATENTS = 100
_MAPS = 64


class Generator(nn.Module):
    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.side = height, width
        self.grid = -(-height // 4), -(-width // 4)
        self.start = nn.Linear(LATENTS, 2 * _MAPS * self.grid[0] * self.grid[1], bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(2 * _MAPS), nn.BatchNorm2d(_MAPS)
        self.up1 = nn.ConvTranspose2d(2 * _MAPS, _MAPS, 4, 2, 1, bias=False)
        self.up2 = nn.ConvTranspose2d(_MAPS, channels, 4, 2, 1)

    def forward(self, z: Tensor) -> Tensor:
        """[N, 100] → pixels in [0, 1], [N, C, H, W]."""
        maps = torch.relu(self.norm1(self.start(z).view(len(z), -1, *self.grid)))
        maps = torch.relu(self.norm2(self.up1(maps)))
        height, width = self.side
        return torch.sigmoid(self.up2(maps))[:, :, :height, :width]


class Discriminator(nn.Module):
    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(channels, _MAPS, 4, 2, 1)
        self.down2 = nn.Conv2d(_MAPS, 2 * _MAPS, 4, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(2 * _MAPS)
        self.output = nn.Linear(2 * _MAPS * (height // 2 // 2) * (width // 2 // 2), 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → features [N, D] and logits [N], positive for real images."""
        maps = functional.leaky_relu(self.down1(x), 0.2)
        features = functional.leaky_relu(self.norm(self.down2(maps)), 0.2).flatten(1)
        return features, self.output(features)[:, 0]


class DCGAN(nn.Module):
    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.generator = Generator(channels, height, width)
        self.discriminator = Discriminator(channels, height, width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
