"""The whole capsule network on one page, written like the equations. Nothing here is optimised.

Sabour, Frosst and Hinton, "Dynamic Routing Between Capsules" (2017), as used by Li et al.,
"Exploring Deep Anomaly Detection Methods Based on Capsule Net" (2019). Read this file first. Tests
compare the values and gradients of every faster form with it.

Shapes: N images of C channels, I primary capsules of D numbers, J class capsules of E numbers.
"""

from typing import Literal

import torch
from torch import Tensor, nn

EPS = 1e-9  # added under the square root, which has no derivative at zero

Gradient = Literal["all", "last"]


def squash(s: Tensor) -> Tensor:
    """Keep the direction of vectors along the last axis; change their length n to n²/(1+n²)."""
    n = (s.square().sum(-1, keepdim=True) + EPS).sqrt()
    return s / (n + 1 / n)  # s/n · n²/(1+n²), in a form that does not overflow


def lengths(capsules: Tensor) -> Tensor:
    """[N, J, E] → [N, J] in [0, 1): the probability that the image shows class j."""
    length: Tensor = torch.linalg.vector_norm(capsules, dim=-1)
    return length


def primary_capsules(maps: Tensor, size: int) -> Tensor:
    """Maps [N, types·D, h, w] → squashed capsules [N, h·w·types, D]: by row, column, type."""
    capsules = maps.permute(0, 2, 3, 1).reshape(len(maps), -1, size)
    return squash(capsules.float() if maps.dtype == torch.bfloat16 else capsules)


def route(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    gradient: Gradient = "all",
) -> Tensor:
    """Routing by agreement: u [N, I, D] and weight [I, J, E, D] → class capsules [N, J, E].

    The authors' code adds a bias [J, E]. gradient="last" treats the couplings as constants.
    """
    votes = torch.einsum("ijed,nid->nije", weight, u)
    logits = torch.zeros_like(votes[..., 0])  # [N, I, J]
    for iteration in range(iterations):
        couplings = logits.softmax(dim=2)  # over the classes
        if gradient == "last":
            couplings = couplings.detach()
        s = (couplings.unsqueeze(-1) * votes).sum(1)  # [N, J, E]
        v = squash(s if bias is None else s + bias)
        if iteration < iterations - 1:
            logits = logits + (votes * v.unsqueeze(1)).sum(-1)  # agreement
    return v


def margin_loss(length: Tensor, labels: Tensor) -> Tensor:
    """Lengths [N, J] and labels [N] → mean over the images of the sum over the classes."""
    present = nn.functional.one_hot(labels, length.shape[1])
    too_short = (0.9 - length).clamp(min=0).square()
    too_long = (length - 0.1).clamp(min=0).square()
    return (present * too_short + 0.5 * (1 - present) * too_long).sum(1).mean()


class TextbookCapsNet(nn.Module):
    """The paper's network for 28×28 images. `CapsNet` can load its weights, and vice versa."""

    def __init__(self, classes: int, reconstruction_weight: float = 0.0005) -> None:
        super().__init__()
        self.classes, self.reconstruction_weight = classes, reconstruction_weight
        self.conv1 = nn.Conv2d(1, 256, 9)
        self.primary = nn.Conv2d(256, 32 * 8, 9, 2)
        self.routing = nn.Parameter(torch.randn(1152, classes, 16, 8) * 0.03)
        self.decoder = nn.Sequential(
            *(nn.Linear(16 * classes, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU()),
            *(nn.Linear(1024, 784), nn.Sigmoid()),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 28, 28] → class capsules [N, classes, 16]."""
        maps = self.primary(torch.relu(self.conv1(x)))  # [N, 32·8, 6, 6]
        return route(primary_capsules(maps, 8), self.routing)

    def decode(self, capsules: Tensor, chosen: Tensor) -> Tensor:
        """Reconstruct each image from its chosen class capsule: [N, J, E] → [N, 1, 28, 28]."""
        mask = nn.functional.one_hot(chosen, self.classes).unsqueeze(-1)
        pixels: Tensor = self.decoder((capsules * mask).flatten(1))
        return pixels.view(-1, 1, 28, 28)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Margin loss + weighted squared error of the reconstruction from the labelled class."""
        capsules = self(x)
        error = (self.decode(capsules, labels) - x).square().flatten(1).sum(1)
        return margin_loss(lengths(capsules), labels) + self.reconstruction_weight * error.mean()
