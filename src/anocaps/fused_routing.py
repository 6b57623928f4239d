# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: allow-incomplete-defs, no-check-untyped-defs
# ruff: noqa: E741
"""Routing by agreement on a GPU: forward and backward as a few Triton kernels.

The same function as `capsules.route`, letters too: N images, I input capsules of D numbers, J class
capsules of E numbers, R iterations, votes û_ij = W_ij u_i. With Vʳ = v⁰ + … + vʳ⁻¹ the logits are
bʳ_ij = û_ij · Vʳ_j, so an iteration needs u, W and the small V:

    forward, r = 0 … R−1
        sweep    Σ_i cʳ_ij û_ij over ranges of i, cʳ = softmax_j bʳ
        close    add the ranges up: sʳ, vʳ = squash(sʳ), Vʳ⁺¹ = Vʳ + vʳ
    backward, r = R−1 … 0
        bend     dsʳ = squash'(sʳ) dvʳ
        sweep    dVʳ_j = Σ_i dbʳ_ij û_ij where r > 0; it adds to dv of all earlier iterations
    then leaves  du and dW from dû_ij = Σ_r cʳ_ij dsʳ_j + dbʳ_ij Vʳ_j

Votes (N·I·J·E numbers) are never stored. A program of `sweep` holds a tile of them [J, capsules,
images, E] in registers, made anew from u and W by D multiply-adds each: plain fp32, no tensor
cores, no TF32. A thread has all E numbers of a vote for several images, so W is loaded once for
them; the J classes lie on neighbouring lanes, so that softmax is a few shuffles. Training keeps the
couplings c (N·I·J numbers an iteration), which halves the work of the backward pass. Sums across
programs go through partial buffers in a fixed order, never through atomics: the same bits each
time. Inside, W is [I, E, D, J] and the small tensors are [N, E, J].

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

    _INTERPRETED = bool(triton.knobs.runtime.interpret)
    _INSTALLED = True
except ImportError:  # a CPU has no use for it
    _INTERPRETED = _INSTALLED = False


def _jit(kernel):
    """triton.jit, with one binary for all batch sizes."""
    return triton.jit(kernel, do_not_specialize=["N", "images"]) if _INSTALLED else kernel


WIDEST = 32  # largest D and E: a thread holds all E numbers of a vote
MOST_CLASSES = 128


# Knobs, set for an H200 (132 multiprocessors, each holds 8 warps of 255 registers).
SWEEP_VOTES = 64  # votes that a thread holds: a sweep keeps three such tiles alive,
LEAF_VOTES = 32  # `leaves` one, and D·E sums for dW
SWEEP_WARPS = 4
LEAF_WARPS = 1
SWEEP_SPLITS = 29  # of the I input capsules, at most: one partial sum [N, E, J] each
SWEEP_PROGRAMS = 264  # that run at once, so 264/29 ranges of images
LEAF_GROUPS = 2  # ranges of images in `leaves`: one partial dW each


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a kernel's work is cut."""

    warps: int  # per program
    capsules: int  # BI, of one tile: across lanes and warps
    images: int  # BN, of one tile: all in registers, W is loaded once for them
    capsule_range: int  # of one program
    image_range: int  # of one program, tile after tile: W comes from L1 after the first


def choose_blocks(kind: str, n: int, i: int, j: int, e: int) -> Blocks:
    """Blocks for `kind` "sweep" or "leaves". Only the last depends on n, and it does not change the
    order of any sum of a sweep: an image's result is the same bits in every batch."""
    sweep = kind == "sweep"
    votes, warps = (SWEEP_VOTES, SWEEP_WARPS) if sweep else (LEAF_VOTES, LEAF_WARPS)
    width = triton.next_power_of_2(j)
    warps = max(warps, width // 32)  # one class a lane
    capsules = max(1, 32 * warps // width)
    images = min(16, max(1, votes * 32 * warps // (capsules * width * e)))
    steps = triton.cdiv(triton.cdiv(i, capsules), SWEEP_SPLITS) if sweep else 1
    splits = triton.cdiv(i, capsules * steps)
    groups = max(1, SWEEP_PROGRAMS // splits) if sweep else LEAF_GROUPS
    image_range = triton.cdiv(triton.cdiv(n, groups), images) * images
    return Blocks(warps, capsules, images, capsules * steps, image_range)


# ---- kernels ----
# Index tensors are 4-d: j [BJ,1,1,1], i [1,BI,1,1], n [1,1,BN,1], e [1,1,1,E]. Triton lays a tile
# out after its loads, the first axis across lanes first where it cannot prove that numbers adjoin
# (the clamped index jj hides it). `+ zeros_like(j)` in an address gives a load that does not depend
# on j the same layout: every lane loads what it needs, nothing goes through shared memory.


@_jit
def _axes(i0, n0, BJ: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr, E: tl.constexpr):
    j = tl.arange(0, BJ)[:, None, None, None]
    i = i0 + tl.arange(0, BI)[None, :, None, None]
    n = n0 + tl.arange(0, BN)[None, None, :, None]
    e = tl.arange(0, E)[None, None, None, :]
    return j, i, n, e


@_jit
def _softmax(b, j, J: tl.constexpr):
    b = tl.where(j < J, b, -float("inf"))
    p = tl.exp(b - tl.max(b, axis=0, keep_dims=True))
    return p * (1 / tl.sum(p, axis=0, keep_dims=True))


@_jit
def _sweep(u, w, small, c, db, parts, N, images, I: tl.constexpr, J: tl.constexpr, D: tl.constexpr,
           E: tl.constexpr, STEP: tl.constexpr, KEEP: tl.constexpr, CAPSULES: tl.constexpr,
           BJ: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """parts[split] [N, E, J] = Σ over a range of i of x_ij û_ij, where x is
    STEP 0: 1/J, since all logits are 0,
    STEP 1: the coupling c [N, I, J], from `small` = V, written where KEEP,
    STEP 2: the gradient db [N, I, J] of the logit, from c and `small` = ds, written too."""
    split = tl.program_id(0)
    n0 = tl.program_id(1) * images
    end = tl.minimum(n0 + images, N)
    while n0 < end:
        j, i, n, e = _axes(split * CAPSULES, n0, BJ, BI, BN, E)
        jj, nn = tl.minimum(j, J - 1), tl.minimum(n, N - 1).to(tl.int64)  # what is safe to read
        if STEP > 0:
            other = tl.load(small + nn * (E * J) + jj + tl.zeros_like(i) + e * J)
        acc = tl.zeros([BJ, BI, BN, E], tl.float32)
        for i0 in range(0, CAPSULES, BI):
            inside = (j < J) & (i0 + i < I) & (n < N)
            ii = tl.minimum(i0 + i, I - 1)
            row = nn * (I * D) + ii * D + tl.zeros_like(j)
            w_at = w + (ii * (E * D * J) + jj) + e * (D * J)
            votes = tl.zeros([BJ, BI, BN, E], tl.float32)
            for d in tl.static_range(D):
                votes += tl.load(u + row + d).to(tl.float32) * tl.load(w_at + d * J)
            pair = nn * (I * J) + (ii * J + jj)
            if STEP == 0:
                x = tl.where(i0 + i < I, 1.0 / J, 0.0)
            elif STEP == 1:
                x = _softmax(tl.sum(votes * other, axis=3, keep_dims=True), j, J)
                x = tl.where(i0 + i < I, x, 0.0)
                if KEEP:
                    tl.store(c + pair, x, mask=inside)
            else:
                x = tl.where(inside, tl.load(c + pair), 0.0)
                dc = tl.sum(votes * other, axis=3, keep_dims=True)
                x *= dc - tl.sum(x * dc, axis=0, keep_dims=True)
                tl.store(db + pair, x, mask=inside)
            acc += x * votes
        at = (split.to(tl.int64) * N + n) * (E * J) + e * J + jj
        tl.store(parts + at, tl.sum(acc, axis=1, keep_dims=True), mask=(n < N) & (j < J))
        n0 += BN


@_jit
def _leaves(u, w, totals, dss, c, db, du, dw, N, images, I: tl.constexpr, J: tl.constexpr,
            D: tl.constexpr, E: tl.constexpr, FIRST: tl.constexpr, R: tl.constexpr,
            BJ: tl.constexpr, BI: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """du [N, I, D] and dw[group] [I, E, D, J], from dû = Σ_r cʳ dsʳ + dbʳ Vʳ over r = FIRST … R−1;
    FIRST > 0 holds the couplings constant (gradient "last")."""
    group = tl.program_id(1)
    j, i, n, e = _axes(tl.program_id(0) * BI, 0, BJ, BI, BN, E)
    jj, ii = tl.minimum(j, J - 1), tl.minimum(i, I - 1)  # what is safe to read
    w_at = (ii * (E * D * J) + jj) + e * (D * J)
    sums = ()  # of dW, per d: [BJ, BI, 1, E]
    for _ in tl.static_range(D):
        sums = sums + (tl.zeros([BJ, BI, 1, E], tl.float32),)  # type: ignore[assignment] # noqa: RUF005
    n0 = group * images
    end = tl.minimum(n0 + images, N)
    while n0 < end:
        inside = (j < J) & (i < I) & (n0 + n < N)
        nn = tl.minimum(n0 + n, N - 1).to(tl.int64)
        dvotes = tl.zeros([BJ, BI, BN, E], tl.float32)
        for r in tl.static_range(FIRST, R):
            at = (r * N + nn) * (E * J) + jj + tl.zeros_like(i) + e * J
            ds = tl.load(dss + at)
            if r == 0:
                dvotes += tl.where(inside, 1.0 / J, 0.0) * ds
            else:
                pair = ((r - max(FIRST, 1)) * N + nn) * (I * J) + (ii * J + jj)
                dvotes += tl.where(inside, tl.load(c + pair), 0.0) * ds
                if FIRST == 0:
                    dvotes += tl.where(inside, tl.load(db + pair), 0.0) * tl.load(totals + at)
        row = nn * (I * D) + ii * D + tl.zeros_like(j)
        grown = ()
        for d in tl.static_range(D):
            du_d = tl.sum(dvotes * tl.load(w + w_at + d * J), axis=3, keep_dims=True)
            du_d = tl.sum(du_d, axis=0, keep_dims=True) + tl.zeros_like(j)
            tl.store(du + row + d, du_d, mask=inside & (j == 0))
            u_d = tl.load(u + row + d).to(tl.float32)
            dw_d = sums[d] + tl.sum(dvotes * u_d, axis=2, keep_dims=True)
            grown = grown + (dw_d,)  # type: ignore[assignment] # noqa: RUF005
        sums = grown
        n0 += BN
    for d in tl.static_range(D):
        at = group.to(tl.int64) * (I * E * D * J) + w_at + d * J
        tl.store(dw + at, sums[d], mask=(j < J) & (i < I))


@_jit
def _add_parts(parts, N, J, SPLITS: tl.constexpr, E: tl.constexpr, BS: tl.constexpr,
               BJ: tl.constexpr):  # fmt: skip
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
    s = _add_parts(parts, N, J, SPLITS, E, BS, BJ)
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
        g = _add_parts(parts, N, J, SPLITS, E, BS, BJ)
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
def _turn(source, target, I, rows, columns, GROUPS: tl.constexpr, BR: tl.constexpr,
          BC: tl.constexpr):  # fmt: skip
    """target [I, columns, rows] = Σ over groups of source [groups, I, rows, columns]."""
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
    first = 0 if gradient == "all" else iterations - 1  # earliest iteration the gradient reaches
    with torch.cuda.device_of(u):
        return _FusedRoute.apply(u, weight, bias, iterations, first)  # type: ignore[no-any-return]


class _Work:
    """Shapes and tensors that every launch needs."""

    def __init__(self, u: Tensor, w: Tensor) -> None:
        self.u, self.w = u, w  # w is [I, E, D, J]
        self.n, self.i, self.d = u.shape
        _, self.e, _, self.j = w.shape
        self.width = triton.next_power_of_2(self.j)
        self.parts_at_once = max(1, min(32, 4096 // (self.e * self.width)))

    def empty(self, *shape: int) -> Tensor:
        return self.w.new_empty(shape)

    def small(self, *leading: int) -> Tensor:
        return self.empty(*leading, self.n, self.e, self.j)

    def sweep(
        self, step: int, small: Tensor, c: Tensor | None = None, db: Tensor | None = None
    ) -> Tensor:
        """The partial sums [splits, N, E, J]; see the kernel for what the arguments are."""
        b = choose_blocks("sweep", self.n, self.i, self.j, self.e)
        splits = triton.cdiv(self.i, b.capsule_range)
        parts = self.small(splits)
        _sweep[(splits, triton.cdiv(self.n, b.image_range))](
            self.u, self.w, small, parts if c is None else c, parts if db is None else db, parts,
            self.n, b.image_range, self.i, self.j, self.d, self.e, STEP=step, KEEP=c is not None,
            CAPSULES=b.capsule_range, BJ=self.width, BI=b.capsules, BN=b.images, num_warps=b.warps,
        )  # fmt: skip
        return parts


def _turned(source: Tensor, groups: int, target: Tensor, rows: int, columns: int) -> Tensor:
    """[groups, I, rows, columns] → [I, columns, rows], added over groups, in target's dtype."""
    i = target.shape[0]
    block = min(triton.next_power_of_2(rows), 64), min(triton.next_power_of_2(columns), 64)
    grid = (i, triton.cdiv(rows, block[0]), triton.cdiv(columns, block[1]))
    _turn[grid](source, target, i, rows, columns, GROUPS=groups, BR=block[0], BC=block[1])
    return target


class _FusedRoute(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, weight: Tensor, bias: Tensor | None, iterations: int, first: int
    ) -> Tensor:
        i, j, e, d = weight.shape
        w = weight.new_empty(i, e, d, j, dtype=torch.float32)
        on = _Work(u.contiguous(), _turned(weight.contiguous(), 1, w, j, e * d))
        sums, totals = on.small(iterations), on.small(iterations)  # sʳ; Vʳ (V⁰ is never read)
        v = on.empty(on.n, j, e)
        # couplings of the iterations that the gradient reaches; those of r = 0 are all 1/J
        kept = iterations - max(first, 1) if any(ctx.needs_input_grad) else 0
        c = on.empty(kept, on.n, i, j)
        for r in range(iterations):
            slot = r - (iterations - kept)
            parts = on.sweep(min(r, 1), totals[r], c[slot] if slot >= 0 and r > 0 else None)
            _close[(on.n,)](
                parts, v if bias is None else bias.contiguous(), totals[r], sums[r],
                totals[min(r + 1, iterations - 1)], v, on.n, j, EPS, SPLITS=len(parts),
                BIAS=bias is not None, FIRST=r == 0, LAST=r == iterations - 1,
                E=e, BS=on.parts_at_once, BJ=on.width,
            )  # fmt: skip
        ctx.save_for_backward(on.u, w, sums, totals, c)
        ctx.first, ctx.w_dtype = first, weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return v

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, w, sums, totals, c = ctx.saved_tensors
        on, iterations, first = _Work(u, w), len(sums), ctx.first
        dss, carried = on.small(iterations), on.small()
        db = torch.empty_like(c) if first == 0 else c
        parts, grad = carried[:0], grad.contiguous()
        for r in reversed(range(first, iterations)):
            _bend[(on.n,)](
                parts, grad, carried, sums[r], dss[r], on.n, on.j, EPS, SPLITS=len(parts),
                LAST=r == iterations - 1, SECOND_LAST=r == iterations - 2,
                E=on.e, BS=on.parts_at_once, BJ=on.width,
            )  # fmt: skip
            if r > first:
                parts = on.sweep(2, dss[r], c[r - 1], db[r - 1])

        b = choose_blocks("leaves", on.n, on.i, on.j, on.e)
        groups = triton.cdiv(on.n, b.image_range)
        du, dw = torch.empty_like(u), on.empty(groups, *w.shape)
        _leaves[(triton.cdiv(on.i, b.capsules), groups)](
            u, w, totals, dss, c, db, du, dw, on.n, b.image_range, on.i, on.j, on.d, on.e,
            FIRST=first, R=iterations, BJ=on.width, BI=b.capsules, BN=b.images, num_warps=b.warps,
        )  # fmt: skip
        dweight = w.new_empty(on.i, on.j, on.e, on.d, dtype=ctx.w_dtype)
        _turned(dw, groups, dweight, on.e * on.d, on.j)
        dbias = None
        if ctx.bias_dtype is not None:
            dbias = dss[first:].sum((0, 1)).t().to(ctx.bias_dtype)
        return du, dweight, dbias, None, None
