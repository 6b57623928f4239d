"""The primary convolution on a GPU in bfloat16, forward and backward.

For a training batch of about 100 images, cuDNN splits this convolution into too few tiles to fill a
large GPU. Here each direction is one product with about one tile per multiprocessor. Patches are
never stored: a program gathers its own from the maps.

    forward  out   = patches · weightᵀ   [places, K] · [K, O]             K = k·k·C
    dmaps    dmaps = Σ over taps of dout · weight[tap]   [rows, O] · [O, C]
    dweight  dweight[tap] = doutᵀ · maps moved by the tap   [O, places] · [places, C]

Letters: N images of C input maps, O output maps. A *place* is one (image, row, column) of the
output maps. A *tap* is one (row, column) of the k × k kernel. In channels-last memory, input maps
are a matrix [N·H·W, C]. The weight is rounded to bfloat16 once, in the order [O, k, k, C].

The kernels are in `primary_device.py`. Products take bfloat16 and sum in fp32. A separate kernel
adds partial sums in a fixed order, without atomics, so that a run is reproducible bit by bit.
Nothing waits for the device or depends on data, so a CUDA graph can record it.
"""

from typing import Any

import torch
from torch import Tensor

from anocaps.kernels.triton import primary_device as device
from anocaps.kernels.triton.support import TensorDescriptor, supported, triton

# Tuned on an H200 (132 multiprocessors). A tile is rows × columns of the result. Its depth is how
# many products one step sums.
FORWARD_PLACES = 128
FORWARD_MAPS = 256
FORWARD_DEPTH = 64
FORWARD_PROGRAMS = 132  # at most, unless there are more tiles
FORWARD_WARPS = 8
FORWARD_STAGES = 4
DMAPS_ROWS = 128
DMAPS_MAPS = 256
DMAPS_DEPTH = 64
DMAPS_WARPS = 8
DMAPS_STAGES = 4
DWEIGHT_ROWS = 128  # of O
DWEIGHT_COLUMNS = 256  # of C
DWEIGHT_DEPTH = 64
DWEIGHT_PROGRAMS = 132  # per round
DWEIGHT_WARPS = 8
DWEIGHT_STAGES = 4
FOLD_NUMBERS = 1024
FOLD_WARPS = 4

_LAST = torch.channels_last


def strided_conv(maps: Tensor, weight: Tensor, stride: int) -> Tensor:
    """conv2d(maps, weight, stride=stride) in bfloat16: [N, C, H, W] → bfloat16 [N, O, h, w].

    weight [O, C, k, k]. `takes` must hold. The result and the gradient of the maps are in
    channels-last memory. Gradients have the dtypes of maps and weight.
    """
    with torch.cuda.device_of(maps):
        out: Tensor = _StridedConv.apply(maps, weight, stride)
    return out


def takes(maps: Tensor, weight: Tensor, stride: int) -> bool:
    """Whether `strided_conv` supports maps [N, C, H, W] and weight [O, C, k, k]."""
    if maps.is_cuda and torch.cuda.get_device_capability(maps.device) < (9, 0):
        return False  # its tiles need the shared memory of a Hopper GPU or newer
    (n, c, height, width), o = maps.shape, len(weight)
    sizes = not any(x < 64 or x & (x - 1) for x in (c, o)) and stride in (1, 2)
    return supported(maps) and sizes and n * height * width * max(c, o) < 2**31  # 32-bit offsets


def _shape(maps: Tensor, out: Tensor, side: int, stride: int) -> dict[str, int]:
    """The constants of the kernels; out [N, O, h, w] or its gradient."""
    _, c, height, width = maps.shape
    _, o, rows, columns = out.shape
    return {"C": c, "MAPS": o, "HEIGHT": height, "WIDTH": width, "SIDE": side, "STRIDE": stride,
            "ROWS": rows, "COLUMNS": columns}  # fmt: skip


def _forward_ranges(tiles: int, steps: int) -> int:
    """Number of ranges of K: it divides the steps and gives at most FORWARD_PROGRAMS programs."""
    most = max(1, min(steps, FORWARD_PROGRAMS // tiles))
    return next(ranges for ranges in range(most, 0, -1) if steps % ranges == 0)


def _dweight_ranges(tiles: int, steps: int) -> tuple[int, int]:
    """(tiles in complete rounds; ranges of places for every other tile)."""
    rest = tiles % DWEIGHT_PROGRAMS
    ranges = min(DWEIGHT_PROGRAMS // rest, steps) if rest else 1
    return (tiles - rest, ranges) if ranges > 1 else (tiles, 1)


def _run_forward(maps: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Inputs and output: bfloat16 in channels-last memory."""
    n, c, height, width = maps.shape
    o, _, side, _ = weight.shape
    rows, columns = (height - side) // stride + 1, (width - side) // stride + 1
    out = torch.empty(
        (n, o, rows, columns), dtype=maps.dtype, device=maps.device, memory_format=_LAST
    )
    places = n * rows * columns
    bo, bk = min(FORWARD_MAPS, o), min(FORWARD_DEPTH, c)
    tiles, blocks = triton.cdiv(places, FORWARD_PLACES), o // bo
    steps = side * side * c // bk
    ranges = _forward_ranges(tiles * blocks, steps)
    parts = maps.new_empty(ranges * places * o, dtype=torch.float32) if ranges > 1 else out
    device.forward[(tiles, blocks, ranges)](
        maps, weight, parts, n, STEPS=steps // ranges, BP=FORWARD_PLACES, BO=bo, BK=bk,
        num_warps=FORWARD_WARPS, num_stages=FORWARD_STAGES, **_shape(maps, out, side, stride),
    )  # fmt: skip
    if ranges > 1:
        device.fold[(triton.cdiv(out.numel(), FOLD_NUMBERS),)](
            parts, out, out.numel(), RANGES=ranges, B=FOLD_NUMBERS, num_warps=FOLD_WARPS
        )
    return out


def _run_dmaps(maps: Tensor, weight: Tensor, grad: Tensor, stride: int) -> Tensor:
    """The gradient of maps. All tensors: bfloat16 in channels-last memory."""
    n, c, height, width = maps.shape
    o, _, side, _ = weight.shape
    dmaps = torch.empty_like(maps, memory_format=_LAST)
    bc, bk = min(DMAPS_MAPS, c), min(DMAPS_DEPTH, o)
    tiles = triton.cdiv(triton.cdiv(width, stride) * n, DMAPS_ROWS)
    columns = side * side * c
    matrix = TensorDescriptor(weight, [o, columns], [columns, 1], [bk, bc])  # for the copy engine
    device.dmaps[(c // bc, tiles, height * stride)](
        grad, matrix, dmaps, n, BR=DMAPS_ROWS, BC=bc, BK=bk, num_warps=DMAPS_WARPS,
        num_stages=DMAPS_STAGES, **_shape(maps, grad, side, stride),
    )  # fmt: skip
    return dmaps


def _run_dweight(maps: Tensor, grad: Tensor, dweight: Tensor, stride: int) -> None:
    """Fill dweight, float32. maps and grad: bfloat16 in channels-last memory."""
    n, c = maps.shape[:2]
    o, _, side, _ = dweight.shape
    bo, bc = min(DWEIGHT_ROWS, o), min(DWEIGHT_COLUMNS, c)
    tiles = side * side * (o // bo) * (c // bc)
    places = n * grad.shape[2] * grad.shape[3]
    whole, ranges = _dweight_ranges(tiles, triton.cdiv(places, DWEIGHT_DEPTH))
    late = tiles - whole
    parts = dweight.new_empty(late * ranges * bo * bc) if late else dweight
    w = dict(zip(("W_MAP", "W_CHANNEL", "W_ROW", "W_COLUMN"), dweight.stride()))
    device.dweight[(whole + late * ranges,)](
        maps, grad, dweight, parts, n, WHOLE=whole, RANGES=ranges, BO=bo, BC=bc, BK=DWEIGHT_DEPTH,
        num_warps=DWEIGHT_WARPS, num_stages=DWEIGHT_STAGES, **_shape(maps, grad, side, stride),
        **w,
    )  # fmt: skip
    if late:
        b = min(FOLD_NUMBERS, bo * bc)
        device.fold_dweight[(late * bo * bc // b,)](
            parts, dweight, C=c, MAPS=o, SIDE=side, WHOLE=whole, RANGES=ranges, BO=bo, BC=bc, B=b,
            num_warps=FOLD_WARPS, **w,
        )  # fmt: skip


class _StridedConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, stride: int) -> Tensor:
        ctx.stride, ctx.dtypes = stride, (maps.dtype, weight.dtype)
        ctx.dweight = torch.empty_like(weight, device="meta").stride()
        maps = maps.to(torch.bfloat16).contiguous(memory_format=_LAST)
        rounded = weight.to(torch.bfloat16).contiguous(memory_format=_LAST)
        ctx.save_for_backward(maps, rounded)
        return _run_forward(maps, rounded, stride)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight = ctx.saved_tensors
        grad = grad.to(torch.bfloat16).contiguous(memory_format=_LAST)
        dmaps = dweight = None
        with torch.cuda.device_of(maps):
            if ctx.needs_input_grad[0]:
                dmaps = _run_dmaps(maps, weight, grad, ctx.stride).to(ctx.dtypes[0])
            if ctx.needs_input_grad[1]:
                dweight = torch.empty_strided(
                    weight.shape, ctx.dweight, dtype=torch.float32, device=maps.device
                )
                _run_dweight(maps, grad, dweight, ctx.stride)
                dweight = dweight.to(ctx.dtypes[1])
        return dmaps, dweight, None
