"""A valid 2-D convolution in the form that its shape favours.

patches   few inputs per output (a first layer): gather them and take one matrix product
spectral  many maps and a large kernel, or very many maps, in fp32: down to a fifth of the
          multiplications (spectral.py)
direct    everything else

The form follows from shapes alone: a model gives the same numbers in every batch, and what was
trained in one form is scored in it.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from anocaps.kernels.maps import takes_patches
from anocaps.kernels.spectral import spectral_conv2d, spectral_weight
from anocaps.kernels.spectral_plan import SpectralPlan, spectral_plan, wins


class Convolution(nn.Conv2d):
    bias: Tensor  # always there

    def __init__(
        self, channels: int, maps: int, kernel: int, stride: int, height: int, width: int
    ) -> None:
        super().__init__(channels, maps, kernel, stride)
        self.form: Literal["patches", "spectral", "direct"] = "direct"
        if takes_patches(self.weight):
            self.form = "patches"
        elif wins(height, width, kernel, stride, channels, maps):
            self.form = "spectral"
        self._kept: _Kept | None = None

    def train(self, mode: bool = True) -> Self:
        """Kernels may change weights from here on, unknown to torch: keep nothing of them."""
        self._kept = None
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Another device, precision or memory: torch changes the tensors inside the parameters."""
        self._kept = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, maps, h, w], in channels-last memory."""
        if self.form == "patches":
            y: Tensor = _PatchConvolution.apply(x, self.weight, self.bias, self.stride[0])  # type: ignore[no-untyped-call]
            return y
        if self.form == "spectral" and not torch.is_autocast_enabled(x.device.type):
            return self._spectral(x)
        return super().forward(x)

    def _spectral(self, x: Tensor) -> Tensor:
        weight, stride, transformed = self.weight, self.stride[0], None
        if not (self.training or torch.is_grad_enabled() or weight.is_inference()):
            plan = spectral_plan(*x.shape[2:], weight.shape[2], stride, x.dtype, x.device)
            if self._kept is None or not self._kept.holds(weight, plan):
                self._kept = _Kept(weight, weight._version, plan, spectral_weight(weight, plan))
            transformed = self._kept.transformed
        return spectral_conv2d(x, weight, self.bias, stride, transformed)


class _Kept(NamedTuple):
    """A transformed weight, kept from batch to batch while images are scored."""

    weight: Tensor
    version: int  # torch counts the changes of a weight, but not of one made in inference mode
    plan: SpectralPlan
    transformed: tuple[Tensor, ...]

    def holds(self, weight: Tensor, plan: SpectralPlan) -> bool:
        return self.weight is weight and self.version == weight._version and self.plan is plan


class _PatchConvolution(torch.autograd.Function):
    """One product of patches [N·h·w, numbers] and weights.

    With a gradient of its own it returns no view: an activation in place after a view would make
    autograd copy all maps several times.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        kernel, numbers, kind = weight.shape[2], weight[0].numel(), x.device.type
        windows = x.unfold(2, kernel, stride).unfold(3, kernel, stride)  # [N, C, h, w, k, k]
        n, _, h, w, _, _ = windows.shape
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        # The bias is the weight of a column of ones, so that its gradient needs no pass of its
        # own; matrix units want rows of a multiple of 8 numbers.
        patches = x.new_empty(n, h, w, numbers + 8 - numbers % 8, dtype=dtype)
        view = patches[..., :numbers].view(n, h, w, *weight.shape[1:])
        view.copy_(windows.permute(0, 2, 3, 1, 4, 5))
        patches[..., numbers] = 1.0
        patches[..., numbers + 1 :] = 0.0
        matrix = patches.new_zeros(len(weight), patches.shape[3])
        matrix[:, :numbers] = weight.flatten(1)
        matrix[:, numbers] = bias
        y = torch.empty(
            (n, len(weight), h, w), dtype=dtype, device=x.device, memory_format=torch.channels_last
        )
        torch.mm(patches.flatten(0, 2), matrix.T, out=y.permute(0, 2, 3, 1).flatten(0, 2))
        ctx.save_for_backward(x, weight, patches)
        ctx.stride = stride
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, patches = ctx.saved_tensors
        numbers = weight[0].numel()
        dx = None
        if ctx.needs_input_grad[0]:
            kernel = weight.to(dy.dtype)
            dx = conv2d_input(x.shape, kernel, dy, ctx.stride)  # type: ignore[no-untyped-call]
        flat = dy.permute(0, 2, 3, 1).flatten(0, 2)
        matrix = (flat.T @ patches.flatten(0, 2)).to(weight.dtype)
        dweight = matrix[:, :numbers].reshape(weight.shape)
        return dx, dweight, matrix[:, numbers], None
