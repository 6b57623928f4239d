"""EfficientNet-Lite0 (Tan and Le 2019; the Lite variant has no squeeze-and-excite) up to stride 16.

image [N, 3, H, W] ─ 3×3 convolution ─ 11 inverted bottlenecks ─ map [N, 112, ⌈H/16⌉, ⌈W/16⌉]

The network is frozen. Its weights were trained on ImageNet and come from a package. `folded`
includes batch normalisation in the weights, so that each layer is a convolution with a bias.
"""

from collections.abc import Mapping
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS = 112  # of the map

# expansion, kernel, stride, maps, blocks
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
)
_NORMALISATION_EPS = 1e-3


class Stem(nn.Module):
    """The convolutions under the capsules of real photos."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _Convolution(3, 32, 3, stride=2)
        blocks: list[Bottleneck] = []
        before = 32
        for expansion, kernel, stride, maps, repeats in _STAGES:
            for k in range(repeats):
                blocks.append(Bottleneck(before, maps, expansion, kernel, stride if k == 0 else 1))
                before = maps
        self.blocks = nn.ModuleList(blocks)
        self.requires_grad_(False).eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1], [N, 3, H, W] → [N, 112, ⌈H/16⌉, ⌈W/16⌉]."""
        maps = functional.relu6(self.first((pixels * 255 - 127) / 128))
        for block in self.blocks:
            maps = block(maps)
        return maps


class _Convolution(nn.Conv2d):
    """A convolution with TensorFlow's padding "same": bottom and right may get one zero more."""

    def __init__(self, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(before, after, kernel, stride, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if kernel == 1:
            return super().forward(x)
        rows, columns = (
            max((ceil(side / stride) - 1) * stride + kernel - side, 0) for side in x.shape[2:]
        )
        if rows % 2 == 0 and columns % 2 == 0:  # equal on both sides: conv2d can pad
            return functional.conv2d(
                x, self.weight, self.bias, stride, (rows // 2, columns // 2), 1, self.groups
            )
        sides = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
        return super().forward(functional.pad(x, sides))


class Bottleneck(nn.Module):
    """1×1 expansion, depthwise convolution, 1×1 projection, and a shortcut if shapes allow it."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inside = before * expansion
        self.expand = _Convolution(before, inside, 1) if expansion > 1 else None
        self.depthwise = _Convolution(inside, inside, kernel, stride, groups=inside)
        self.project = _Convolution(inside, after, 1)
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        maps = x if self.expand is None else functional.relu6(self.expand(x))
        projected: Tensor = self.project(functional.relu6(self.depthwise(maps)))
        return x + projected if self.adds else projected


def folded(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the published weights to those of `Stem`, without batch normalisation."""
    weights: dict[str, Tensor] = {}

    def fold(ours: str, convolution: str, normalisation: str) -> None:
        def part(name: str) -> Tensor:
            return published[f"{normalisation}.{name}"]

        scale = part("weight") / (part("running_var") + _NORMALISATION_EPS).sqrt()
        weights[f"{ours}.weight"] = published[f"{convolution}.weight"] * scale.view(-1, 1, 1, 1)
        weights[f"{ours}.bias"] = part("bias") - part("running_mean") * scale

    fold("first", "_conv_stem", "_bn0")
    for k in range(sum(repeats for *_, repeats in _STAGES)):
        there = f"_blocks.{k}"
        if f"{there}._expand_conv.weight" in published:
            fold(f"blocks.{k}.expand", f"{there}._expand_conv", f"{there}._bn0")
        fold(f"blocks.{k}.depthwise", f"{there}._depthwise_conv", f"{there}._bn1")
        fold(f"blocks.{k}.project", f"{there}._project_conv", f"{there}._bn2")
    return weights


def read_stem(path: str) -> Stem:
    """The stem with the weights of the package's file."""
    stem = Stem()
    stem.load_state_dict(folded(torch.load(path, map_location="cpu", weights_only=True)))
    return stem
