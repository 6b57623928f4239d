"""A strided convolution computed with a quarter of the multiplications, exact to rounding.

A stride-s correlation is a sum of s·s stride-1 correlations: each phase of the map (every s-th row
and column) with the same phase of the kernel. A stride-1 correlation is a product of polynomials
read backwards (Toom-Cook, transposed: Winograd, "Arithmetic Complexity of Computations", 1980; in
networks Lavin & Gray, arXiv:1509.09308): evaluate the kernel at n points, transform the map,
multiply point by point, and put the result together. With the n-th roots of unity as points this
is the DFT. We take an even number of roots, 0 and infinity: fewer products, no more rounding. Of
two conjugate points one is enough, and a complex product is three real ones (Karatsuba). Every step
is linear, so in the end, with small constant real matrices A, and G, B for each phase,

    y = A Σ (G w)·(B x)

where the dot is one matrix product over the channels for each row of G and B. In the paper's
primary convolution (9×9, stride 2, 256 → 256 maps, 20×20 → 6×6) that is 117 to 142 products
[images × 256]·[256 × 256] for each of 4 phases, in place of 36·81 = 2916 in all.

Large maps are cut into overlapping tiles, which then count as images. The work goes in blocks of
channels and images that stay in the cache. The backward pass transforms again what it needs: to
keep the transformed kernel (136 MB here) was no faster, to keep the map (50 MB) 8 % of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anocaps.errors import InputError

TILE = 8  # outputs a side that are computed together, at most
CHANNELS = 64  # a block that stays in a CPU's cache: channels, and images times tiles
IMAGES = 256
GPU_IMAGES = 2048  # a GPU wants large products: all channels, and memory for so many at once


@dataclass(frozen=True)
class Phase:
    """One phase of the stride: its pixels and taps, its rows among the plan's, its matrices."""

    row: int
    col: int
    taps: tuple[int, int]  # of the kernel
    size: tuple[int, int]  # of a tile of the map
    rows: slice
    of_kernel: Tensor  # G [rows, taps]
    of_map: Tensor  # B [rows, size]


@dataclass(frozen=True)
class SpectralPlan:
    """What follows from the shapes alone; every number here is of one map, not of its channels."""

    kernel: int
    stride: int
    out: tuple[int, int]  # H', W'
    tiles: tuple[int, int]
    tile: tuple[int, int]  # outputs in a tile
    rows: int
    to_map: Tensor  # A [tile outputs, rows]
    phases: tuple[Phase, ...]


Pair = tuple[int, int, bool]  # indices of two points; whether a conjugate pair is left out for it


def _points(count: int) -> list[complex]:
    """An even number of roots of unity, 0 if one more is needed, and infinity."""
    roots = (count - 1) // 2 * 2
    circle = [complex(np.exp(2j * np.pi * k / roots)) for k in range(roots)]
    return circle + [0j] * (count - 1 - roots) + [complex("inf")]


def _conjugate(index: int, count: int) -> int:
    """Where the conjugate of a point stands among `_points(count)`."""
    roots = (count - 1) // 2 * 2
    return -index % roots if index < roots else index


def _pairs(down: range, right: range, counts: tuple[int, int]) -> list[Pair]:
    """Points of the plane; of two that are conjugate the first."""
    pairs = []
    for i in down:
        for j in right:
            mirror = _conjugate(i, counts[0]), _conjugate(j, counts[1])
            if (i, j) <= mirror:
                pairs.append((i, j, (i, j) != mirror))
    return pairs


def _powers(points: list[complex], length: int) -> NDArray[np.complex128]:
    """Powers 0 … length-1 of each point [points, length]; of infinity only the last counts."""
    power = np.arange(length)
    return np.array([power == length - 1 if np.isinf(p) else p**power for p in points], complex)


def _inverse(points: list[complex]) -> NDArray[np.complex128]:
    return np.asarray(np.linalg.inv(_powers(points, len(points))).T)


def _at(
    pairs: list[Pair], a: NDArray[np.complex128], b: NDArray[np.complex128]
) -> NDArray[np.complex128]:
    """[pairs, length of a's rows times that of b's]"""
    return np.array([np.kron(a[i], b[j]) for i, j, _ in pairs])


def _three(pairs: list[Pair], *rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Three real rows for a complex point, the first of them for a real one."""
    keep = np.array([[True, paired, paired] for _, _, paired in pairs])
    return np.asarray(np.stack(rows, axis=1)[keep])


def _factors(pairs: list[Pair], z: NDArray[np.complex128]) -> NDArray[np.float64]:
    """Of Karatsuba's three products: real part, imaginary part, sum."""
    return _three(pairs, z.real, z.imag, z.real + z.imag)


def _together(pairs: list[Pair], z: NDArray[np.complex128]) -> NDArray[np.float64]:
    """From these products p, q, r the real part of z·(p - q + (r - p - q)i), twice for a pair."""
    z = z * [[2.0 if paired else 1.0] for _, _, paired in pairs]
    return _three(pairs, z.real + z.imag, z.imag - z.real, -z.imag).T


@lru_cache(maxsize=64)
def spectral_plan(
    height: int,
    width: int,
    kernel: int,
    stride: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> SpectralPlan:
    """The plan for maps of this size, with matrices in `dtype` on `device`."""
    if min(height, width) < kernel:
        raise InputError(f"a {kernel}×{kernel} kernel does not fit a map of {height}×{width}")
    out = ((height - kernel) // stride + 1, (width - kernel) // stride + 1)
    tiles = (-(-out[0] // TILE), -(-out[1] // TILE))
    tile = (-(-out[0] // tiles[0]), -(-out[1] // tiles[1]))
    longest = -(-kernel // stride)  # taps of the longest phase on an axis
    counts = (tile[0] + longest - 1, tile[1] + longest - 1)
    down, right = _points(counts[0]), _points(counts[1])

    # A phase that is one tap shorter needs one point less on that axis: infinity, which is last.
    # The order (finite, ∞), (finite, finite), (∞, finite), (∞, ∞) makes the points of every phase
    # neighbours.
    finite, infinite = ([range(n - 1) for n in counts], [range(n - 1, n) for n in counts])
    groups = [
        _pairs(finite[0], infinite[1], counts),
        _pairs(finite[0], finite[1], counts),
        _pairs(infinite[0], finite[1], counts),
        _pairs(infinite[0], infinite[1], counts),
    ]
    start = [0, *accumulate(sum(3 if paired else 1 for _, _, paired in g) for g in groups)]

    def constant(matrix: NDArray[np.float64]) -> Tensor:
        return torch.tensor(np.ascontiguousarray(matrix), dtype=dtype, device=device)

    phases = []
    for row, col in product(range(min(stride, kernel)), repeat=2):
        taps = (len(range(row, kernel, stride)), len(range(col, kernel, stride)))
        tall, wide = taps[0] == longest, taps[1] == longest
        first, last = (0 if wide else 1), (1 if not tall else 3 if wide else 2)
        pairs = [pair for group in groups[first : last + 1] for pair in group]
        p, q = (down if tall else down[:-1]), (right if wide else right[:-1])
        of_kernel = _factors(pairs, _at(pairs, _powers(p, taps[0]), _powers(q, taps[1])))
        of_map = _factors(pairs, _at(pairs, _inverse(p), _inverse(q)))
        rows = slice(start[first], start[last + 1])
        size = (len(p), len(q))
        phases.append(Phase(row, col, taps, size, rows, constant(of_kernel), constant(of_map)))

    every = [pair for group in groups for pair in group]
    to_map = _together(every, _at(every, _powers(down, tile[0]), _powers(right, tile[1])))
    matrix = constant(to_map)
    return SpectralPlan(kernel, stride, out, tiles, tile, start[-1], matrix, tuple(phases))


def multiply_adds(
    height: int, width: int, kernel: int, stride: int, channels: int, maps: int
) -> tuple[int, int]:
    """Multiply-adds for an image: of the direct convolution, and of this one with its transforms.

    The transform of the kernel is not counted: it is done once for all images of a batch.
    """
    plan = spectral_plan(height, width, kernel, stride)
    tile = sum(
        phase.of_map.shape[0] * channels * maps + phase.of_map.numel() * channels
        for phase in plan.phases
    )
    tile += plan.to_map.numel() * maps
    return math.prod(plan.out) * kernel**2 * channels * maps, math.prod(plan.tiles) * tile


def wins(
    height: int,
    width: int,
    kernel: int,
    stride: int,
    channels: int,
    maps: int,
    images: int = 100,
) -> bool:
    """Whether this is the faster way for batches of so many images: a rule on counts alone.

    A number written to memory or read back counts as 10 multiply-adds, and the direct convolution
    runs its own at a better rate, 1.6 times: both from measurements on two CPU cores.
    """
    direct, spectral = multiply_adds(height, width, kernel, stride, channels, maps)
    plan = spectral_plan(height, width, kernel, stride)
    rows = sum(phase.of_map.shape[0] for phase in plan.phases)
    taps = sum(phase.of_kernel.numel() for phase in plan.phases)
    moved = 2 * math.prod(plan.tiles) * (rows * channels + plan.rows * maps)
    of_kernel = (taps + 10 * 2 * rows) * channels * maps / images
    return direct > 1.6 * (spectral + 10 * moved + of_kernel)


class _Scratch:
    """Memory that every block uses again: fresh pages cost more than the arithmetic in them."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.kept: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self.kept or self.kept[name].numel() < size:
            self.kept[name] = self.like.new_empty(size)
        return self.kept[name][:size].view(shape)


def _taps(weight: Tensor, phase: Phase, stride: int) -> Tensor:
    """The taps of a phase: a view [O, C, k, k] → [h, w, O, C]"""
    return weight[:, :, phase.row :: stride, phase.col :: stride].permute(2, 3, 0, 1)


def _tiles(x: Tensor, phase: Phase, plan: SpectralPlan) -> Tensor:
    """The pixels of a phase, tile by tile: a view [N, C, H, W] → [h, w, N, tiles, tiles, C]"""
    part = x[:, :, phase.row :: plan.stride, phase.col :: plan.stride]
    for axis in (0, 1):
        used = (plan.tiles[axis] - 1) * plan.tile[axis] + phase.size[axis]
        part = part.narrow(2 + axis, 0, used).unfold(2 + axis, phase.size[axis], plan.tile[axis])
    return part.permute(4, 5, 0, 2, 3, 1)


def _apply(matrix: Tensor, values: Tensor, name: str, scratch: _Scratch) -> Tensor:
    """[a, b]·[b …] → [a, the rest], through scratch memory; values may be any view."""
    flat = scratch(name + " in", *values.shape).copy_(values).view(matrix.shape[1], -1)
    return torch.mm(matrix, flat, out=scratch(name, matrix.shape[0], flat.shape[1]))


def _kernel_rows(weight: Tensor, phase: Phase, plan: SpectralPlan, scratch: _Scratch) -> Tensor:
    """[O, C, k, k] → [rows, O, C]"""
    taps = _taps(weight, phase, plan.stride)
    return _apply(phase.of_kernel, taps, "kernel", scratch).view(-1, *weight.shape[:2])


def _map_rows(x: Tensor, phase: Phase, plan: SpectralPlan, scratch: _Scratch) -> Tensor:
    """[N, C, H, W] → [rows, N·tiles, C]"""
    pixels = _tiles(x, phase, plan)
    rows = _apply(phase.of_map, pixels, "map", scratch)
    return rows.view(rows.shape[0], -1, x.shape[1])


def _add_taps(
    dweight: Tensor, rows: Tensor, phase: Phase, plan: SpectralPlan, scratch: _Scratch
) -> None:
    """Adds to [O, C, k, k] what comes back from [rows, O, C]."""
    view = _taps(dweight, phase, plan.stride)
    back = scratch("kernel in", phase.of_kernel.shape[1], rows[0].numel())
    view += torch.mm(phase.of_kernel.T, rows.flatten(1), out=back).view(view.shape)


def _add_tiles(
    dx: Tensor, rows: Tensor, phase: Phase, plan: SpectralPlan, scratch: _Scratch
) -> None:
    """Adds to [N, C, H, W] what comes back from [rows, N·tiles, C]; tiles overlap: one by one."""
    view = _tiles(dx, phase, plan)
    back = scratch("map in", phase.of_map.shape[1], rows[0].numel())
    back = torch.mm(phase.of_map.T, rows.flatten(1), out=back).view(view.shape)
    for i, j in product(range(plan.tiles[0]), range(plan.tiles[1])):
        view[:, :, :, i, j] += back[:, :, :, i, j]


def _blocks(length: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length, size)]


def _images(x: Tensor, plan: SpectralPlan) -> list[slice]:
    most = IMAGES if x.device.type == "cpu" else GPU_IMAGES
    return _blocks(x.shape[0], max(1, most // math.prod(plan.tiles)))


def _channels(x: Tensor) -> list[slice]:
    return _blocks(x.shape[1], CHANNELS if x.device.type == "cpu" else x.shape[1])


def _extended(x: Tensor, more: list[int]) -> Tensor:
    """Zeros below and to the right."""
    return F.pad(x, (0, more[1], 0, more[0])) if any(more) else x


def _covered(x: Tensor, plan: SpectralPlan) -> Tensor:
    """The map, with zeros where the last tiles go beyond it."""
    outputs = [tiles * tile for tiles, tile in zip(plan.tiles, plan.tile)]
    need = [(n - 1) * plan.stride + plan.kernel for n in outputs]
    return _extended(x, [max(0, n - have) for n, have in zip(need, x.shape[2:])])


def spectral_weight(weight: Tensor, plan: SpectralPlan) -> tuple[Tensor, ...]:
    """The transformed kernel, for the caller to keep: [O, C, k, k] → for each phase [rows, C, O]"""
    scratch = _Scratch(weight)
    rows = (_kernel_rows(weight.detach(), phase, plan, scratch) for phase in plan.phases)
    return tuple(taps.transpose(1, 2).clone(memory_format=torch.contiguous_format) for taps in rows)


def _forward(
    x: Tensor, weight: Tensor, transformed: tuple[Tensor, ...] | None, plan: SpectralPlan
) -> Tensor:
    x, maps = _covered(x, plan), weight.shape[0]
    scratch = _Scratch(x)
    y = x.new_empty(*plan.tile, x.shape[0], *plan.tiles, maps)  # [h, w, N, tiles, tiles, O]
    for images in _images(x, plan):
        part = y[:, :, images]
        total = scratch("total", plan.rows, part[0, 0].numel() // maps, maps).zero_()
        for channels in _channels(x):
            for index, phase in enumerate(plan.phases):
                if transformed is None:
                    taps = _kernel_rows(weight[:, channels], phase, plan, scratch).transpose(1, 2)
                else:
                    taps = transformed[index][:, channels]
                pixels = _map_rows(x[images, channels], phase, plan, scratch)
                total[phase.rows].baddbmm_(pixels, taps)  # [rows, n·tiles, O]
        part.copy_((plan.to_map @ total.view(plan.rows, -1)).view(part.shape))
    y = y.permute(2, 5, 3, 0, 4, 1)  # [N, O, tiles, h, tiles, w]
    return y.flatten(4, 5).flatten(2, 3)[:, :, : plan.out[0], : plan.out[1]]


class _SpectralConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, plan: SpectralPlan) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.plan = plan
        return _forward(x, weight, None, plan)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        plan: SpectralPlan = ctx.plan
        x, weight = ctx.saved_tensors
        size, x = x.shape[2:], _covered(x, plan)
        dx = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        dweight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        dy = _extended(dy, [n * m - o for n, m, o in zip(plan.tiles, plan.tile, plan.out)])
        (down, right), (h, w) = plan.tiles, plan.tile
        dy = dy.reshape(*dy.shape[:2], down, h, right, w).permute(3, 5, 0, 2, 4, 1)
        scratch = _Scratch(x)
        for images in _images(x, plan):
            total = _apply(plan.to_map.T, dy[:, :, images], "total", scratch)
            total = total.view(plan.rows, -1, weight.shape[0])  # [rows, n·tiles, O]
            for channels in _channels(x):
                for phase in plan.phases:
                    part, some = total[phase.rows], weight[:, channels]
                    if dx is not None:
                        taps = _kernel_rows(some, phase, plan, scratch)
                        pixels = scratch("map", *part.shape[:2], some.shape[1])
                        torch.bmm(part, taps, out=pixels)
                        _add_tiles(dx[images, channels], pixels, phase, plan, scratch)
                    if dweight is not None:
                        pixels = _map_rows(x[images, channels], phase, plan, scratch)
                        taps = scratch("kernel", part.shape[0], *some.shape[:2])
                        torch.bmm(part.transpose(1, 2), pixels, out=taps)
                        _add_taps(dweight[:, channels], taps, phase, plan, scratch)
        return None if dx is None else dx[:, :, : size[0], : size[1]], dweight, None


def spectral_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    transformed: tuple[Tensor, ...] | None = None,
) -> Tensor:
    """As torch.nn.functional.conv2d: [N, C, H, W], [O, C, k, k], [O] → [N, O, H', W']

    `transformed`, from `spectral_weight`, saves time wherever no gradient is asked for. It is
    fastest with x and weight in torch.channels_last.
    """
    plan = spectral_plan(x.shape[2], x.shape[3], weight.shape[2], stride, x.dtype, x.device)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y: Tensor = _SpectralConv.apply(x, weight, plan)  # type: ignore[no-untyped-call]
    else:
        y = _forward(x, weight, transformed, plan)
    return y if bias is None else y + bias[:, None, None]
