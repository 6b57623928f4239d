"""A wide residual network (Zagoruyko and Komodakis 2016) of depth 10: one block per width.

image ─ 3×3, 16 ─ 16·k ─ 32·k, stride 2 ─ 64·k, stride 2 ─ mean ─ classes
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(into), nn.BatchNorm2d(out)
        self.conv1 = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.short = nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(x))
        y: Tensor = self.conv2(torch.relu(self.norm2(self.conv1(x))))
        short: Tensor = self.short(x)
        return y + short


class WideResNet(nn.Module):
    def __init__(self, channels: int, classes: int, width: int = 4) -> None:
        super().__init__()
        sizes = (16, 16 * width, 32 * width, 64 * width)
        self.conv = nn.Conv2d(channels, sizes[0], 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*map(Block, sizes, sizes[1:], (1, 2, 2)))
        self.norm = nn.BatchNorm2d(sizes[-1])
        self.output = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → logits [N, classes]."""
        maps = torch.relu(self.norm(self.blocks(self.conv(x))))
        logits: Tensor = self.output(maps.mean((2, 3)))
        return logits.float()
