"""The loss of a capsule network on a GPU in bfloat16: margin, decoder and reconstruction error.

Each operation is small, so launches take most of the time. PyTorch's operators need about a
hundred. Here cuBLAS computes the decoder's products, and kernels fuse the operations between them:

    forward   _margin       class capsules → margin loss, and the labelled capsule in bfloat16
              layers        products and ReLU
              _error        last layer → squared error of the reconstruction
    backward  _error_back   gradients of the last layer and of its bias
              _relu_back    gradients of every other layer and of its bias
              products      gradients of the weights, in fp32, and of the layer's input
              _margin_back  gradient of the class capsules, from margin and decoder

Letters: N images of P pixels, J class capsules v of E numbers. Products take bfloat16 and sum in
fp32; everything else is fp32. Partial sums are added in a fixed order, without atomics, so that a
run is reproducible bit by bit. Nothing waits for the device or depends on data, so a CUDA graph can
record it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from anocaps.kernels.triton.support import jit, supported, tl, triton

MARGINS = {"UPPER": 0.9, "LOWER": 0.1, "DOWN": 0.5}  # as in textbook.margin_loss

# Tuned on an H200.
MARGIN_NUMBERS = 2048  # per tile
ERROR_NUMBERS = 1024
COLUMNS = 16
ROWS = 64
WARPS = 4


# ---- kernels ----


@jit
def _capsules(v, labels, N, J: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, BJ: tl.constexpr,
              BE: tl.constexpr):  # fmt: skip
    """For a program's images: offsets, mask, capsules, whether a capsule is the label's (all
    broadcast to [BN, BJ, BE]), and lengths [BN, BJ, 1]."""
    n = (tl.program_id(0) * BN + tl.arange(0, BN))[:, None, None]
    j = tl.arange(0, BJ)[None, :, None]
    e = tl.arange(0, BE)[None, None, :]
    at = (n * J + j) * E + e
    inside = (n < N) & (j < J) & (e < E)
    x = tl.load(v + at, mask=inside, other=0.0)
    labelled = tl.load(labels + n, mask=n < N, other=0) == j
    return at, inside, x, labelled, tl.sqrt(tl.sum(x * x, axis=2, keep_dims=True))


@jit
def _margin(v, labels, masked, parts, N, J: tl.constexpr, E: tl.constexpr, BN: tl.constexpr,
            BJ: tl.constexpr, BE: tl.constexpr, UPPER: tl.constexpr, LOWER: tl.constexpr,
            DOWN: tl.constexpr):  # fmt: skip
    """parts[program] = margin loss of its images; masked = the labelled capsules, others 0."""
    at, inside, x, labelled, length = _capsules(v, labels, N, J, E, BN, BJ, BE)
    short = tl.maximum(UPPER - length, 0.0, propagate_nan=tl.PropagateNan.ALL)
    long = tl.maximum(length - LOWER, 0.0, propagate_nan=tl.PropagateNan.ALL)
    loss = tl.where(labelled, short * short, DOWN * long * long)  # [BN, BJ, 1]
    tl.store(masked + at, tl.where(labelled, x, 0.0).to(tl.bfloat16), mask=inside)
    n = (tl.program_id(0) * BN + tl.arange(0, BN))[:, None, None]
    j = tl.arange(0, BJ)[None, :, None]
    loss = tl.where((n < N) & (j < J), loss, 0.0)
    tl.store(parts + tl.program_id(0), tl.sum(loss) / N)


@jit
def _margin_back(v, labels, dmasked, grad, dv, N, J: tl.constexpr, E: tl.constexpr,
                 BN: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, UPPER: tl.constexpr,
                 LOWER: tl.constexpr, DOWN: tl.constexpr):  # fmt: skip
    at, inside, x, labelled, length = _capsules(v, labels, N, J, E, BN, BJ, BE)
    short = tl.maximum(UPPER - length, 0.0)
    long = tl.maximum(length - LOWER, 0.0)
    dlength = tl.where(labelled, -short, DOWN * long) * (2 * tl.load(grad) / N)
    dx = dlength / tl.where(length > 0, length, 1.0) * x
    from_decoder = tl.load(dmasked + at, mask=inside & labelled, other=0.0)
    tl.store(dv + at, dx + from_decoder, mask=inside)


@jit
def _error(z, pixels, parts, scale, size, B: tl.constexpr):
    """parts[program] = scale · Σ (sigmoid(z) − pixels)² over its B numbers."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    y = tl.sigmoid(tl.load(z + i, mask=i < size, other=0.0).to(tl.float32))
    off = tl.where(i < size, y - tl.load(pixels + i, mask=i < size, other=0.0), 0.0)
    tl.store(parts + tl.program_id(0), tl.sum(off * off) * scale)


@jit
def _error_back(z, pixels, grad, dz, dbias, scale, N, WIDTH: tl.constexpr, STEPS: tl.constexpr,
                BN: tl.constexpr, BC: tl.constexpr):  # fmt: skip
    """dz [N, P], and dbias, its sum over the images. A program takes BC columns."""
    c = (tl.program_id(0) * BC + tl.arange(0, BC))[None, :]
    factor = 2 * scale * tl.load(grad)
    acc = tl.zeros([BN, BC], tl.float32)
    for step in range(STEPS):
        n = (step * BN + tl.arange(0, BN))[:, None]
        at, inside = n * WIDTH + c, (n < N) & (c < WIDTH)
        y = tl.sigmoid(tl.load(z + at, mask=inside, other=0.0).to(tl.float32))
        off = tl.where(inside, y - tl.load(pixels + at, mask=inside, other=0.0), 0.0)
        d = factor * off * y * (1 - y)
        tl.store(dz + at, d.to(tl.bfloat16), mask=inside)
        acc += d
    tl.store(dbias + c, tl.sum(acc, axis=0, keep_dims=True), mask=c < WIDTH)


@jit
def _relu_back(y, dy, dbias, N, WIDTH: tl.constexpr, STEPS: tl.constexpr, BN: tl.constexpr,
               BC: tl.constexpr):  # fmt: skip
    """Set dy to 0 where y is 0; dbias is its sum over the images. A program takes BC columns."""
    c = (tl.program_id(0) * BC + tl.arange(0, BC))[None, :]
    acc = tl.zeros([BN, BC], tl.float32)
    for step in range(STEPS):
        n = (step * BN + tl.arange(0, BN))[:, None]
        at, inside = n * WIDTH + c, (n < N) & (c < WIDTH)
        below = tl.load(y + at, mask=inside, other=0.0).to(tl.float32) <= 0
        d = tl.where(below, 0.0, tl.load(dy + at, mask=inside, other=0.0).to(tl.float32))
        tl.store(dy + at, d.to(tl.bfloat16), mask=inside)
        acc += d
    tl.store(dbias + c, tl.sum(acc, axis=0, keep_dims=True), mask=c < WIDTH)


# ---- host side ----


def takes(capsules: Tensor, pixels: Tensor, decoder: nn.Module) -> bool:
    """Whether `capsule_loss` supports this decoder: dense layers, ReLU between them, a sigmoid at
    the end, one output per pixel. Unflatten may be anywhere."""
    layers = [layer for layer in decoder.children() if not isinstance(layer, nn.Unflatten)]
    kinds = [nn.Linear, nn.ReLU] * (len(layers) // 2 - 1) + [nn.Linear, nn.Sigmoid]
    if [type(layer) for layer in layers] != kinds:
        return False
    whole = layers[-2].out_features == pixels[0].numel() and not pixels.requires_grad
    return supported(capsules) and capsules.dtype == torch.float32 and bool(whole)


def capsule_loss(
    capsules: Tensor, labels: Tensor, pixels: Tensor, decoder: nn.Module, weight: float
) -> Tensor:
    """margin_loss(lengths(capsules), labels) + weight · squared error of the reconstructions.

    capsules fp32 [N, J, E], labels int64 [N], pixels [N, C, H, W]. `takes` must hold.
    """
    parameters = list(decoder.parameters())
    copies = [torch.empty_like(p, dtype=torch.bfloat16) for p in parameters]
    torch._foreach_copy_(copies, [p.detach() for p in parameters])  # one launch for all
    with torch.cuda.device_of(capsules):
        loss: Tensor = _CapsuleLoss.apply(
            capsules.contiguous(), labels, pixels.contiguous(), weight, copies, *parameters
        )
    return loss


def _tile(capsules: Tensor) -> tuple[int, dict[str, Any]]:
    """Number of programs and launch options of the margin kernels."""
    n, j, e = capsules.shape
    bj, be = triton.next_power_of_2(j), triton.next_power_of_2(e)
    bn = max(1, MARGIN_NUMBERS // (bj * be))
    shape = {"J": j, "E": e, "BN": bn, "BJ": bj, "BE": be, "num_warps": WARPS}
    return triton.cdiv(n, bn), shape | MARGINS


def _fp32_product(a: Tensor, b: Tensor) -> Tensor:
    """The product of two bfloat16 matrices in fp32."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.mm(a.float(), b.float())


class _CapsuleLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, capsules: Tensor, labels: Tensor, pixels: Tensor, weight: float,
                copies: list[Tensor], *parameters: Tensor) -> Tensor:  # fmt: skip
        n, j, e = capsules.shape
        programs, options = _tile(capsules)
        blocks = triton.cdiv(pixels.numel(), ERROR_NUMBERS)
        parts = capsules.new_empty(programs + blocks)
        inputs = [capsules.new_empty(n, j * e, dtype=torch.bfloat16)]  # one per layer
        _margin[(programs,)](capsules, labels, inputs[0], parts, n, **options)
        weights, biases = copies[::2], copies[1::2]
        for w, bias in zip(weights[:-1], biases):
            inputs.append(torch.addmm(bias, inputs[-1], w.mT).relu_())
        z = torch.addmm(biases[-1], inputs[-1], weights[-1].mT)
        ctx.scale = weight / n
        _error[(blocks,)](
            z, pixels, parts[programs:], ctx.scale, pixels.numel(), B=ERROR_NUMBERS,
            num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(capsules, labels, pixels, z, *inputs, *weights)
        return parts.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        capsules, labels, pixels, z, *rest = ctx.saved_tensors
        inputs, weights = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        n, width = z.shape
        tile = {"STEPS": triton.cdiv(n, ROWS), "BN": ROWS, "BC": COLUMNS, "num_warps": WARPS}
        d, dbias = torch.empty_like(z), capsules.new_empty(width)
        _error_back[(triton.cdiv(width, COLUMNS),)](
            z, pixels, grad, d, dbias, ctx.scale, n, WIDTH=width, **tile
        )
        dparameters: list[Tensor] = []
        for k in reversed(range(len(inputs))):
            dparameters[:0] = _fp32_product(d.mT, inputs[k]), dbias
            if k > 0:
                d, width = torch.mm(d, weights[k]), weights[k].shape[1]
                dbias = capsules.new_empty(width)
                _relu_back[(triton.cdiv(width, COLUMNS),)](
                    inputs[k], d, dbias, n, WIDTH=width, **tile
                )
        dv = torch.empty_like(capsules)
        programs, options = _tile(capsules)
        _margin_back[(programs,)](
            capsules, labels, _fp32_product(d, weights[0]), grad, dv, n, **options
        )
        return dv, None, None, None, None, *dparameters
