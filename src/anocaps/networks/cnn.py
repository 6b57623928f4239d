"""The paper's small convolutional network (Appendix B): a classifier whose last hidden layer serves
the one-class SVM, and whose lower part is the encoder of the variational autoencoder.

image ─ 3×3, 32, ReLU ─ 3×3, 64, 2×2 maximum, ReLU ─ 128, ReLU ─ classes

ReLU comes after the maximum, which changes no number and spares three quarters of its work.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from anocaps.base.errors import InputError
from anocaps.kernels import maps as fused_maps
from anocaps.kernels import pooling as fused_pooling
from anocaps.kernels.triton_support import usable

MAPS = (32, 64)
FEATURES = 128

Layer = nn.Conv2d | nn.ConvTranspose2d | nn.Linear
_PRODUCTS: dict[type[nn.Module], Any] = {
    nn.Conv2d: functional.conv2d,
    nn.ConvTranspose2d: functional.conv_transpose2d,
    nn.Linear: functional.linear,
}


def grid(height: int, width: int) -> tuple[int, int]:
    """Height and width of the maps after two unpadded 3×3 convolutions and pooling."""
    pooled = (height - 4) // 2, (width - 4) // 2
    if min(pooled) < 1:
        raise InputError(
            f"{height}×{width} images are too small for two 3×3 convolutions and pooling: "
            "use at least 6×6"
        )
    return pooled


class Network(nn.Module):
    """Its layers are applied through `rectified` and `affine`, which in bfloat16 on a GPU fuse what
    follows a layer's product and take rounded copies of the weights, where training keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.rounded: dict[Tensor, Tensor] = {}

    def round_weights(self) -> dict[Tensor, Tensor]:
        """Make bfloat16 copies of the weights and use them, until the mode changes (train, eval):
        so long, who changes a weight changes its copy."""
        copies: dict[Tensor, Tensor] = {
            weight: weight.detach().bfloat16() for weight in self.parameters() if weight.ndim > 1
        }
        for part in self.modules():
            if isinstance(part, Network):
                part.rounded = copies
        return copies

    def train(self, mode: bool = True) -> Self:
        self.rounded = {}
        return super().train(mode)

    def rectified(self, layer: Layer, x: Tensor, pool: int = 1, flat: bool = False) -> Tensor:
        """ReLU of the maximum over pool × pool of layer(x). flat: a dense layer comes next."""
        if in_bfloat16(x):
            return fused_pooling.bias_relu(self._product(layer, x), _bias(layer), pool, flat)
        y: Tensor = layer(x)
        return torch.relu_(functional.max_pool2d(y, pool) if pool > 1 else y)

    def affine(self, layer: Layer, x: Tensor) -> Tensor:
        """layer(x); in fp32 if x is to be rounded on a GPU."""
        if in_bfloat16(x):
            product = self._product(layer, x)
            return product + _bias(layer).view(-1, *(1 for _ in product.shape[2:]))
        y: Tensor = layer(x)
        return y

    def _product(self, layer: Layer, x: Tensor) -> Tensor:
        """layer(x) without its bias."""
        weight: Tensor = layer.weight
        if weight in self.rounded:
            weight = _Rounded.apply(weight, self.rounded[weight])  # type: ignore[no-untyped-call]
        product: Tensor = _PRODUCTS[type(layer)](x, weight)
        return product


class Encoder(Network):
    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        rows, columns = grid(height, width)
        self.conv1 = nn.Conv2d(channels, MAPS[0], 3)
        self.conv2 = nn.Conv2d(MAPS[0], MAPS[1], 3)
        self.hidden = nn.Linear(MAPS[1] * rows * columns, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → features [N, 128], none negative."""
        pooled = self.rectified(self.conv2, self._first_maps(x), pool=2, flat=True)
        return self.rectified(self.hidden, pooled.flatten(1))

    def _first_maps(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, 32, H−2, W−2]."""
        weight, bias = self.conv1.weight, _bias(self.conv1)
        if in_bfloat16(x) and fused_maps.takes_patches(weight) and not x.requires_grad:
            return fused_maps.first_maps(x, weight, bias)
        return self.rectified(self.conv1, x)


class CNN(Network):
    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(channels, height, width)
        self.output = nn.Linear(FEATURES, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, C, H, W] → features [N, 128] and class logits [N, classes]."""
        features = self.encoder(x)
        return features, self.affine(self.output, features)


def in_bfloat16(x: Tensor) -> bool:
    """Whether a layer's product of x is to be bfloat16 where Triton's kernels can take it."""
    kind = x.device.type
    return (
        usable(x)
        and torch.is_autocast_enabled(kind)
        and torch.get_autocast_dtype(kind) == torch.bfloat16
        and x.dtype != torch.float64  # which autocast leaves alone
    )


def _bias(layer: Layer) -> Tensor:
    assert layer.bias is not None
    return layer.bias


class _Rounded(torch.autograd.Function):
    """A weight's copy in its place: its gradient becomes the weight's, in its order of memory."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.like = torch.empty_like(weight, device="meta")
        return copy.view_as(copy)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.empty_like(ctx.like, device=grad.device).copy_(grad), None
