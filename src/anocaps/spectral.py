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
channels and images that stay in the cache, and the backward pass transforms again what it needs:
for blocks of this size that is cheaper than to write it to memory and read it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE = 8  # outputs a side that are computed together, at most
CHANNELS = 64  # a block: channels, and images times tiles
IMAGES = 128


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


def _points(count: int) -> list[complex]:
    """An even number of roots of unity, 0 if one more is needed, and infinity."""
    roots = (count - 1) // 2 * 2
    circle = [complex(np.exp(2j * np.pi * k / roots)) for k in range(roots)]
    return circle + [0j] * (count - 1 - roots) + [complex("inf")]


def _evaluate(points: list[complex], length: int) -> NDArray[np.complex128]:
    """The powers 0 … length-1 at each point [points, length]; at infinity only the last counts."""
    power = np.arange(length)
    return np.array([power == length - 1 if np.isinf(p) else p**power for p in points], complex)


def _conjugate(points: list[complex]) -> list[int]:
    """Where the conjugate of each point stands."""
    roots = (len(points) - 1) // 2 * 2
    return [-i % roots if i < roots else i for i in range(len(points))]


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
    out = ((height - kernel) // stride + 1, (width - kernel) // stride + 1)
    tiles = (-(-out[0] // TILE), -(-out[1] // TILE))
    tile = (-(-out[0] // tiles[0]), -(-out[1] // tiles[1]))
    longest = -(-kernel // stride)  # taps of the longest phase
    down, right = (_points(outputs + longest - 1) for outputs in tile)
    mirror = _conjugate(down), _conjugate(right)

    # A phase that is one tap shorter needs one point less on that axis: infinity, the last. Pairs
    # of points stand in such an order that those of any phase are neighbours:
    # (finite, ∞), (finite, finite), (∞, finite), (∞, ∞). Of conjugate pairs the first stays.
    finite, infinite = slice(None, -1), slice(-1, None)
    groups = [
        [
            (i, j)
            for i in range(len(down))[rows]
            for j in range(len(right))[cols]
            if (i, j) <= (mirror[0][i], mirror[1][j])
        ]
        for rows, cols in [
            (finite, infinite),
            (finite, finite),
            (infinite, finite),
            (infinite, infinite),
        ]
    ]

    def outer(
        pairs: list[tuple[int, int]], a: NDArray[np.complex128], b: NDArray[np.complex128]
    ) -> tuple[NDArray[np.complex128], NDArray[np.bool_]]:
        """Products of a row of a and a row of b; which of them are complex."""
        own = [(i, j) == (mirror[0][i], mirror[1][j]) for i, j in pairs]
        return np.array([np.kron(a[i], b[j]) for i, j in pairs]), ~np.array(own)

    def real(pairs: list[tuple[int, int]], *factors: NDArray[np.complex128]) -> Tensor:
        """Karatsuba's three rows for a complex pair of points: u, v, u + v; u for a real one."""
        values, paired = outer(pairs, *factors)
        u, v = values.real, values.imag
        keep = np.stack([np.ones_like(paired), paired, paired], 1)
        return torch.tensor(np.stack([u, v, u + v], 1)[keep], dtype=dtype, device=device)

    def real_back(pairs: list[tuple[int, int]], *factors: NDArray[np.complex128]) -> Tensor:
        """What gives the real part of a product from Karatsuba's three, for a pair twice."""
        values, paired = outer(pairs, *factors)
        u, v = values.real, values.imag
        keep = np.stack([np.ones_like(paired), paired, paired], 1)
        rows = np.stack([np.where(paired[:, None], 2 * (u + v), u), 2 * (v - u), -2 * v], 1)[keep]
        return torch.tensor(rows.T.copy(), dtype=dtype, device=device)

    count = [sum(1 if (i, j) == (mirror[0][i], mirror[1][j]) else 3 for i, j in g) for g in groups]
    start = np.cumsum([0, *count]).tolist()
    phases = []
    for row in range(min(stride, kernel)):
        for col in range(min(stride, kernel)):
            taps = (len(range(row, kernel, stride)), len(range(col, kernel, stride)))
            full = (taps[0] == longest, taps[1] == longest)
            first, stop = (0 if full[1] else 1), (3 + full[1] if full[0] else 2)
            pairs = sum(groups[first:stop], [])
            p = down if full[0] else down[:-1]
            q = right if full[1] else right[:-1]
            phases.append(
                Phase(
                    row,
                    col,
                    taps,
                    (len(p), len(q)),
                    slice(start[first], start[stop]),
                    real(pairs, _evaluate(p, taps[0]), _evaluate(q, taps[1])),
                    real(
                        pairs,
                        np.linalg.inv(_evaluate(p, len(p))).T,
                        np.linalg.inv(_evaluate(q, len(q))).T,
                    ),
                )
            )
    back = real_back(sum(groups, []), _evaluate(down, tile[0]), _evaluate(right, tile[1]))
    return SpectralPlan(kernel, stride, out, tiles, tile, start[-1], back, tuple(phases))


def _kernel_rows(weight: Tensor, phase: Phase, stride: int) -> Tensor:
    """[O, C, k, k] → [rows, O, C]"""
    taps = weight[:, :, phase.row :: stride, phase.col :: stride].permute(2, 3, 0, 1)
    return (phase.of_kernel @ taps.reshape(phase.of_kernel.shape[1], -1)).view(-1, *taps.shape[2:])


def _tiles(x: Tensor, phase: Phase, plan: SpectralPlan) -> Tensor:
    """The pixels of a phase, tile by tile: a view [N, C, H, W] → [h, w, N, tiles, tiles, C]"""
    part = x[:, :, phase.row :: plan.stride, phase.col :: plan.stride]
    for axis in (0, 1):
        used = (plan.tiles[axis] - 1) * plan.tile[axis] + phase.size[axis]
        part = part.narrow(2 + axis, 0, used).unfold(2 + axis, phase.size[axis], plan.tile[axis])
    return part.permute(4, 5, 0, 2, 3, 1)


def _map_rows(x: Tensor, phase: Phase, plan: SpectralPlan) -> Tensor:
    """[N, C, H, W] → [rows, N·tiles, C]"""
    pixels = _tiles(x, phase, plan).reshape(phase.of_map.shape[1], -1)
    return (phase.of_map @ pixels).view(phase.of_map.shape[0], -1, x.shape[1])


def _blocks(length: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length, size)]


def _images(x: Tensor, plan: SpectralPlan) -> list[slice]:
    return _blocks(x.shape[0], max(1, IMAGES // (plan.tiles[0] * plan.tiles[1])))


def _covered(x: Tensor, plan: SpectralPlan) -> Tensor:
    """x, with zeros added where the last tiles go beyond it."""
    need = [
        (tiles * tile - 1) * plan.stride + plan.kernel
        for tiles, tile in zip(plan.tiles, plan.tile)
    ]
    more = [max(0, n - have) for n, have in zip(need, x.shape[2:])]
    return torch.nn.functional.pad(x, (0, more[1], 0, more[0])) if any(more) else x


def spectral_weight(weight: Tensor, plan: SpectralPlan) -> tuple[Tensor, ...]:
    """The transformed kernel [O, C, k, k] → for each phase [rows, O, C]"""
    return tuple(_kernel_rows(weight, phase, plan.stride) for phase in plan.phases)


def _forward(
    x: Tensor, weight: Tensor, transformed: tuple[Tensor, ...] | None, plan: SpectralPlan
) -> Tensor:
    x, maps = _covered(x, plan), weight.shape[0]
    parts = []
    for images in _images(x, plan):
        lanes = x[images].shape[0] * plan.tiles[0] * plan.tiles[1]
        total = x.new_zeros(plan.rows, lanes, maps)
        for channels in _blocks(x.shape[1], CHANNELS):
            for index, phase in enumerate(plan.phases):
                if transformed is None:
                    taps = _kernel_rows(weight[:, channels], phase, plan.stride)
                else:
                    taps = transformed[index][:, :, channels]
                pixels = _map_rows(x[images, channels], phase, plan)
                total[phase.rows].baddbmm_(pixels, taps.transpose(1, 2))
        y = plan.to_map @ total.view(plan.rows, -1)
        parts.append(y.view(*plan.tile, -1, *plan.tiles, maps))  # [h, w, n, tiles, tiles, O]
    y = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    y = y.permute(2, 5, 3, 0, 4, 1)  # [N, O, tiles, h, tiles, w]
    y = y.reshape(*y.shape[:2], y.shape[2] * y.shape[3], y.shape[4] * y.shape[5])
    return y[:, :, : plan.out[0], : plan.out[1]]


class _SpectralConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, plan: SpectralPlan) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.plan = plan
        return _forward(x, weight, None, plan)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        plan: SpectralPlan = ctx.plan
        x, weight = ctx.saved_tensors
        need_x, need_weight, _ = ctx.needs_input_grad
        shape, x, dy = x.shape, _covered(x, plan), grads[0]
        more = [n * m - o for n, m, o in zip(plan.tiles, plan.tile, plan.out)]
        dy = torch.nn.functional.pad(dy, (0, more[1], 0, more[0])) if any(more) else dy
        dx = torch.zeros_like(x) if need_x else None
        dweight = torch.zeros_like(weight) if need_weight else None
        for images in _images(x, plan):
            part = dy[images].unflatten(3, (plan.tiles[1], -1)).unflatten(2, (plan.tiles[0], -1))
            part = part.permute(3, 5, 0, 2, 4, 1)  # [h, w, n, tiles, tiles, O]
            total = plan.to_map.T @ part.reshape(plan.to_map.shape[0], -1)
            total = total.view(plan.rows, -1, weight.shape[0])  # [rows, n·tiles, O]
            for channels in _blocks(x.shape[1], CHANNELS):
                for phase in plan.phases:
                    product = total[phase.rows]
                    if dx is not None:
                        taps = _kernel_rows(weight[:, channels], phase, plan.stride)
                        pixels = torch.bmm(product, taps)  # [rows, n·tiles, C]
                        pixels = phase.of_map.T @ pixels.view(pixels.shape[0], -1)
                        _add_tiles(dx[images, channels], pixels, phase, plan)
                    if dweight is not None:
                        pixels = _map_rows(x[images, channels], phase, plan)
                        taps = torch.bmm(product.transpose(1, 2), pixels)  # [rows, O, C]
                        taps = phase.of_kernel.T @ taps.view(taps.shape[0], -1)
                        part = dweight[:, channels, phase.row :: plan.stride, phase.col :: plan.stride]
                        part += taps.view(*phase.taps, *part.shape[:2]).permute(2, 3, 0, 1)
        dx = dx[:, :, : shape[2], : shape[3]] if dx is not None else None
        return dx, dweight, None


def _add_tiles(dx: Tensor, pixels: Tensor, phase: Phase, plan: SpectralPlan) -> None:
    """Adds [h·w, n·tiles·C] to the pixels of a phase; tiles overlap, so one tile at a time."""
    view = _tiles(dx, phase, plan)
    pixels = pixels.view(view.shape)
    for i in range(plan.tiles[0]):
        for j in range(plan.tiles[1]):
            view[:, :, :, i, j] += pixels[:, :, :, i, j]


def spectral_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    transformed: tuple[Tensor, ...] | None = None,
) -> Tensor:
    """As torch.nn.functional.conv2d: [N, C, H, W], [O, C, k, k], [O] → [N, O, H', W']

    With `transformed`, from `spectral_weight`, it has no gradient.
    """
    plan = spectral_plan(x.shape[2], x.shape[3], weight.shape[2], stride, x.dtype, x.device)
    if transformed is None:
        y: Tensor = _SpectralConv.apply(x, weight, plan)
    else:
        with torch.no_grad():
            y = _forward(x, weight, transformed, plan)
    return y if bias is None else y + bias[:, None, None]
