"""The paper's small convolutional network (Appendix B).

image ─ 3×3, 32, ReLU ─ 3×3, 64, 2×2 maximum, ReLU ─ 128, ReLU ─ classes

It is a classifier. The one-class SVM uses its last hidden layer, and the variational autoencoder
uses its encoder. ReLU follows max-pooling, which gives the same result for a quarter of the work.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from anocaps.base.errors import InputError

MAPS = (32, 64)
FEATURES = 128


def grid(height: int, width: int) -> tuple[int, int]:
    """Height and width of the maps after two unpadded 3×3 convolutions and pooling."""
    pooled = (height - 4) // 2, (width - 4) // 2
    if min(pooled) < 1:
        raise InputError(
            f"{height}×{width} images are too small for two 3×3 convolutions and pooling: "
            "use at least 6×6"
        )
    return pooled


class Encoder(nn.Module):
    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        rows, columns = grid(height, width)
        self.conv1 = nn.Conv2d(channels, MAPS[0], 3)
        self.conv2 = nn.Conv2d(MAPS[0], MAPS[1], 3)
        self.hidden = nn.Linear(MAPS[1] * rows * columns, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → features [N, 128], all ≥ 0."""
        maps = self.conv2(torch.relu_(self.conv1(x)))  # [N, 64, H−4, W−4]
        pooled = torch.relu_(functional.max_pool2d(maps, 2))
        return torch.relu_(self.hidden(pooled.flatten(1)))


class CNN(nn.Module):
    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(channels, height, width)
        self.output = nn.Linear(FEATURES, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → features [N, 128] and class logits [N, classes]."""
        features = self.encoder(x)
        return features, self.output(features)
