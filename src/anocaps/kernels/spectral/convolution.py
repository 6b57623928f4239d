"""A strided convolution with a fifth of the multiplications, exact to rounding.

Map and kernel are transformed, multiplied point by point, and transformed back. plan.py says why
this is a convolution. Each transform is a product with a small constant real matrix. At each point,
the multiplication is one matrix product over the channels. The paper's primary convolution (9×9,
stride 2, 256 → 256 maps, 20×20 → 6×6) has 4 phases of 109 to 132 products
[images × 256] · [256 × 256]. The direct convolution has 36·81 = 2916.

Large maps are cut into overlapping tiles, which then count as images. The backward pass keeps the
transformed map, but not the transformed kernel (126 MB here). It computes the kernel again, one
point at a time, so that it stays in the cache.

Shapes: n images, N images times tiles, C channels, O maps; h, w the pixels of a tile.
"""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anocaps.kernels.spectral.plan import Part, SpectralPlan, spectral_plan

IMAGES = 256  # images times tiles computed at once, at most; this limits the memory
GPU_IMAGES = 2048  # the same on a GPU

Kernel = Callable[[Part], Tensor]  # part → transformed kernel [rows, C, O]


def _images(x: Tensor, plan: SpectralPlan) -> list[slice]:
    most = IMAGES if x.device.type == "cpu" else GPU_IMAGES
    size = max(1, most // math.prod(plan.tiles))
    return [slice(start, start + size) for start in range(0, len(x), size)]


def _each(matrix: Tensor, images: int) -> Tensor:
    """The matrix repeated for every image, as a view."""
    return matrix.expand(images, -1, -1)


# ── the kernel ───────────────────────────────────────────────────────────────────────────────


def _taps(weight: Tensor, plan: SpectralPlan) -> list[Tensor]:
    """The taps of each phase, as views: [O, C, k, k] → [taps down, taps across, O, C]."""
    s = plan.stride
    return [weight[:, :, p.row :: s, p.col :: s].permute(2, 3, 0, 1) for p in plan.phases]


def _transformed(weight: Tensor, plan: SpectralPlan) -> Kernel:
    """The transformed kernel, part by part. All parts share one buffer."""
    taps = [view.flatten(2).flatten(0, 1) for view in _taps(weight, plan)]  # [taps, O·C]
    memory = weight.new_empty(max(point.rows for point in plan.points), taps[0].shape[1])

    def rows(part: Part) -> Tensor:
        matrix = plan.phases[part.phase].of_kernel[part.of_phase]
        flat = torch.mm(matrix, taps[part.phase], out=memory[: len(matrix)])
        return flat.view(-1, *weight.shape[:2]).mT

    return rows


def spectral_weight(weight: Tensor, plan: SpectralPlan) -> tuple[Tensor, ...]:
    """The transformed kernel: [O, C, k, k] → [rows, C, O] for each phase."""
    found = []
    for phase, view in zip(plan.phases, _taps(weight.detach(), plan)):
        rows = phase.of_kernel @ view.flatten(2).flatten(0, 1)
        found.append(rows.view(-1, *weight.shape[:2]).mT.contiguous())
    return tuple(found)


# ── the map ──────────────────────────────────────────────────────────────────────────────────


def _covered(shape: torch.Size, plan: SpectralPlan) -> tuple[int, int]:
    """Height and width that map and tiles cover together; shape: [n, C, H, W]."""
    tiles = zip(plan.tiles, plan.tile, plan.size)
    need = ((n - 1) * outputs * plan.stride + size for n, outputs, size in tiles)
    down, across = (max(n, have) for n, have in zip(need, shape[2:]))
    return down, across


def _pixels(x: Tensor, plan: SpectralPlan) -> Tensor:
    """[n, C, H, W] → [n, H, W, C], with zeros where the last tiles exceed the map."""
    down, across = _covered(x.shape, plan)
    x = x.permute(0, 2, 3, 1).contiguous()
    more = (0, 0, 0, across - x.shape[2], 0, down - x.shape[1])
    return F.pad(x, more) if any(more) else x


def _tiles(x: Tensor, plan: SpectralPlan) -> list[Tensor]:
    """The pixels of each tile: [n, H, W, C] → [n, h, w·C]."""
    step, (h, w) = [plan.stride * outputs for outputs in plan.tile], plan.size
    corners = product(range(plan.tiles[0]), range(plan.tiles[1]))
    return [
        x[:, i * step[0] : i * step[0] + h, j * step[1] : j * step[1] + w].flatten(2)
        for i, j in corners
    ]


def _lines(x: Tensor, plan: SpectralPlan) -> Tensor:
    """The map, transformed along the height: [n, H, W, C] → [N, rows, w·C]."""
    tiles, n = _tiles(x, plan), len(x)
    lines = x.new_empty(len(tiles), n, len(plan.down), tiles[0].shape[2])
    for tile, out in zip(tiles, lines):
        torch.bmm(_each(plan.down, n), tile, out=out)
    return lines.flatten(0, 1)


def _add_lines(dx: Tensor, lines: Tensor, plan: SpectralPlan) -> None:
    """Add the gradient of the lines [rows, N, w·C] to dx [n, H, W, C], one tile at a time."""
    n = len(dx)
    for tile, some in zip(
        _tiles(dx, plan), lines.view(len(lines), -1, n, lines.shape[2]).unbind(1)
    ):
        tile.baddbmm_(_each(plan.down.T, n), some.transpose(0, 1))


# ── the convolution ──────────────────────────────────────────────────────────────────────────


def _forward(
    x: Tensor, maps: int, kernel: Kernel, plan: SpectralPlan, kept: list[Tensor] | None = None
) -> Tensor:
    """[n, C, H, W] → [n, O, H', W'] in channels-last memory.

    `kept` receives the transformed map [N, rows, C] of every block and part.
    """
    (down, right), (h, w) = plan.tiles, plan.tile
    y = x.new_empty(len(x), down, h, right, w, maps)
    pixels = _pixels(x, plan)
    for images in _images(x, plan):
        outputs = _forward_block(pixels[images], maps, kernel, plan, kept)
        y[images] = outputs.view(h, w, down, right, -1, maps).permute(4, 2, 0, 3, 1, 5)
    y = y.flatten(3, 4).flatten(1, 2)[:, : plan.out[0], : plan.out[1]]
    return y.permute(0, 3, 1, 2)


def _forward_block(
    x: Tensor, maps: int, kernel: Kernel, plan: SpectralPlan, kept: list[Tensor] | None
) -> Tensor:
    """[n, H, W, C] → [outputs down, outputs across · N · O]."""
    lines = _lines(x, plan)
    images, channels, most = len(lines), x.shape[3], max(point.rows for point in plan.points)
    memory = x.new_empty(most * images * channels if kept is None else 0)
    sums = x.new_empty(most, images, maps)
    back = x.new_empty(plan.back.shape[1], plan.tile[1] * images * maps)
    for point in plan.points:
        beta = 0
        for band in point.bands:
            line = lines[:, band.down].view(images, -1, plan.stride, channels)
            for part in band.parts:
                shape = images, len(part.of_map), channels
                if kept is None:
                    pixels = memory[: math.prod(shape)].view(shape)
                else:
                    kept.append(pixels := x.new_empty(shape))
                torch.bmm(_each(part.of_map, images), line[:, :, part.col], out=pixels)
                some = sums[: len(part.of_map)]
                some.baddbmm_(pixels.transpose(0, 1), kernel(part), beta=beta)
                beta = 1
        outputs = back[point.back].view(-1, images * maps)
        torch.mm(point.across, sums[: point.rows].flatten(1), out=outputs)
    return plan.back @ back


class _SpectralConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, plan: SpectralPlan) -> Tensor:
        kept: list[Tensor] = []
        y = _forward(x, len(weight), _transformed(weight, plan), plan, kept)
        ctx.save_for_backward(x, weight, *kept)
        ctx.plan = plan
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        plan: SpectralPlan = ctx.plan
        x, weight, *kept = ctx.saved_tensors
        (down, right), (h, w), (maps, channels) = plan.tiles, plan.tile, weight.shape[:2]
        more = [tiles * n - out for tiles, n, out in zip(plan.tiles, plan.tile, plan.out)]
        dy = F.pad(dy.permute(0, 2, 3, 1), (0, 0, 0, more[1], 0, more[0]))
        dy = dy.view(-1, down, h, right, w, maps).permute(2, 4, 1, 3, 0, 5)
        dx = x.new_zeros(len(x), *_covered(x.shape, plan), channels)
        dtaps = [x.new_zeros(p.of_kernel.shape[1], maps * channels) for p in plan.phases]
        kernel, parts = _transformed(weight, plan), iter(kept)
        for images in _images(x, plan):
            outputs = dy[:, :, :, :, images].reshape(h, -1)
            _backward_block(outputs, maps, kernel, plan, parts, dx[images], dtaps)
        dweight = torch.empty_like(weight)
        for view, taps in zip(_taps(dweight, plan), dtaps):
            view.copy_(taps.view(view.shape))
        return dx[:, : x.shape[2], : x.shape[3]].permute(0, 3, 1, 2), dweight, None


def _backward_block(
    dy: Tensor,
    maps: int,
    kernel: Kernel,
    plan: SpectralPlan,
    kept: Iterator[Tensor],
    dx: Tensor,
    dtaps: list[Tensor],
) -> None:
    """Add to the gradients dx [n, H, W, C] and dtaps [taps, O·C].

    dy: the gradient of what `_forward_block` returns.
    """
    images, channels = dy.shape[1] // (plan.tile[1] * maps), dx.shape[3]
    most = max(point.rows for point in plan.points)
    widest = max(len(band.across) for point in plan.points for band in point.bands)
    dsums = dy.new_empty(most, images, maps)
    dpixels = dy.new_empty(widest, images, channels)
    drows = dy.new_empty(most, maps, channels)
    lines = dy.new_empty(len(plan.down), images, plan.size[1] * channels)
    back = plan.back.T @ dy
    for point in plan.points:
        outputs = back[point.back].view(-1, images * maps)
        torch.mm(point.across.T, outputs, out=dsums[: point.rows].flatten(1))
        for band in point.bands:
            for part in band.parts:
                some, rows = dsums[: len(part.of_map)], drows[: len(part.of_map)]
                torch.bmm(some, kernel(part).mT, out=dpixels[part.of_band])
                torch.bmm(some.mT, next(kept).transpose(0, 1), out=rows)
                matrix = plan.phases[part.phase].of_kernel[part.of_phase]
                dtaps[part.phase].addmm_(matrix.T, rows.flatten(1))
            pixels = dpixels[: len(band.across)].transpose(0, 1)  # [N, rows, C]
            some = lines[band.down].view(-1, images, plan.size[1], channels)
            for line, across in zip(some, band.across.chunk(len(some), 1)):
                torch.bmm(_each(across.T, images), pixels, out=line)
    _add_lines(dx, lines, plan)


def spectral_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    transformed: tuple[Tensor, ...] | None = None,
) -> Tensor:
    """As torch.nn.functional.conv2d: [n, C, H, W], [O, C, k, k], [O] → [n, O, H', W'].

    `transformed`, from `spectral_weight`, saves time where no gradient is needed. Memory in
    torch.channels_last is fastest.
    """
    plan = spectral_plan(x.shape[2], x.shape[3], weight.shape[2], stride, x.dtype, x.device)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y: Tensor = _SpectralConv.apply(x, weight, plan)  # type: ignore[no-untyped-call]
    elif transformed is None:
        y = _forward(x, len(weight), _transformed(weight, plan), plan)
    else:
        kept = transformed
        y = _forward(x, len(weight), lambda part: kept[part.phase][part.of_phase], plan)
    return y if bias is None else y + bias[:, None, None]
