"""Routing by agreement on a GPU: a few kernels on tensor cores, forward and backward.

It computes the same as `textbook.route`. Letters: N images, I input capsules of D numbers, J class
capsules of E numbers, R iterations, votes û_ij = W_ij u_i. With Vʳ = v⁰ + … + vʳ⁻¹ the logits are
bʳ_ij = û_ij · Vʳ_j. An iteration therefore needs only u, W and the small V:

    turn         W in the two memory orders that the products below read
    forward, r = 0 … R−1
        sweep    Σ_i cʳ_ij û_ij over ranges of i, cʳ = softmax_j bʳ
        close    sum of the ranges: sʳ, vʳ = squash(sʳ), Vʳ⁺¹ = Vʳ + vʳ
    backward, r = R−1 … 0
        bend     dsʳ = squash'(sʳ) dvʳ
        back     the iteration's part of du; for r > 0 also dbʳ and, over ranges of i,
                 dVʳ_j = Σ_i dbʳ_ij û_ij, which is added to dv of all earlier iterations
    leaves       dW and the gradient of the bias

The kernels are in `routing_device.py`. Partial sums are added in a fixed order, without atomics, so
that a run is reproducible bit by bit. Nothing waits for the device or depends on data, so a CUDA
graph can record it.
"""

from typing import Any

import torch
from torch import Tensor

from anocaps.capsules.textbook import Gradient
from anocaps.kernels.triton.routing_device import back, bend, close, leaves, sweep, turn
from anocaps.kernels.triton.support import supported, triton

WIDEST = 32  # largest D and E
MOST_CLASSES = 128

# Tuned on an H200 (132 multiprocessors).
SWEEP_IMAGES = 64  # per tile: 16 per warp, so that warps are independent
SWEEP_WARPS = 4
SWEEP_COLUMNS = 64  # D·capsules per tile
SWEEP_SPLITS = 256  # ranges of capsules, at most; each has a partial sum [J, N, E]
SWEEP_STAGES = 3
SWEEP_REGISTERS = 128
BACK_REGISTERS = 168
LEAF_IMAGES = 16
LEAF_COLUMNS = 64
LEAF_WARPS = 2
LEAF_STAGES = 2
SMALL_IMAGES = 2


def takes(u: Tensor, weight: Tensor) -> bool:
    """Whether `route` supports capsules of these sizes; weight [I, J, E, D]."""
    _, j, e, d = weight.shape
    sizes = j <= MOST_CLASSES and not any(x & (x - 1) or x > WIDEST for x in (d, e))
    return supported(u) and sizes


def route(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    gradient: Gradient = "all",
    tf32: bool = False,
) -> Tensor:
    """As `textbook.route`: u [N, I, D], weight [I, J, E, D], bias [J, E] → float32 [N, J, E].

    `takes` must hold. Products are as exact as fp32, or TF32 if `tf32`, for all input dtypes.
    Gradients have the dtypes of the inputs.
    """
    first = 0 if gradient == "all" else iterations - 1  # earliest iteration with a gradient
    # Keep the couplings of every iteration with a gradient, except r = 0, where all are 1/J.
    trained = any(x is not None and x.requires_grad for x in (u, weight, bias))
    kept = iterations - max(first, 1) if trained and torch.is_grad_enabled() else 0
    with torch.cuda.device_of(u):
        routed: Tensor = _FusedRoute.apply(u, weight, bias, iterations, first, kept, not tf32)
    return routed


class _Work:
    """Shapes and launch options."""

    def __init__(self, u: Tensor, j: int, e: int, precise: bool) -> None:
        self.u, (self.n, i, d) = u, u.shape
        self.ep = max(16, e)  # tensor cores need at least 16
        bi, self.leaf_bi = SWEEP_COLUMNS // d, LEAF_COLUMNS // d
        self.slots = triton.cdiv(i, max(bi, self.leaf_bi)) * max(bi, self.leaf_bi)
        self.tiles = self.slots // bi
        self.steps = triton.cdiv(self.tiles, SWEEP_SPLITS)
        self.splits = triton.cdiv(self.tiles, self.steps)
        self.blocks = triton.cdiv(self.n, SWEEP_IMAGES)
        self.shape = {"CAPSULES": i, "J": j, "EP": self.ep, "D": d, "PRECISE": precise}
        self.sweep = self.shape | {
            "TILES": self.tiles, "BM": SWEEP_IMAGES, "BI": bi, "num_warps": SWEEP_WARPS,
            "num_stages": SWEEP_STAGES, "STEPS": self.steps,
        }  # fmt: skip
        self.small_grid = (j, triton.cdiv(self.n, SMALL_IMAGES))
        self.small = {"SPLITS": self.splits, "E": e, "EP": self.ep, "BS": 32,
                      "BN": SMALL_IMAGES}  # fmt: skip

    def empty(self, *shape: int) -> Tensor:
        return self.u.new_empty(shape, dtype=torch.float32)


class _FusedRoute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, weight: Tensor, bias: Tensor | None, iterations: int,
                first: int, kept: int, precise: bool) -> Tensor:  # fmt: skip
        _, j, e, d = weight.shape
        u = u.contiguous()
        on = _Work(u, j, e, precise)
        w1, w2 = on.empty(2, j, on.slots * d * on.ep)
        turn[(on.tiles, j)](weight.contiguous(), w1, w2, E=e, BI=on.sweep["BI"], **on.shape)
        sums, totals = on.empty(2, iterations, j, on.n, on.ep)  # sʳ; Vʳ (V⁰ is never read)
        parts, v = on.empty(on.splits, j, on.n, on.ep), on.empty(on.n, j, e)
        c = on.empty(kept, j, on.n, on.slots)
        for r in range(iterations):
            slot = r - (iterations - kept)
            keep = slot >= 0 and r > 0
            sweep[(on.splits, on.blocks)](
                u, w1, w2, totals[r], c[slot] if keep else v, parts, on.n, FIRST=r == 0,
                KEEP=keep, maxnreg=SWEEP_REGISTERS, **on.sweep,
            )  # fmt: skip
            close[on.small_grid](
                parts, v if bias is None else bias.contiguous(), totals[r], sums[r],
                totals[min(r + 1, iterations - 1)], v, on.n, j, BIAS=bias is not None,
                FIRST=r == 0, LAST=r == iterations - 1, **on.small,
            )  # fmt: skip
        ctx.save_for_backward(u, w1, w2, sums, totals, c)
        ctx.first, ctx.precise, ctx.weight = first, precise, (weight.shape, weight.dtype)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return v

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, w1, w2, sums, totals, c = ctx.saved_tensors
        (i, j, e, _), dtype = ctx.weight
        on, iterations, first = _Work(u, j, e, ctx.precise), len(sums), ctx.first
        dss, carried = torch.empty_like(sums), torch.empty_like(sums[0])
        db = torch.empty_like(c) if first == 0 else c
        parts = on.empty(on.splits, j, on.n, on.ep)
        du, later_du = torch.empty_like(u), on.empty(*u.shape)
        dweight = u.new_empty(ctx.weight[0], dtype=dtype)
        grad = grad.contiguous()
        for r in reversed(range(first, iterations)):
            last = r == iterations - 1
            bend[on.small_grid](
                parts, grad, carried, sums[r], dss[r], on.n, j, LAST=last,
                SECOND_LAST=r == iterations - 2, **on.small,
            )  # fmt: skip
            slot = r - max(first, 1)
            back[(on.splits, on.blocks)](
                u, w1, w2, totals[r], dss[r], c[slot:], db[slot:], later_du,
                later_du if r > first else du, parts, on.n, LAST=last, EARLIEST=r == first,
                EVEN=r == 0, maxnreg=BACK_REGISTERS, **on.sweep,
            )  # fmt: skip
        dbias = None if ctx.bias_dtype is None else u.new_empty(j, e, dtype=ctx.bias_dtype)
        leaves[(triton.cdiv(i, on.leaf_bi), j)](
            u, totals, dss, c, db, dweight, du if dbias is None else dbias, on.n, E=e,
            SLOTS=on.slots, FIRST=first, R=iterations, BN=LEAF_IMAGES, BI=on.leaf_bi,
            BIAS=dbias is not None, BLOCKS=triton.cdiv(on.n, LEAF_IMAGES), num_warps=LEAF_WARPS,
            num_stages=LEAF_STAGES, **on.shape,
        )  # fmt: skip
        return du, dweight, dbias, None, None, None, None
