"""A convolution as one product of patches [N·h·w, C·k·k] and weights, for small patches."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

MOST_NUMBERS = 256  # per patch; with more, conv2d is faster


def patch_conv2d(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """As conv2d: [N, C, H, W], [O, C, k, k], [O] → [N, O, h, w] in channels-last memory."""
    y: Tensor = _PatchConvolution.apply(x, weight, bias, stride)  # type: ignore[no-untyped-call]
    return y


class _PatchConvolution(torch.autograd.Function):
    """The result is not a view: an in-place activation on a view would make autograd copy it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        kernel, numbers, kind = weight.shape[2], weight[0].numel(), x.device.type
        windows = x.unfold(2, kernel, stride).unfold(3, kernel, stride)  # [N, C, h, w, k, k]
        n, _, h, w, _, _ = windows.shape
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        # The bias is the weight of a column of ones, so its gradient needs no extra pass.
        # Matrix units need rows of a multiple of 8 numbers.
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
