# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: allow-incomplete-defs, no-check-untyped-defs
"""What stands between the products of a small convolutional network, as one Triton kernel a way.

    bias_relu  product ─ 2×2 maximum if asked, bias, ReLU ─▶ maps
    unpool     maps ─ each number four times, 2×2 ─▶ maps of twice the height and width

For training in bfloat16 on a GPU. As separate operations (bias, ReLU, pooling and the gradients of
each, with copies from one order of memory to another between them) the maps are read and written
many times over, here once each way.

Adding the bias and ReLU never change the order of two numbers, nor does rounding: taken after the
maximum they give the same maps, with a quarter of the work. Only x is kept for backward, which
finds the largest number of a window again; of equal ones it takes the first, as torch does.

Letters: N images, C maps of HEIGHT × WIDTH, a *place* is one (image, row, column) of the smaller
maps; the larger have SIDE × SIDE numbers there. Large maps lie in channels-last memory, a matrix
[places, C]; small ones in that order or the plain one, which a dense layer takes and gives.
All arithmetic is fp32. The bias's gradient goes through one partial sum per range of places, then
`_fold`, in a fixed order, never atomics: the same bits each time. Nothing waits for the device or
looks at data, so a CUDA graph can hold it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anocaps.base.errors import InputError
from anocaps.kernels.triton_support import jit, tl, triton, usable

# Knobs, set for an H200 (132 multiprocessors): threads move 16 bytes, 8 numbers, at a time.
MAPS = 64  # of a tile at most
NUMBERS = 4096  # of the larger maps in a tile
WARPS = 4
RANGES = 528  # partial sums at most, over all blocks of maps
FEW = 4  # tiles that one program takes sooner than that `_fold` is started
FOLD_MAPS = 16
FOLD_RANGES = 512

_LAST = torch.channels_last


# ---- kernels ----
# A tile is [BP, BC]: BP places and BC maps.


@jit
def _in_large(p, c, C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
              SIDE: tl.constexpr):  # fmt: skip
    """Offsets of the first number at places p [BP] of maps c [BC] in large maps. Number k is
    `_step(k)` further."""
    ROWS: tl.constexpr = HEIGHT // SIDE
    COLUMNS: tl.constexpr = WIDTH // SIDE
    row = p // (ROWS * COLUMNS) * HEIGHT + p % (ROWS * COLUMNS) // COLUMNS * SIDE
    place = row * WIDTH + p % COLUMNS * SIDE
    return place.to(tl.int64)[:, None] * C + c[None, :]


@jit
def _step(k: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr):
    return (k // SIDE * WIDTH + k % SIDE) * C


@jit
def _in_small(p, c, C: tl.constexpr, GRID: tl.constexpr, PLACE: tl.constexpr,
              MAP: tl.constexpr):  # fmt: skip
    """Offsets in small maps of GRID places, of which neighbours are PLACE and MAP apart."""
    place = (p // GRID).to(tl.int64) * (GRID * C) + p % GRID * PLACE
    return place[:, None] + c[None, :] * MAP


@jit
def _bias_relu(x, bias, y, N, C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
               SIDE: tl.constexpr, PLACE: tl.constexpr, MAP: tl.constexpr, BP: tl.constexpr,
               BC: tl.constexpr):  # fmt: skip
    """y = relu(largest of x + bias)."""
    GRID: tl.constexpr = (HEIGHT // SIDE) * (WIDTH // SIDE)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (p < N * GRID)[:, None] & (c < C)[None, :]
    at = _in_large(p, c, C, HEIGHT, WIDTH, SIDE)
    best = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    for k in tl.static_range(1, SIDE * SIDE):
        value = tl.load(x + at + _step(k, C, WIDTH, SIDE), mask=inside, other=0.0).to(tl.float32)
        best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)  # as torch does
    best += tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    best = tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + _in_small(p, c, C, GRID, PLACE, MAP), best.to(tl.bfloat16), mask=inside)


@jit
def _bias_relu_back(x, bias, grad, dx, parts, N, C: tl.constexpr, HEIGHT: tl.constexpr,
                    WIDTH: tl.constexpr, SIDE: tl.constexpr, PLACE: tl.constexpr,
                    MAP: tl.constexpr, STEPS: tl.constexpr, BP: tl.constexpr,
                    BC: tl.constexpr):  # fmt: skip
    """dx, but for what no window covers, and parts[range] [C] = its sum over STEPS tiles."""
    GRID: tl.constexpr = (HEIGHT // SIDE) * (WIDTH // SIDE)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    b = tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    acc = tl.zeros([BP, BC], tl.float32)
    for step in range(STEPS):
        p = (tl.program_id(0) * STEPS + step) * BP + tl.arange(0, BP)
        inside = (p < N * GRID)[:, None] & (c < C)[None, :]
        at = _in_large(p, c, C, HEIGHT, WIDTH, SIDE)
        g = tl.load(grad + _in_small(p, c, C, GRID, PLACE, MAP), mask=inside, other=0.0)
        best = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        which = tl.zeros([BP, BC], tl.int32)
        for k in tl.static_range(1, SIDE * SIDE):
            value = tl.load(x + at + _step(k, C, WIDTH, SIDE), mask=inside, other=0.0)
            value = value.to(tl.float32)
            which = tl.where(value > best, k, which)
            best = tl.maximum(best, value)
        g = tl.where(best + b <= 0, 0.0, g.to(tl.float32))
        for k in tl.static_range(SIDE * SIDE):
            dk = tl.where(which == k, g, 0.0).to(tl.bfloat16)
            tl.store(dx + at + _step(k, C, WIDTH, SIDE), dk, mask=inside)
        acc += g
    parts += tl.program_id(0).to(tl.int64) * C
    tl.store(parts + c, tl.sum(acc, axis=0), mask=c < C)


@jit
def _fold(parts, out, C: tl.constexpr, RANGES: tl.constexpr, BR: tl.constexpr,
          BC: tl.constexpr):  # fmt: skip
    """out [C] = Σ of parts [RANGES, C]."""
    r = tl.arange(0, BR)[:, None]
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    acc = tl.zeros([BR, BC], tl.float32)
    for r0 in range(0, RANGES, BR):
        inside = (r0 + r < RANGES) & (c < C)[None, :]
        acc += tl.load(parts + (r0 + r) * C + c[None, :], mask=inside, other=0.0)
    tl.store(out + c, tl.sum(acc, axis=0), mask=c < C)


@jit
def _unpool(x, y, N, C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
            SIDE: tl.constexpr, PLACE: tl.constexpr, MAP: tl.constexpr, BP: tl.constexpr,
            BC: tl.constexpr):  # fmt: skip
    """Small maps x → large maps y."""
    GRID: tl.constexpr = (HEIGHT // SIDE) * (WIDTH // SIDE)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (p < N * GRID)[:, None] & (c < C)[None, :]
    value = tl.load(x + _in_small(p, c, C, GRID, PLACE, MAP), mask=inside, other=0.0)
    at = _in_large(p, c, C, HEIGHT, WIDTH, SIDE)
    for k in tl.static_range(SIDE * SIDE):
        tl.store(y + at + _step(k, C, WIDTH, SIDE), value, mask=inside)


@jit
def _unpool_back(grad, dx, N, C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
                 SIDE: tl.constexpr, PLACE: tl.constexpr, MAP: tl.constexpr, BP: tl.constexpr,
                 BC: tl.constexpr):  # fmt: skip
    """Large gradient → small one, its sums."""
    GRID: tl.constexpr = (HEIGHT // SIDE) * (WIDTH // SIDE)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (p < N * GRID)[:, None] & (c < C)[None, :]
    at = _in_large(p, c, C, HEIGHT, WIDTH, SIDE)
    total = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    for k in tl.static_range(1, SIDE * SIDE):
        value = tl.load(grad + at + _step(k, C, WIDTH, SIDE), mask=inside, other=0.0)
        total += value.to(tl.float32)
    tl.store(dx + _in_small(p, c, C, GRID, PLACE, MAP), total.to(tl.bfloat16), mask=inside)


# ---- host side ----


def bias_relu(x: Tensor, bias: Tensor, pool: int = 1, flat: bool = False) -> Tensor:
    """relu(max_pool2d(x + bias, pool)): bfloat16 [N, C, H, W] and [C] → [N, C, H/pool, W/pool].

    Also of a dense layer's product [N, C]. The result is in channels-last memory, or, for a dense
    layer to come, in the plain order (`flat`). Gradients have the dtypes of x and bias; that of x
    is in channels-last memory, 0 in rows and columns that fill no window.
    """
    _check(x)
    if bias.shape != x.shape[1:2] or not (x.ndim == 4 or (x.ndim == 2 and pool == 1)):
        raise InputError(
            f"maps {tuple(x.shape)}, bias {tuple(bias.shape)} and pool={pool} do not fit"
        )
    if pool not in (1, 2) or (pool == 2 and min(x.shape[2:]) < 2):
        raise InputError(f"pool is 1 or 2 and not larger than the maps, not {pool}")
    with torch.cuda.device_of(x):
        y: Tensor = _BiasRelu.apply(x, bias, pool, flat)
    return y


def unpool(x: Tensor) -> Tensor:
    """Each number four times, 2×2: bfloat16 [N, C, h, w] → [N, C, 2h, 2w], channels-last."""
    _check(x)
    if x.ndim != 4:
        raise InputError(f"unpool takes maps [N, C, h, w], not {tuple(x.shape)}")
    with torch.cuda.device_of(x):
        y: Tensor = _Unpool.apply(x)
    return y


def _check(x: Tensor) -> None:
    if not usable(x) or x.dtype != torch.bfloat16:
        raise InputError(
            f"fused pooling needs triton and bfloat16 on a GPU, not {x.dtype} on {x.device.type}"
        )


def _large(x: Tensor) -> Tensor:
    """In channels-last memory, if it was not."""
    return x.contiguous(memory_format=_LAST) if x.ndim == 4 else x.contiguous()


def _small(x: Tensor) -> tuple[Tensor, dict[str, int]]:
    """x in one of the two orders, and how far apart neighbours are in it."""
    if x.ndim == 4 and not x.is_contiguous(memory_format=_LAST):
        return x.contiguous(), {"PLACE": 1, "MAP": x.shape[2] * x.shape[3]}
    return _large(x), {"PLACE": x.shape[1], "MAP": 1}


def _tiles(large: Tensor, side: int) -> tuple[int, int, dict[str, int]]:
    """Tiles of places, blocks of maps, launch options."""
    n, c, height, width = (*large.shape, 1, 1)[:4]
    places = n * (height // side) * (width // side)
    bc = min(MAPS, triton.next_power_of_2(c))
    bp = min(max(1, NUMBERS // (bc * side * side)), triton.next_power_of_2(places))
    options = {"C": c, "HEIGHT": height, "WIDTH": width, "SIDE": side, "BP": bp, "BC": bc,
               "num_warps": WARPS}  # fmt: skip
    return triton.cdiv(places, bp), triton.cdiv(c, bc), options


def _ranges(tiles: int, blocks: int) -> tuple[int, int]:
    """(ranges of equal length, tiles of a range)."""
    steps = tiles if tiles <= FEW else triton.cdiv(tiles, max(1, RANGES // blocks))
    return triton.cdiv(tiles, steps), steps


def _folded(parts: Tensor) -> Tensor:
    """[ranges, C] → [C]."""
    ranges, c = parts.shape
    if ranges == 1:
        return parts[0]
    out = parts.new_empty(c)
    br = min(FOLD_RANGES, triton.next_power_of_2(ranges))
    _fold[(triton.cdiv(c, FOLD_MAPS),)](parts, out, C=c, RANGES=ranges, BR=br, BC=FOLD_MAPS)
    return out


class _BiasRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, pool: int, flat: bool) -> Tensor:
        x, bias = _large(x), bias.contiguous()
        shape = (*x.shape[:2], *(size // pool for size in x.shape[2:]))
        order = _LAST if x.ndim == 4 and not flat else torch.contiguous_format
        y: Tensor = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)
        tiles, blocks, options = _tiles(x, pool)
        _bias_relu[(tiles, blocks)](x, bias, y, len(x), **_small(y)[1], **options)
        ctx.save_for_backward(x, bias)
        ctx.pool = pool
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        grad, order = _small(grad)
        covered = all(size % ctx.pool == 0 for size in x.shape[2:])
        dx = torch.empty_like(x) if covered else torch.zeros_like(x)
        tiles, blocks, options = _tiles(x, ctx.pool)
        ranges, steps = _ranges(tiles, blocks)
        parts = bias.new_empty((ranges, len(bias)), dtype=torch.float32)
        _bias_relu_back[(ranges, blocks)](
            x, bias, grad, dx, parts, len(x), STEPS=steps, **order, **options
        )
        return dx, _folded(parts).to(bias.dtype), None, None


class _Unpool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x, ctx.order = _small(x)
        n, c, height, width = x.shape
        y: Tensor = torch.empty(
            (n, c, 2 * height, 2 * width), dtype=x.dtype, device=x.device, memory_format=_LAST
        )
        tiles, blocks, options = _tiles(y, 2)
        _unpool[(tiles, blocks)](x, y, n, **ctx.order, **options)
        ctx.like = x.shape, x.stride()
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = _large(grad)
        dx = torch.empty_strided(*ctx.like, dtype=grad.dtype, device=grad.device)
        tiles, blocks, options = _tiles(grad, 2)
        _unpool_back[(tiles, blocks)](grad, dx, len(grad), **ctx.order, **options)
        return dx
