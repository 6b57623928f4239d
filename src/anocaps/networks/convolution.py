"""A valid 2-D convolution in the form that its shape favours.

patches   few inputs per output (a first layer): gather them and take one matrix product
spectral  many maps and a large kernel, in fp32: a quarter of the multiplications (spectral.py)
direct    everything else

The form follows from shapes alone, so that a model gives the same numbers in every batch.
"""

from typing import Literal, Self

import torch
from torch import Tensor, nn

from anocaps import spectral

_MOST_PATCH_NUMBERS = 256


class Convolution(nn.Conv2d):
    bias: Tensor  # always there

    def __init__(
        self, channels: int, maps: int, kernel: int, stride: int, height: int, width: int
    ) -> None:
        super().__init__(channels, maps, kernel, stride)
        self.form: Literal["patches", "spectral", "direct"] = "direct"
        if channels * kernel * kernel <= _MOST_PATCH_NUMBERS:
            self.form = "patches"
        elif spectral.wins(height, width, kernel, stride, channels, maps):
            self.form = "spectral"
        self._transformed: tuple[Tensor, ...] | None = None

    def train(self, mode: bool = True) -> Self:
        """Weights may change from here on (or have just changed): forget their transform."""
        self._transformed = None
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, maps, h, w], in channels-last memory."""
        if self.form == "patches":
            return self._patches(x)
        if self.form == "spectral" and not torch.is_autocast_enabled(x.device.type):
            return self._spectral(x)
        return super().forward(x)

    def _patches(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        windows = x.unfold(2, kernel, stride).unfold(3, kernel, stride)  # [N, C, h, w, k, k]
        n, _, h, w, _, _ = windows.shape
        flat = windows.permute(0, 2, 3, 1, 4, 5).reshape(n, h, w, -1)
        # The bias is the weight of a column of ones, so that its gradient needs no pass of its
        # own; matrix units want rows of a multiple of 8 numbers.
        spare = -flat.shape[-1] % 8 or 8
        patches = nn.functional.pad(nn.functional.pad(flat, (0, 1), value=1.0), (0, spare - 1))
        weight = torch.cat([self.weight.flatten(1), self.bias.unsqueeze(1)], dim=1)
        weight = nn.functional.pad(weight, (0, spare - 1))
        return nn.functional.linear(patches, weight).permute(0, 3, 1, 2)

    def _spectral(self, x: Tensor) -> Tensor:
        scoring = not (self.training or torch.is_grad_enabled())
        if scoring and self._transformed is None:
            plan = spectral.spectral_plan(
                x.shape[2], x.shape[3], self.kernel_size[0], self.stride[0], x.dtype, x.device
            )
            self._transformed = spectral.spectral_weight(self.weight, plan)
        return spectral.spectral_conv2d(
            x, self.weight, self.bias, self.stride[0], self._transformed if scoring else None
        )
