"""The two layers around the primary convolution on a GPU. Each has a forward and a backward kernel.

Both do little arithmetic on many numbers. Separate operations (patches, product, bias, ReLU, squash
and their gradients) would read and write these numbers many times. A kernel does it once:

    first_maps   pixels ─ convolution, bias, ReLU ─▶ maps, for training in bfloat16
    squash_maps  maps ─ bias, squash ─▶ primary capsules

Letters: N images of C channels, O maps, K = C·k·k numbers per patch, T types of capsules of D
numbers. A *place* is one (image, row, column) of the maps. In channels-last memory, maps are a
matrix [places, O]. Primary capsules [N, rows·columns·T, D] are the same matrix [places, T·D].

    first forward   maps = relu(patches · weightᵀ + bias)   [places, K] · [K, O]
    first backward  [dweight | dbias] = (dmaps where maps > 0)ᵀ · [patches | 1]   [O, places] · …

Patches are never stored: a program gathers its own from the pixels, which stay in the cache. Pixels
are rounded to bfloat16 first, so that the compiler moves them straight to the tensor cores.
Products take bfloat16 and sum in fp32; everything else is fp32. Each range of places has a partial
sum. `_fold` adds them in a fixed order, without atomics, so that a run is reproducible bit by bit.
Nothing waits for the device or depends on data, so a CUDA graph can record it.
"""

from typing import Any

import torch
from torch import Tensor

from anocaps.kernels.patches import MOST_NUMBERS
from anocaps.kernels.triton.support import (
    bf16_product,
    jit,
    squash,
    squash_backward,
    supported,
    tl,
    triton,
)

WIDEST = 32  # largest D

# Tuned on an H200 (132 multiprocessors).
FIRST_PLACES = 64  # per tile
FIRST_WEIGHTS = 32768  # numbers of the weight that a program keeps, at most
FIRST_RANGES = 264  # ranges of places, at most
FIRST_WARPS = 8
FIRST_REGISTERS = 128
BACK_PLACES = 32
BACK_MAPS = 128
BACK_COLUMNS = 128  # of K + 1
BACK_RANGES = 132
BACK_WARPS = 8
BACK_STAGES = 2
BACK_REGISTERS = 128
SQUASH_PLACES = 8
SQUASH_NUMBERS = 256  # T·D per tile
SQUASH_RANGES = 264
SQUASH_WARPS = 4
FOLD_COLUMNS = 64
FOLD_RANGES = 32

_LAST = torch.channels_last


# ---- kernels ----
# A program takes range `tl.program_id(0)` of the places: STEPS tiles of BP places.


@jit
def _offset(k, SIDE: tl.constexpr, CHANNEL: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr):
    """The offset of number k = (channel, row, column) of a patch in a tensor of these strides."""
    channel = k // (SIDE * SIDE)
    return channel * CHANNEL + k % (SIDE * SIDE) // SIDE * ROW + k % SIDE * COLUMN


@jit
def _patches(pixels, p, k, places, C: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
             SIDE: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr):  # fmt: skip
    """Numbers k [BK] of the patches at places p [BP] → [BP, BK]. Indices beyond the last one read
    arbitrary numbers, which is faster than a mask."""
    p = tl.minimum(p, places - 1)
    corner = p // (ROWS * COLUMNS) * (C * HEIGHT * WIDTH)
    corner += (p % (ROWS * COLUMNS) // COLUMNS * WIDTH + p % COLUMNS) * STRIDE
    k = tl.minimum(k, C * SIDE * SIDE - 1)
    at = corner[:, None] + _offset(k, SIDE, HEIGHT * WIDTH, WIDTH, 1)[None, :]
    return tl.load(pixels + at)


@jit
def _first(pixels, weight, bias, maps, N, MAPS: tl.constexpr, C: tl.constexpr,
           HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, W_MAP: tl.constexpr, W_CHANNEL: tl.constexpr,
           W_ROW: tl.constexpr, W_COLUMN: tl.constexpr, STEPS: tl.constexpr, BP: tl.constexpr,
           BO: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """maps [places, O] = relu(patches · weightᵀ + bias); W_… are the strides of the weight."""
    places = N * (ROWS * COLUMNS)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    k = tl.arange(0, BK)
    w = tl.load(
        weight + o[None, :] * W_MAP + _offset(k, SIDE, W_CHANNEL, W_ROW, W_COLUMN)[:, None],
        mask=(o < MAPS)[None, :] & (k < C * SIDE * SIDE)[:, None],
        other=0.0,
    ).to(tl.bfloat16)  # [BK, BO]
    b = tl.load(bias + o, mask=o < MAPS, other=0.0).to(tl.float32)
    for step in range(STEPS):
        p0 = (tl.program_id(0) * STEPS + step) * BP
        p = p0 + tl.arange(0, BP)
        x = _patches(pixels, p, k, places, C, HEIGHT, WIDTH, SIDE, STRIDE, ROWS, COLUMNS)
        y = bf16_product(x, w, tl.zeros([BP, BO], tl.float32)) + b[None, :]
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)  # as torch.relu does
        at = tl.arange(0, BP)[:, None] * MAPS + o[None, :]
        inside = (p < places)[:, None] & (o < MAPS)[None, :]
        tl.store(maps + p0.to(tl.int64) * MAPS + at, y.to(tl.bfloat16), mask=inside)


@jit
def _first_back(pixels, maps, grad, parts, N, MAPS: tl.constexpr, C: tl.constexpr,
                HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
                STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                W_MAP: tl.constexpr, W_CHANNEL: tl.constexpr, W_ROW: tl.constexpr,
                W_COLUMN: tl.constexpr, STEPS: tl.constexpr, BP: tl.constexpr, BO: tl.constexpr,
                BK: tl.constexpr):  # fmt: skip
    """parts[range] = dweight in the order of W_…, then dbias [O]."""
    places = N * (ROWS * COLUMNS)
    K: tl.constexpr = C * SIDE * SIDE
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    k = tl.program_id(2) * BK + tl.arange(0, BK)
    one = tl.full([1, 1], 1.0, tl.float32).to(tl.bfloat16)
    acc = tl.zeros([BO, BK], tl.float32)
    for step in range(STEPS):
        p0 = (tl.program_id(0) * STEPS + step) * BP
        p = p0 + tl.arange(0, BP)
        at = p0.to(tl.int64) * MAPS + (tl.arange(0, BP)[:, None] * MAPS + o[None, :])
        inside = (p < places)[:, None] & (o < MAPS)[None, :]
        g = tl.load(grad + at, mask=inside, other=0.0)
        y = tl.load(maps + at, mask=inside, other=0.0)
        g = tl.where(y.to(tl.float32) <= 0, 0.0, g.to(tl.float32))
        x = _patches(pixels, p, k, places, C, HEIGHT, WIDTH, SIDE, STRIDE, ROWS, COLUMNS)
        x = tl.where((k == K)[None, :], one, x)
        acc = bf16_product(tl.trans(g), x, acc)
    to_weight = o[None, :] * W_MAP + _offset(k, SIDE, W_CHANNEL, W_ROW, W_COLUMN)[:, None]
    at = tl.where((k == K)[:, None], MAPS * K + o[None, :], to_weight)
    parts += tl.program_id(0).to(tl.int64) * (MAPS * (K + 1))
    tl.store(parts + at, tl.trans(acc), mask=(o < MAPS)[None, :] & (k <= K)[:, None])


@jit
def _squash(maps, bias, u, N, TYPES: tl.constexpr, D: tl.constexpr, GRID: tl.constexpr,
            BP: tl.constexpr, BT: tl.constexpr):  # fmt: skip
    """u = squash(maps + bias), tiles [BP, BT, D]."""
    p0 = tl.program_id(0) * BP
    p = tl.arange(0, BP)[:, None, None]
    t = tl.program_id(1) * BT + tl.arange(0, BT)[None, :, None]
    d = tl.arange(0, D)[None, None, :]
    inside = (p0 + p < N * GRID) & (t < TYPES)
    at = p0.to(tl.int64) * (TYPES * D) + ((p * TYPES + t) * D + d)
    s = tl.load(bias + t * D + d, mask=t < TYPES, other=0.0).to(tl.float32)
    s += tl.load(maps + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(u + at, squash(s, 2), mask=inside)


@jit
def _squash_back(maps, bias, grad, dmaps, parts, N, TYPES: tl.constexpr, D: tl.constexpr,
                 GRID: tl.constexpr, STEPS: tl.constexpr, BP: tl.constexpr,
                 BT: tl.constexpr):  # fmt: skip
    """dmaps, and parts[range] [T·D], its sum over the range."""
    p = tl.arange(0, BP)[:, None, None]
    t = tl.program_id(1) * BT + tl.arange(0, BT)[None, :, None]
    d = tl.arange(0, D)[None, None, :]
    b = tl.load(bias + t * D + d, mask=t < TYPES, other=0.0).to(tl.float32)
    acc = tl.zeros([BP, BT, D], tl.float32)
    for step in range(STEPS):
        p0 = (tl.program_id(0) * STEPS + step) * BP
        inside = (p0 + p < N * GRID) & (t < TYPES)
        at = p0.to(tl.int64) * (TYPES * D) + ((p * TYPES + t) * D + d)
        s = tl.load(maps + at, mask=inside, other=0.0).to(tl.float32) + b
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        ds = squash_backward(s, g, 2)
        tl.store(dmaps + at, ds.to(dmaps.dtype.element_ty), mask=inside)
        acc += ds
    parts += tl.program_id(0).to(tl.int64) * (TYPES * D)
    tl.store(parts + t * D + d, tl.sum(acc, axis=0, keep_dims=True), mask=t < TYPES)


@jit
def _fold(parts, out, SIZE: tl.constexpr, RANGES: tl.constexpr, BR: tl.constexpr,
          BC: tl.constexpr):  # fmt: skip
    """out [SIZE] = Σ of parts [RANGES, SIZE]."""
    r = tl.arange(0, BR)[:, None]
    c = tl.program_id(0) * BC + tl.arange(0, BC)[None, :]
    acc = tl.zeros([BR, BC], tl.float32)
    for r0 in range(0, RANGES, BR):
        inside = (r0 + r < RANGES) & (c < SIZE)
        acc += tl.load(parts + (r0 + r).to(tl.int64) * SIZE + c, mask=inside, other=0.0)
    tl.store(out + c, tl.sum(acc, axis=0, keep_dims=True), mask=c < SIZE)


# ---- host side ----


def takes_pixels(pixels: Tensor, weight: Tensor) -> bool:
    """Whether `first_maps` supports this weight [O, C, k, k]."""
    few = weight[0].numel() <= MOST_NUMBERS
    return supported(pixels) and few and not (pixels.requires_grad and torch.is_grad_enabled())


def takes_capsules(maps: Tensor, size: int) -> bool:
    """Whether `squash_maps` supports capsules of `size` numbers."""
    return supported(maps) and 1 <= size <= WIDEST and size & (size - 1) == 0


def first_maps(pixels: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """relu(conv2d(pixels, weight, bias, stride)): [N, C, H, W] → bfloat16 [N, O, h, w].

    weight [O, C, k, k] in any memory order, bias [O]. `takes_pixels` must hold. The maps are in
    channels-last memory. Pixels get no gradient.
    """
    with torch.cuda.device_of(pixels):
        maps: Tensor = _FirstMaps.apply(pixels, weight, bias, stride)
    return maps


def squash_maps(maps: Tensor, bias: Tensor, size: int) -> Tensor:
    """squash(maps + bias): [N, T·D, h, w] and [T·D], D = size → capsules float32 [N, h·w·T, D].

    `takes_capsules` must hold. The gradient of maps is in channels-last memory.
    """
    with torch.cuda.device_of(maps):
        u: Tensor = _SquashMaps.apply(maps, bias, size)
    return u


def _ranges(places: int, tile: int, most: int) -> tuple[int, int]:
    """(number of ranges, at most `most`; tiles per range)."""
    tiles = triton.cdiv(places, tile)
    steps = max(1, triton.cdiv(tiles, most))
    return triton.cdiv(tiles, steps), steps


def _folded(parts: Tensor) -> Tensor:
    """[ranges, size] → [size]."""
    ranges, size = parts.shape
    out = parts.new_empty(size)
    _fold[(triton.cdiv(size, FOLD_COLUMNS),)](
        parts, out, SIZE=size, RANGES=ranges, BR=FOLD_RANGES, BC=FOLD_COLUMNS
    )
    return out


def _shape(pixels: Tensor, maps: Tensor, side: int, stride: int, w: tuple[int, ...]) -> Any:
    """The constants of both kernels of the first layer; w: the strides of the weight."""
    _, c, height, width = pixels.shape
    _, o, rows, columns = maps.shape
    return {
        "MAPS": o, "C": c, "HEIGHT": height, "WIDTH": width, "SIDE": side, "STRIDE": stride,
        "ROWS": rows, "COLUMNS": columns, "W_MAP": w[0], "W_CHANNEL": w[1], "W_ROW": w[2],
        "W_COLUMN": w[3],
    }  # fmt: skip


class _FirstMaps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pixels: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        n, c, height, width = pixels.shape
        o, side = weight.shape[0], weight.shape[2]
        rows, columns = (height - side) // stride + 1, (width - side) // stride + 1
        pixels = pixels.to(torch.bfloat16).contiguous()
        maps: Tensor = torch.empty(
            (n, o, rows, columns), dtype=pixels.dtype, device=pixels.device, memory_format=_LAST
        )
        ranges, steps = _ranges(n * rows * columns, FIRST_PLACES, FIRST_RANGES)
        bk = max(16, triton.next_power_of_2(c * side * side))
        bo = min(256, FIRST_WEIGHTS // bk, max(16, triton.next_power_of_2(o)))
        _first[(ranges, triton.cdiv(o, bo))](
            pixels, weight, bias.contiguous(), maps, n, STEPS=steps, BP=FIRST_PLACES, BO=bo, BK=bk,
            num_warps=FIRST_WARPS, num_stages=1, maxnreg=FIRST_REGISTERS,
            **_shape(pixels, maps, side, stride, weight.stride()),
        )  # fmt: skip
        ctx.save_for_backward(pixels, maps)
        ctx.stride, ctx.weight = stride, (weight.shape, torch.empty_like(weight).stride())
        ctx.dtypes = weight.dtype, bias.dtype
        return maps

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pixels, maps = ctx.saved_tensors
        (o, c, side, _), strides = ctx.weight
        n, k = len(pixels), c * side * side
        ranges, steps = _ranges(n * maps.shape[2] * maps.shape[3], BACK_PLACES, BACK_RANGES)
        bo = min(BACK_MAPS, max(64, triton.next_power_of_2(o)))
        bk = min(BACK_COLUMNS, max(16, triton.next_power_of_2(k + 1)))
        parts = pixels.new_empty((ranges, o * (k + 1)), dtype=torch.float32)
        _first_back[(ranges, triton.cdiv(o, bo), triton.cdiv(k + 1, bk))](
            pixels, maps, grad.contiguous(memory_format=_LAST), parts, n, STEPS=steps,
            BP=BACK_PLACES, BO=bo, BK=bk, num_warps=BACK_WARPS, num_stages=BACK_STAGES,
            maxnreg=BACK_REGISTERS, **_shape(pixels, maps, side, ctx.stride, strides),
        )  # fmt: skip
        out = _folded(parts)
        dweight = out[: o * k].as_strided(ctx.weight[0], strides)
        return None, dweight.to(ctx.dtypes[0]), out[o * k :].to(ctx.dtypes[1]), None


class _SquashMaps(torch.autograd.Function):
    @staticmethod
    def _launch(maps: Tensor, size: int) -> tuple[int, int, dict[str, int]]:
        """Numbers of places and of blocks of types, and launch options."""
        n, numbers, rows, columns = maps.shape
        types = numbers // size
        bt = min(max(1, SQUASH_NUMBERS // size), triton.next_power_of_2(types))
        options = {"TYPES": types, "D": size, "GRID": rows * columns, "BP": SQUASH_PLACES,
                   "BT": bt, "num_warps": SQUASH_WARPS}  # fmt: skip
        return n * rows * columns, triton.cdiv(types, bt), options

    @staticmethod
    def forward(ctx: Any, maps: Tensor, bias: Tensor, size: int) -> Tensor:
        maps, bias = maps.contiguous(memory_format=_LAST), bias.contiguous()
        places, blocks, options = _SquashMaps._launch(maps, size)
        u = maps.new_empty((len(maps), maps[0].numel() // size, size), dtype=torch.float32)
        _squash[(triton.cdiv(places, SQUASH_PLACES), blocks)](maps, bias, u, len(maps), **options)
        ctx.save_for_backward(maps, bias)
        ctx.size = size
        return u

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        maps, bias = ctx.saved_tensors
        places, blocks, options = _SquashMaps._launch(maps, ctx.size)
        ranges, steps = _ranges(places, SQUASH_PLACES, SQUASH_RANGES)
        dmaps = torch.empty_like(maps, memory_format=_LAST)
        parts = grad.new_empty((ranges, len(bias)), dtype=torch.float32)
        _squash_back[(ranges, blocks)](
            maps, bias, grad.contiguous(), dmaps, parts, len(maps), STEPS=steps, **options
        )
        return dmaps, _folded(parts).to(bias.dtype), None
