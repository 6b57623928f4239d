"""The constant matrices of the spectral convolution, and an estimate of when it is faster.

A stride-1 correlation of n + t - 1 pixels with t taps is a transposed product of polynomials
(Toom-Cook; Winograd, "Arithmetic Complexity of Computations", 1980; for networks Lavin & Gray,
arXiv:1509.09308). It evaluates the kernel at n + t - 1 points, transforms the map, multiplies point
by point, and transforms back. If the points are roots of unity, this is the DFT. Real points need
fewer products but round worse. Our points are infinity, four near ±1 and the rest on the unit
circle. Their error is below 1e-6 in single precision for every number of points. A stride-s
correlation is the sum of s stride-1 ones: each phase of the map (every s-th pixel) with the same
phase of the kernel.

In two dimensions, every point of the height is paired with every point of the width. The map is
first transformed along the height: a real point gives one row, a conjugate pair gives two (real and
imaginary part). Then it is transformed along the width, for each point of the height: a complex
point gives the three rows of Karatsuba's product (real part, imaginary part, sum). Only one of two
conjugate points in two dimensions is computed.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE = 8  # side of a tile, in outputs, at most

# Costs in multiply-adds, fitted to benchmarks/convolution_cpu.py.
MOVED = 10  # to write a number to memory, or to read it
READ_ANEW = 4  # to read a number of the kernel, which the direct convolution does for every image
STARTED = 1_000_000  # to start the operators of a part, once per batch
BATCH = 100  # images
MARGIN = 1.6  # the spectral form must be cheaper by this factor, so that small batches lose little


@dataclass(frozen=True)
class Part:
    """A band with one phase of the width."""

    phase: int  # index into the plan's phases
    col: int  # the phase of the width
    of_phase: slice  # its rows in the matrix of the phase
    of_band: slice  # its rows in the matrix of the band
    of_map: Tensor  # [rows, 1 or 2 · points of the width]


@dataclass(frozen=True)
class Band:
    """A point of the height with one phase of the height."""

    down: slice  # its 1 or 2 rows in the map transformed along the height
    across: Tensor  # [rows of all parts, 1 or 2 · pixels of the width]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Point:
    """A real point of the height, or a conjugate pair. The products of its bands are summed."""

    rows: int
    back: slice  # its 1 or 2 rows in the inverse transform
    across: Tensor  # [1 or 2 · outputs of the width, rows]
    bands: tuple[Band, ...]


@dataclass(frozen=True)
class Phase:
    """Every stride-th tap of the kernel, down and across."""

    row: int
    col: int
    of_kernel: Tensor  # [rows, taps]


@dataclass(frozen=True)
class SpectralPlan:
    """The constants for one size of maps and any number of channels."""

    stride: int
    out: tuple[int, int]  # H', W'
    tiles: tuple[int, int]
    tile: tuple[int, int]  # outputs of a tile
    size: tuple[int, int]  # pixels of a tile
    down: Tensor  # [rows, pixels of the height]
    back: Tensor  # [outputs of the height, rows]
    points: tuple[Point, ...]
    phases: tuple[Phase, ...]


Real = NDArray[np.float64]
Complex = NDArray[np.complex128]


def _points(count: int) -> list[complex]:
    """Four real points near ±1, pairs on the unit circle, 0 if one more is needed, infinity."""
    pairs = (count - 1) // 2  # of p and -p, or of p and its conjugate
    real = ([], [1.0], [3 / 4, 4 / 3])[min(pairs, 2)]
    angles = [math.pi * (k + 1) / (pairs - 1) for k in range(pairs - 2)]
    return [
        *(complex(p) for r in real for p in (r, -r)),
        *(complex(math.cos(a), sign * math.sin(a)) for a in angles for sign in (1, -1)),
        *[0j] * (count - 1 - 2 * pairs),
        complex("inf"),
    ]


def _powers(points: list[complex], length: int) -> Complex:
    """Powers 0 … length-1 of each point [points, length]. Infinity has only the last."""
    power = np.arange(length)
    return np.array([power == length - 1 if np.isinf(p) else p**power for p in points], complex)


class _Phase(NamedTuple):
    """A phase of one axis."""

    points: list[complex]
    of_map: Complex  # [points, points of the longest phase]
    of_kernel: Complex  # [points, taps]


def _phases(points: list[complex], taps: list[int]) -> list[_Phase]:
    """One phase per number of taps. A shorter phase needs one point less: infinity, the last."""
    found = []
    for length in taps:
        some = points[: len(points) - taps[0] + length]
        of_map = np.zeros((len(some), len(points)), complex)
        of_map[:, : len(some)] = np.linalg.inv(_powers(some, len(some))).T
        found.append(_Phase(some, of_map, _powers(some, length)))
    return found


def _parts_of(z: Complex, real: bool) -> Real:
    """[length] → [1 or 2, length]: the real part and, unless `real`, the imaginary part."""
    return np.array([z.real] if real else [z.real, z.imag])


def _factors(points: list[complex], matrix: Complex, real: bool) -> Real:
    """Karatsuba's factors [rows, 1 or 2, length] of a matrix [points of the width, length].

    The matrix is applied to real numbers, or to the real and imaginary part of a conjugate pair.
    """
    rows: list[Real] = []
    for point, z in zip(points, matrix):
        re = np.array([z.real] if real else [z.real, -z.imag])
        im = np.array([z.imag] if real else [z.imag, z.real])
        if real and point.imag == 0:
            rows.append(re)
        elif not real or point.imag > 0:
            rows += [re, im, re + im]
    return np.array(rows)


def _together(points: list[complex], matrix: Complex, real: bool) -> Real:
    """The inverse transform [1 or 2, length, rows] of products, from a matrix [points, length].

    Karatsuba's p, q, r stand for the complex number p - q + (r - p - q)i.
    """
    rows: list[list[Real]] = []
    for point, z in zip(points, matrix):
        re = [z.real + z.imag, z.imag - z.real, -z.imag]
        im = [z.imag - z.real, -z.imag - z.real, z.real]
        if real and point.imag == 0:
            rows.append([z.real])
        elif not real:
            rows += [[a, b] for a, b in zip(re, im)]
        elif point.imag > 0:  # its conjugate adds the same amount
            rows += [[2 * a] for a in re]
    return np.moveaxis(np.array(rows), 0, -1)


def _spread(rows: Real, phase: int, stride: int) -> Real:
    """[…, n] → […, n·stride]: zeros for the pixels of other phases."""
    pixels = np.zeros((*rows.shape[:-1], rows.shape[-1] * stride))
    pixels[..., phase::stride] = rows
    return pixels


class _Rows(list[Real]):
    """The rows of a matrix, collected step by step."""

    def take(self, rows: Real) -> slice:
        """Append rows [rows, …], each flattened; return their position."""
        self.extend(rows.reshape(len(rows), -1))
        return slice(len(self) - len(rows), len(self))


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
    taps = [len(range(phase, kernel, stride)) for phase in range(min(stride, kernel))]
    high, wide = (_points(outputs + taps[0] - 1) for outputs in tile)

    def constant(matrix: Real | _Rows) -> Tensor:
        return torch.tensor(np.array(matrix), dtype=dtype, device=device)

    down, back, points = _Rows(), _Rows(), []
    kernels = {(row, col): _Rows() for row, col in product(range(len(taps)), repeat=2)}
    for index, point in enumerate(high):
        if point.imag < 0:  # computed with its conjugate
            continue
        real, bands = point.imag == 0, []
        for row, phase in enumerate(_phases(high, taps)):
            if index >= len(phase.points):
                continue
            place = down.take(_spread(_parts_of(phase.of_map[index], real), row, stride))
            taps_down = _parts_of(phase.of_kernel[index], real)  # [1 or 2, taps]
            across, parts = _Rows(), []
            for col, other in enumerate(_phases(wide, taps)):
                taps_across = _factors(other.points, other.of_kernel, real)
                both = np.einsum("pa,rpb->rab", taps_down, taps_across)  # [rows, taps, taps]
                pixels = _factors(other.points, other.of_map, real)  # [rows, 1 or 2, points]
                part = Part(
                    phase=row * len(taps) + col,
                    col=col,
                    of_phase=kernels[row, col].take(both),
                    of_band=across.take(_spread(pixels, col, stride)),
                    of_map=constant(pixels.reshape(len(pixels), -1)),
                )
                parts.append(part)
            bands.append(Band(place, constant(across), tuple(parts)))
        ahead = _parts_of(_powers([point], tile[0])[0], real)  # [1 or 2, outputs]
        place = back.take(ahead if real else ahead * [[2], [-2]])  # twice the real part
        outputs = _together(wide, _powers(wide, tile[1]), real)  # [1 or 2, outputs, rows]
        rows = outputs.shape[2]
        points.append(Point(rows, place, constant(outputs.reshape(-1, rows)), tuple(bands)))
    return SpectralPlan(
        stride=stride,
        out=out,
        tiles=tiles,
        tile=tile,
        size=(len(high) * stride, len(wide) * stride),
        down=constant(down),
        back=constant(np.array(back).T),
        points=tuple(points),
        phases=tuple(Phase(row, col, constant(rows)) for (row, col), rows in kernels.items()),
    )


def multiply_adds(
    height: int, width: int, kernel: int, stride: int, channels: int, maps: int
) -> tuple[int, int]:
    """Multiply-adds per image of the direct and of the spectral convolution.

    The transform of the kernel is not counted: it runs once per batch.
    """
    plan = spectral_plan(height, width, kernel, stride)
    parts = [part for point in plan.points for band in point.bands for part in band.parts]
    products = sum(phase.of_kernel.shape[0] for phase in plan.phases) * channels * maps
    there = plan.down.numel() * plan.size[1] + sum(part.of_map.numel() for part in parts)
    back = plan.back.numel() * plan.tile[1] + sum(p.across.numel() for p in plan.points)
    tile = products + there * channels + back * maps
    return math.prod(plan.out) * kernel**2 * channels * maps, math.prod(plan.tiles) * tile


def wins(height: int, width: int, kernel: int, stride: int, channels: int, maps: int) -> bool:
    """Whether the spectral form is faster on a CPU, estimated from shapes alone.

    A layer therefore has the same form in every batch, in training and in scoring. The spectral
    form wins for large kernels with many maps, and for 3×3 kernels at stride 1 from about 128 maps
    on. benchmarks/convolution_cpu.py measures 128 shapes. In scoring the estimate is wrong for 4 of
    them, by at most 1.14 times; in training for 17, by at most 2.3 times (15×15 kernels).
    """
    direct, spectral = multiply_adds(height, width, kernel, stride, channels, maps)
    plan = spectral_plan(height, width, kernel, stride)
    if plan.out == (1, 1) and stride == 1:  # torch computes it as one matrix product
        return False
    parts = sum(len(band.parts) for point in plan.points for band in point.bands)
    rows = sum(len(phase.of_kernel) for phase in plan.phases)
    taps = sum(phase.of_kernel.numel() for phase in plan.phases)
    there = len(plan.down) * plan.size[1] + rows
    back = plan.back.shape[1] * plan.tile[1] + sum(point.rows for point in plan.points)
    moved = 2 * math.prod(plan.tiles) * (there * channels + back * maps)
    of_kernel = (taps + MOVED * 2 * rows) * channels * maps
    once = (of_kernel + STARTED * parts) / BATCH
    direct += READ_ANEW * kernel**2 * channels * maps
    return direct > MARGIN * (spectral + MOVED * moved + once)
