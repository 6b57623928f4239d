"""The yardstick: a CapsNet as the equations read, eager and plain, nothing made fast.

Sabour et al. 2017 with the paper's sizes: votes written out, routing in a loop, autograd for the
rest. Its parameters have the names and shapes of anocaps.networks.capsnet.CapsNet, so that one
can be loaded into the other and both checked for equal outputs before they are timed.
"""

import torch
from torch import Tensor, nn

from anocaps.detectors.presets import find_preset

RECONSTRUCTION_WEIGHT = find_preset("paper").weight_for(784)  # the same loss, the same gradients


def squash(s: Tensor) -> Tensor:
    n2 = (s**2).sum(-1, keepdim=True)
    return n2 / (1 + n2) * s / (n2 + 1e-9).sqrt()


class TextbookCapsNet(nn.Module):
    def __init__(self, classes: int = 9) -> None:
        super().__init__()
        self.classes = classes
        self.conv1 = nn.Conv2d(1, 256, 9)
        self.primary = nn.Conv2d(256, 32 * 8, 9, 2)
        self.routing = nn.Parameter(torch.randn(1152, classes, 16, 8) * 0.03)
        self.decoder = nn.Sequential(
            nn.Linear(16 * classes, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(),
            nn.Linear(1024, 784), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 28, 28] → class capsules [N, classes, 16]."""
        maps: Tensor = self.primary(torch.relu(self.conv1(x)))
        u = squash(maps.permute(0, 2, 3, 1).reshape(len(x), 1152, 8))
        votes = torch.einsum("ijed,nid->nije", self.routing, u)  # [N, 1152, classes, 16]
        logits = torch.zeros(votes.shape[:3], dtype=x.dtype, device=x.device)
        for iteration in range(3):
            couplings = logits.softmax(dim=2)
            v = squash((couplings.unsqueeze(-1) * votes).sum(1))
            if iteration < 2:
                logits = logits + (votes * v.unsqueeze(1)).sum(-1)
        return v

    def decode(self, capsules: Tensor, chosen: Tensor) -> Tensor:
        mask = nn.functional.one_hot(chosen, self.classes).unsqueeze(-1)
        pixels: Tensor = self.decoder((capsules * mask).flatten(1))
        return pixels.view(-1, 1, 28, 28)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        capsules = self(x)
        length = capsules.norm(dim=-1)
        present = nn.functional.one_hot(labels, self.classes)
        margin = present * torch.relu(0.9 - length) ** 2
        margin = margin + 0.5 * (1 - present) * torch.relu(length - 0.1) ** 2
        error = ((self.decode(capsules, labels) - x) ** 2).flatten(1).sum(1)
        return margin.sum(1).mean() + RECONSTRUCTION_WEIGHT * error.mean()

    def pp(self, x: Tensor) -> Tensor:
        """PP of [N, 1, 28, 28], which needs no decoder."""
        lengths: Tensor = self(x).norm(dim=-1)
        return lengths.amax(1)

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """PP and RE of [N, 1, 28, 28]."""
        capsules = self(x)
        length = capsules.norm(dim=-1)
        redrawn = self.decode(capsules, length.argmax(1))
        error = ((x - redrawn) ** 2).flatten(1).sum(1)
        return length.amax(1), -error / x.flatten(1).norm(dim=1)
