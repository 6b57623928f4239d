# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: allow-incomplete-defs, no-check-untyped-defs
"""The loss of a variational autoencoder on a GPU, as one Triton kernel a way.

Minus the evidence lower bound, averaged over the images: cross-entropy of the pixels plus
divergence of the latents. All of it is small, so that launches are what it costs: written with
PyTorch's operators about thirty of them.

N images of P pixels and L latents, all fp32. A program takes a block of pixels or a block of
latents, numbered through all images. Sums go through partial sums in a fixed order, never atomics:
the same bits each time. Nothing waits for the device or looks at data, so a CUDA graph can hold it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anocaps.base.errors import InputError
from anocaps.kernels.triton_support import jit, tl, triton, usable

# Knobs.
BLOCK = 512
WARPS = 4


@jit
def _loss(logits, pixels, mean, log_variance, parts, N, P: tl.constexpr, L: tl.constexpr,
          ROW: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """parts[program] = its share of the loss. Images are ROW apart in mean and log_variance."""
    blocks = tl.cdiv(N * P, BLOCK)
    program = tl.program_id(0)
    if program < blocks:
        i = program * BLOCK + tl.arange(0, BLOCK)
        inside = i < N * P
        z = tl.load(logits + i, mask=inside, other=0.0)
        x = tl.load(pixels + i, mask=inside, other=0.0)
        high = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
        loss = high - x * z + tl.log(1 + tl.exp(-tl.abs(z)))  # no exp of a large number
    else:
        i = (program - blocks) * BLOCK + tl.arange(0, BLOCK)
        inside = i < N * L
        at = i // L * ROW + i % L
        m = tl.load(mean + at, mask=inside, other=0.0)
        v = tl.load(log_variance + at, mask=inside, other=0.0)
        loss = (m * m + tl.exp(v) - v - 1) / 2
    tl.store(parts + program, tl.sum(tl.where(inside, loss, 0.0)) / N)


@jit
def _loss_back(logits, pixels, mean, log_variance, grad, dlogits, dlatents, N, P: tl.constexpr,
               L: tl.constexpr, ROW: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """dlogits, and dlatents [N, 2, L] = dmean, dlog_variance."""
    blocks = tl.cdiv(N * P, BLOCK)
    program = tl.program_id(0)
    scale = tl.load(grad) / N
    if program < blocks:
        i = program * BLOCK + tl.arange(0, BLOCK)
        inside = i < N * P
        z = tl.load(logits + i, mask=inside, other=0.0)
        x = tl.load(pixels + i, mask=inside, other=0.0)
        tl.store(dlogits + i, (tl.sigmoid(z) - x) * scale, mask=inside)
    else:
        i = (program - blocks) * BLOCK + tl.arange(0, BLOCK)
        inside = i < N * L
        at = i // L * ROW + i % L
        m = tl.load(mean + at, mask=inside, other=0.0)
        v = tl.load(log_variance + at, mask=inside, other=0.0)
        to = i // L * (2 * L) + i % L
        tl.store(dlatents + to, m * scale, mask=inside)
        tl.store(dlatents + to + L, (tl.exp(v) - 1) / 2 * scale, mask=inside)


def available(logits: Tensor) -> bool:
    """Whether mean_loss takes these: fp32, Triton and a GPU, or its interpreter."""
    return usable(logits) and logits.dtype == torch.float32


def mean_loss(pixels: Tensor, logits: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """−elbo(…).mean(): pixels and logits [N, C, H, W], mean and log-variance of z [N, L], all fp32.

    No gradient for the pixels.
    """
    if not all(available(x) for x in (logits, pixels, mean, log_variance)):
        raise InputError("mean_loss needs triton and fp32 on a GPU")
    if pixels.requires_grad:
        raise InputError("mean_loss has no gradient for pixels")
    if pixels.shape != logits.shape or mean.shape != log_variance.shape or mean.ndim != 2:
        raise InputError(
            f"pixels {tuple(pixels.shape)}, logits {tuple(logits.shape)}, mean "
            f"{tuple(mean.shape)} and log-variance {tuple(log_variance.shape)} do not fit"
        )
    if mean.stride() != log_variance.stride() or mean.stride(1) != 1:  # else halves of one tensor
        mean, log_variance = mean.contiguous(), log_variance.contiguous()
    with torch.cuda.device_of(logits):
        loss: Tensor = _MeanLoss.apply(pixels.contiguous(), logits.contiguous(), mean, log_variance)
    return loss


def _launch(logits: Tensor, mean: Tensor) -> tuple[int, dict[str, int]]:
    """Programs and launch options."""
    programs = triton.cdiv(logits.numel(), BLOCK) + triton.cdiv(mean.numel(), BLOCK)
    return programs, {"P": logits[0].numel(), "L": mean.shape[1], "ROW": mean.stride(0),
                      "BLOCK": BLOCK, "num_warps": WARPS}  # fmt: skip


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, pixels: Tensor, logits: Tensor, mean: Tensor, log_variance: Tensor
    ) -> Tensor:
        programs, options = _launch(logits, mean)
        parts = logits.new_empty(programs)
        _loss[(programs,)](logits, pixels, mean, log_variance, parts, len(logits), **options)
        ctx.save_for_backward(logits, pixels, mean, log_variance)
        return parts.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, _, mean, _ = ctx.saved_tensors
        programs, options = _launch(logits, mean)
        dlogits = torch.empty_like(logits)
        dlatents = mean.new_empty(len(mean), 2, mean.shape[1])
        _loss_back[(programs,)](*ctx.saved_tensors, grad, dlogits, dlatents, len(logits), **options)
        return None, dlogits, dlatents[:, 0], dlatents[:, 1]
