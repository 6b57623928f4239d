# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
"""Routing by agreement on a GPU: forward and backward as a few Triton kernels.

The same function as `capsules.route`, letters too: N images, I input capsules of D numbers, J class
capsules of E numbers, R iterations, votes û_ij = W_ij u_i. With Vʳ = v⁰ + … + vʳ⁻¹ the logits are
bʳ_ij = û_ij · Vʳ_j, so an iteration needs u, W and the small V, and nothing of size I × J is kept:

    forward, r = 0 … R−1                          backward, r = R−1 … 0
      sweep   Σ_i cʳ_ij û_ij, c = softmax_j b       bend    dsʳ = squash'(sʳ) dvʳ
      close   sʳ, vʳ = squash(sʳ), Vʳ⁺¹ = Vʳ + vʳ   sweep   dVʳ_j = Σ_i dbʳ_ij û_ij (r > 0), which
                                                            adds to dv of all earlier iterations
                                                    leaves  du and dW from all dsʳ and Vʳ at once

A program of `sweep` or `leaves` holds a tile of votes [E, images, capsules, J] in registers, made
anew from u and W by D multiply-adds each: plain fp32, no tensor cores, no TF32. Laid out like this
Triton gives every thread all E numbers of a vote for several images (W is loaded once for them),
the J of one input capsule lie on neighbouring lanes (softmax is a few shuffles) and a warp covers
32/J input capsules. Sums across programs go through partial buffers in a fixed order, never through
atomics: a result is the same bits each time. W is first turned to [I, E, D, J] for that layout, and
the small tensors are [N, E, J] inside.

Nothing here waits for the device or looks at data, so a CUDA graph can hold it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from anocaps.capsules import EPS, Gradient
from anocaps.errors import InputError

try:
    import triton
    import triton.language as tl

    _jit = triton.jit
    _INTERPRETED = bool(triton.knobs.runtime.interpret)
    _INSTALLED = True
except ImportError:  # a CPU has no use for it

    def _jit(function):
        return function

    _INTERPRETED = _INSTALLED = False

WIDEST = 32  # largest D and E: a thread holds all E numbers of a vote
MOST_CLASSES = 128


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How the work is cut. Every number except the two ranges is a power of two."""

    warps: int  # per program
    images: int  # BN, in one tile: all in registers, W is reused over them
    capsules: int  # BI, in one tile: across lanes and warps
    image_range: int  # images of one program, tile after tile: W comes from L1 after the first
    capsule_range: int  # input capsules of one program


# Votes that a thread holds. A sweep keeps three such tiles alive (four backward), `leaves` two and
# D·E sums for dW.
SWEEP_VOTES = 64
BACK_SWEEP_VOTES = 32
LEAF_VOTES = 32
SWEEP_WARPS = 4
LEAF_WARPS = 2
SWEEP_IMAGES = 16  # image_range
SWEEP_CAPSULES = 32  # capsule_range, at least
MOST_SPLITS = 128  # of the I capsules: bounds the partial buffers
LEAF_GROUPS = 2  # of images, in `leaves`: each has a partial dW of W's size


def choose_blocks(kind: str, n: int, i: int, j: int, e: int) -> Blocks:
    """Blocks for `kind` "sweep", "back" (the backward sweep) or "leaves"."""
    votes = {"sweep": SWEEP_VOTES, "back": BACK_SWEEP_VOTES, "leaves": LEAF_VOTES}[kind]
    warps = LEAF_WARPS if kind == "leaves" else SWEEP_WARPS
    width = triton.next_power_of_2(j)
    capsules = max(1, 32 * warps // width)
    capsules = min(capsules, triton.next_power_of_2(i))
    images = max(1, votes * 32 * warps // (capsules * width * e))
    images = min(images, 16, triton.next_power_of_2(n))
    groups = LEAF_GROUPS if kind == "leaves" else triton.cdiv(n, SWEEP_IMAGES)
    image_range = triton.cdiv(triton.cdiv(n, groups), images) * images
    if kind == "leaves":
        return Blocks(warps, images, capsules, image_range, capsules)
    at_least = max(SWEEP_CAPSULES, triton.cdiv(i, MOST_SPLITS))
    capsule_range = triton.cdiv(at_least, capsules) * capsules
    return Blocks(warps, images, capsules, image_range, capsule_range)


# ---- kernels: 4-d index tensors, j [BJ,1,1,1], i [1,BI,1,1], n [1,1,BN,1], e [1,1,1,E] ----


@_jit
def _axes(i0, n0, BJ: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, E: tl.constexpr):
    j = tl.arange(0, BJ)[:, None, None, None]
    i = i0 + tl.arange(0, BI)[None, :, None, None]
    n = n0 + tl.arange(0, BN)[None, None, :, None]
    e = tl.arange(0, E)[None, None, None, :]
    return j, i, n, e


@_jit
def _votes(u_at, w_at, J: tl.constexpr, D: tl.constexpr, SHAPE: tl.constexpr):
    """û [BJ, BI, BN, E] from pointers to d = 0 of u [1, BI, BN, 1] and of w [BJ, BI, 1, E]."""
    votes = tl.zeros(SHAPE, tl.float32)
    for d in tl.static_range(D):
        votes += tl.load(u_at + d).to(tl.float32) * tl.load(w_at + d * J)
    return votes


@_jit
def _softmax(b, j, J: tl.constexpr):
    b = tl.where(j < J, b, -float("inf"))
    p = tl.exp(b - tl.max(b, axis=0, keep_dims=True))
    return p * (1 / tl.sum(p, axis=0, keep_dims=True))


@_jit
def _logit_grad(c, votes, ds):
    """db [BJ, BI, BN, 1] from dc = û · ds through the softmax."""
    dc = tl.sum(votes * ds, axis=3, keep_dims=True)
    return c * (dc - tl.sum(c * dc, axis=0, keep_dims=True))


@_jit
def _sweep(u, w, total, ds, parts, N, I: tl.constexpr, J: tl.constexpr, D: tl.constexpr,
           E: tl.constexpr, STEP: tl.constexpr, IMAGES: tl.constexpr, CAPSULES: tl.constexpr,
           BJ: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """parts[split] [N, E, J] = Σ over a range of i of x_ij û_ij, where x is
    STEP 0: 1/J (all logits are 0), STEP 1: the coupling, STEP 2: the gradient of the logit."""
    split = tl.program_id(0)
    for n0 in range(0, IMAGES, BN):
        j, i, n, e = _axes(split * CAPSULES, tl.program_id(1) * IMAGES + n0, BJ, BI, BN, E)
        jj, nn = tl.minimum(j, J - 1), tl.minimum(n, N - 1).to(tl.int64)  # what is safe to read
        small = nn * (E * J) + jj + tl.zeros_like(i) + e * J
        if STEP > 0:
            v = tl.load(total + small)
        if STEP > 1:
            g = tl.load(ds + small)
        acc = tl.zeros([BJ, BI, BN, E], tl.float32)
        for i0 in range(0, CAPSULES, BI):
            ii = tl.minimum(i0 + i, I - 1)
            votes = _votes(u + nn * (I * D) + ii * D, w + (ii * (E * D * J) + jj) + e * (D * J),
                           J, D, [BJ, BI, BN, E])  # fmt: skip
            if STEP == 0:
                x = tl.where(i0 + i < I, 1.0 / J, 0.0)
            else:
                x = _softmax(tl.sum(votes * v, axis=3, keep_dims=True), j, J)
                if STEP == 2:
                    x = _logit_grad(x, votes, g)
                x = tl.where(i0 + i < I, x, 0.0)
            acc += x * votes
        at = (split.to(tl.int64) * N + n) * (E * J) + e * J + jj
        tl.store(parts + at, tl.sum(acc, axis=1, keep_dims=True), mask=(n < N) & (j < J))


@_jit
def _leaves(u, w, totals, dss, du, dw, N, I: tl.constexpr, J: tl.constexpr, D: tl.constexpr,
            E: tl.constexpr, FIRST: tl.constexpr, R: tl.constexpr, IMAGES: tl.constexpr,
            BJ: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """du [N, I, D] and dw[group] [I, E, D, J], from dû = Σ_r cʳ dsʳ + dbʳ Vʳ over r = FIRST … R−1;
    FIRST > 0 holds the couplings constant (gradient "last")."""
    group = tl.program_id(1)
    j, i, n, e = _axes(tl.program_id(0) * BI, group * IMAGES, BJ, BI, BN, E)
    jj, ii = tl.minimum(j, J - 1), tl.minimum(i, I - 1)  # what is safe to read
    w_at = w + (ii * (E * D * J) + jj) + e * (D * J)
    sums = ()  # of dW, per d: [BJ, BI, 1, E]
    for _ in tl.static_range(D):
        sums = sums + (tl.zeros([BJ, BI, 1, E], tl.float32),)
    for n0 in range(0, IMAGES, BN):
        inside = (j < J) & (i < I) & (n0 + n < N)
        nn = tl.minimum(n0 + n, N - 1).to(tl.int64)
        row = nn * (I * D) + ii * D
        votes = _votes(u + row, w_at, J, D, [BJ, BI, BN, E])
        dvotes = tl.zeros([BJ, BI, BN, E], tl.float32)
        small = nn * (E * J) + jj + tl.zeros_like(i) + e * J
        for r in tl.static_range(FIRST, R):
            g = tl.load(dss + r * N * (E * J) + small)
            if r == 0:
                dvotes += tl.where(inside, 1.0 / J, 0.0) * g
            else:
                v = tl.load(totals + r * N * (E * J) + small)
                c = _softmax(tl.sum(votes * v, axis=3, keep_dims=True), j, J)
                c = tl.where(inside, c, 0.0)
                dvotes += c * g
                if FIRST == 0:
                    dvotes += _logit_grad(c, votes, g) * v
        grown = ()
        for d in tl.static_range(D):
            du_d = tl.sum(dvotes * tl.load(w_at + d * J), axis=3, keep_dims=True)
            du_d = tl.sum(du_d, axis=0, keep_dims=True) + tl.zeros_like(j)
            # the first lane of each row writes, so that the sum stays where it is
            tl.store(du + row + tl.zeros_like(j) + d, du_d, mask=inside & (j == 0))
            u_d = tl.load(u + row + d).to(tl.float32)
            grown = grown + (sums[d] + tl.sum(dvotes * u_d, axis=2, keep_dims=True),)
        sums = grown
    out = dw + group.to(tl.int64) * (I * E * D * J) + (ii * (E * D * J) + jj) + e * (D * J)
    for d in tl.static_range(D):
        tl.store(out + d * J, sums[d], mask=(j < J) & (i < I))


@_jit
def _add_parts(parts, SPLITS: tl.constexpr, N, J, E: tl.constexpr, BS: tl.constexpr, BJ: tl.constexpr):
    """Σ over splits of parts[split, n] → [E, BJ], for the image n of this program."""
    k = tl.arange(0, BS)[:, None, None]
    e = tl.arange(0, E)[None, :, None]
    j = tl.arange(0, BJ)[None, None, :]
    n = tl.program_id(0)
    acc = tl.zeros([BS, E, BJ], tl.float32)
    for k0 in range(0, SPLITS, BS):
        at = ((k0 + k).to(tl.int64) * N + n) * (E * J) + e * J + j
        acc += tl.load(parts + at, mask=(k0 + k < SPLITS) & (j < J), other=0.0)
    return tl.sum(acc, axis=0)


@_jit
def _close(parts, bias, total, s_out, next_total, v_out, N, J, eps, SPLITS: tl.constexpr,
           BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, E: tl.constexpr,
           BS: tl.constexpr, BJ: tl.constexpr):  # fmt: skip
    """Ends a forward iteration: s, then V + squash(s), or in the last one v [N, J, E]."""
    n = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, E)[:, None]
    j = tl.arange(0, BJ)[None, :]
    at = n * (E * J) + e * J + j
    s = _add_parts(parts, SPLITS, N, J, E, BS, BJ)
    if BIAS:
        s += tl.load(bias + j * E + e, mask=j < J, other=0.0).to(tl.float32)
    tl.store(s_out + at, s, mask=j < J)
    norm = tl.sqrt(tl.sum(s * s, axis=0, keep_dims=True) + eps)
    v = s / (norm + 1 / norm)
    if LAST:
        tl.store(v_out + n * (E * J) + j * E + e, v, mask=j < J)
    else:
        if not FIRST:
            v += tl.load(total + at, mask=j < J, other=0.0)
        tl.store(next_total + at, v, mask=j < J)


@_jit
def _bend(parts, grad, carried, s_in, ds_out, N, J, eps, SPLITS: tl.constexpr,
          LAST: tl.constexpr, SECOND_LAST: tl.constexpr, E: tl.constexpr, BS: tl.constexpr,
          BJ: tl.constexpr):  # fmt: skip
    """Starts a backward iteration: dv, the given gradient [N, J, E] or the dV of all later
    iterations added up in `carried`, then ds through squash."""
    n = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, E)[:, None]
    j = tl.arange(0, BJ)[None, :]
    at = n * (E * J) + e * J + j
    if LAST:
        g = tl.load(grad + n * (E * J) + j * E + e, mask=j < J, other=0.0).to(tl.float32)
    else:
        g = _add_parts(parts, SPLITS, N, J, E, BS, BJ)
        if not SECOND_LAST:
            g += tl.load(carried + at, mask=j < J, other=0.0)
        tl.store(carried + at, g, mask=j < J)
    s = tl.load(s_in + at, mask=j < J, other=0.0)
    norm = tl.sqrt(tl.sum(s * s, axis=0, keep_dims=True) + eps)
    scale = 1 / (norm + 1 / norm)
    slope = scale * scale * (1 / (norm * norm) - 1)  # d scale / d norm
    ds = scale * g + s * (slope / norm) * tl.sum(s * g, axis=0, keep_dims=True)
    tl.store(ds_out + at, ds, mask=j < J)


@_jit
def _turn(source, target, I, rows, columns, GROUPS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """target [I, columns, rows] = Σ over groups of source [groups, I, rows, columns], turned."""
    i = tl.program_id(0).to(tl.int64)
    r = tl.program_id(1) * BR + tl.arange(0, BR)[:, None]
    c = tl.program_id(2) * BC + tl.arange(0, BC)[None, :]
    inside = (r < rows) & (c < columns)
    acc = tl.zeros([BR, BC], tl.float32)
    for g in range(GROUPS):
        at = (g * I + i) * (rows * columns) + r * columns + c
        acc += tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + i * (rows * columns) + c * rows + r, acc, mask=inside)


# ---- host side ----


def available(u: Tensor) -> bool:
    """Whether `fused_route` can take this tensor: Triton is here and a GPU, or its interpreter."""
    return _INSTALLED and (u.is_cuda or _INTERPRETED) and u.dtype != torch.float64


def fused_route(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    gradient: Gradient = "all",
) -> Tensor:
    """Routing by agreement: u [N, I, D], weight [I, J, E, D], bias [J, E] → float32 [N, J, E].

    The same as `capsules.route` within fp32 rounding, whatever the input dtypes and autocast;
    gradients have the dtypes of the inputs.
    """
    if not available(u):
        raise InputError("fused routing needs triton and a GPU tensor that is not float64")
    i, j, e, d = weight.shape
    if u.shape[1:] != (i, d) or (bias is not None and bias.shape != (j, e)):
        raise InputError(f"u {tuple(u.shape)} and bias do not fit W {tuple(weight.shape)}")
    if any(x & (x - 1) or x > WIDEST for x in (d, e)) or j > MOST_CLASSES:
        raise InputError(
            f"fused routing takes capsules of 1, 2, 4 … {WIDEST} numbers and up to "
            f"{MOST_CLASSES} classes, not {d} → {e} numbers and {j} classes: use capsules.route"
        )
    if iterations < 1 or gradient not in ("all", "last"):
        raise InputError(f"iterations={iterations}, gradient={gradient!r}: at least 1, all or last")
    return _FusedRoute.apply(u, weight, bias, iterations, gradient)  # type: ignore[no-any-return]


def _turned(source: Tensor, groups: int, target: Tensor, rows: int, columns: int) -> Tensor:
    """[groups, I, rows, columns] → [I, columns, rows], added over groups, in target's dtype."""
    i = target.shape[0]
    block = min(triton.next_power_of_2(rows), 32), min(triton.next_power_of_2(columns), 128)
    if rows > columns:
        block = min(triton.next_power_of_2(rows), 128), min(triton.next_power_of_2(columns), 32)
    grid = (i, triton.cdiv(rows, block[0]), triton.cdiv(columns, block[1]))
    _turn[grid](source, target, i, rows, columns, GROUPS=groups, BR=block[0], BC=block[1])
    return target


class _Shapes:
    """What every launch needs; `sweep` also owns the partial sums that `close` and `bend` add."""

    def __init__(self, u: Tensor, w: Tensor) -> None:
        self.u, self.w = u, w
        self.n, self.i, self.d = u.shape
        _, self.e, _, self.j = w.shape
        self.width = triton.next_power_of_2(self.j)

    def small(self, *leading: int) -> Tensor:
        return self.u.new_empty(*leading, self.n, self.e, self.j, dtype=torch.float32)

    def sweep(self, step: int, total: Tensor | None = None, ds: Tensor | None = None) -> Tensor:
        b = choose_blocks("back" if step == 2 else "sweep", self.n, self.i, self.j, self.e)
        splits = triton.cdiv(self.i, b.capsule_range)
        parts = self.small(splits)
        _sweep[(splits, triton.cdiv(self.n, b.image_range))](
            self.u, self.w, parts if total is None else total, parts if ds is None else ds, parts,
            self.n, self.i, self.j, self.d, self.e,
            STEP=step, IMAGES=b.image_range, CAPSULES=b.capsule_range,
            BJ=self.width, BI=b.capsules, BN=b.images, num_warps=b.warps,
        )  # fmt: skip
        return parts


class _FusedRoute(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        iterations: int,
        gradient: Gradient,
    ) -> Tensor:
        i, j, e, d = weight.shape
        u = u.contiguous()
        w = weight.new_empty(i, e, d, j, dtype=torch.float32)
        _turned(weight.contiguous(), 1, w, j, e * d)
        at = _Shapes(u, w)
        sums, totals = at.small(iterations), at.small(iterations)  # sʳ; Vʳ (V⁰ is never read)
        v = u.new_empty(at.n, j, e, dtype=torch.float32)
        given = v if bias is None else bias.contiguous()
        for r in range(iterations):
            last = r == iterations - 1
            parts = at.sweep(min(r, 1), totals[r])
            _close[(at.n,)](
                parts, given, totals[r], sums[r], totals[r if last else r + 1], v,
                at.n, j, EPS, SPLITS=len(parts), BIAS=bias is not None, FIRST=r == 0, LAST=last,
                E=e, BS=_part_block(e, at.width), BJ=at.width,
            )  # fmt: skip
        ctx.save_for_backward(u, w, sums, totals)
        ctx.gradient = gradient
        ctx.dtypes = (u.dtype, weight.dtype, None if bias is None else bias.dtype)
        return v

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, w, sums, totals = ctx.saved_tensors
        u_dtype, w_dtype, bias_dtype = ctx.dtypes
        at = _Shapes(u, w)
        iterations = len(sums)
        first = 0 if ctx.gradient == "all" else iterations - 1
        dss, carried = at.small(iterations), at.small()
        parts, grad = carried, grad.contiguous()
        for r in reversed(range(first, iterations)):
            _bend[(at.n,)](
                parts, grad, carried, sums[r], dss[r], at.n, at.j, EPS,
                SPLITS=len(parts), LAST=r == iterations - 1, SECOND_LAST=r == iterations - 2,
                E=at.e, BS=_part_block(at.e, at.width), BJ=at.width,
            )  # fmt: skip
            if r > first:
                parts = at.sweep(2, totals[r], dss[r])

        b = choose_blocks("leaves", at.n, at.i, at.j, at.e)
        groups = triton.cdiv(at.n, b.image_range)
        du = torch.empty_like(u, dtype=torch.float32)
        dw = w.new_empty(groups, *w.shape)
        _leaves[(triton.cdiv(at.i, b.capsules), groups)](
            u, w, totals, dss, du, dw, at.n, at.i, at.j, at.d, at.e,
            FIRST=first, R=iterations, IMAGES=b.image_range,
            BJ=at.width, BI=b.capsules, BN=b.images, num_warps=b.warps,
        )  # fmt: skip
        dweight = w.new_empty(at.i, at.j, at.e, at.d, dtype=w_dtype)
        _turned(dw, groups, dweight, at.e * at.d, at.j)
        dbias = None
        if bias_dtype is not None:
            dbias = dss[first:].sum((0, 1)).t().to(bias_dtype)
        return du.to(u_dtype), dweight, dbias, None, None


def _part_block(e: int, width: int) -> int:
    """Partial sums added at once: about 4096 numbers in flight."""
    return int(max(1, min(32, 4096 // (e * width))))
