"""Synthetic anomalies: normal images with a small part changed.

They hint at the sizes and contrasts that a model can see. They are no promise: a real
anomaly may be easier or harder to find.

- pasted pieces: a rectangle of the image at another place, turned, and lighter or darker (CutPaste,
  Li et al. 2021)
- foreign textures: a blob of Perlin noise, filled with another image (DRAEM, Zavrtanik et al. 2021)
- scratches: a thin line, dark on a light place and light on a dark one
- blurred parts: a soft disc out of focus
- missing parts: a polygon in the colour of the image's border
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import cos, pi, sin
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Floats = NDArray[np.float32]

_FEWEST_PIXELS = 2  # per side of a change; smaller changes are left out
_TRIES = 12  # draws of place and shape
_VISIBLE = 0.08  # this mean change of the changed pixels, or more, ends the draws
_LIGHT = (0.8, 1.2)  # factor of a pasted piece
_BLENDED = 0.8  # share of the foreign texture
_CELLS = 3  # of Perlin noise, across a blob
_FINER = 4  # lines and polygons are drawn this many times larger, so that they have soft edges


@dataclass(frozen=True)
class Line:
    """Synthetic anomalies of one kind and size."""

    kind: str
    size: float  # share of the image's shorter side
    rows: NDArray[np.int64]  # N, indices of the images that they are made from
    images: NDArray[Any]  # N×H×W×C
    contrast: float  # mean change of the changed pixels, in [0, 1]


def synthetic(images: NDArray[Any], others: NDArray[Any], seed: int, count: int) -> Iterator[Line]:
    """Synthetic anomalies by kind and size, at most `count` of each, from newly drawn images.

    Images are uint8 or float in [0, 1], N×H×W×C. `others` give foreign textures.
    """
    for number, (kind, size, side) in enumerate(_lines(*images.shape[1:3])):
        make = _KINDS[kind][0]
        generator = np.random.default_rng([seed, 0x5717, number])
        rows = np.sort(generator.permutation(len(images))[:count])
        changed = [_changed(make, image, others, side, generator) for image in images[rows]]
        made, contrasts = zip(*changed)
        yield Line(kind, size, rows, np.stack(made), round(float(np.mean(contrasts)), 4))


def lines_of(height: int, width: int) -> int:
    """The number of lines for images of this size."""
    return len(_lines(height, width))


def _lines(height: int, width: int) -> list[tuple[str, float, int]]:
    """Kind, size and pixels of a side."""
    sides = (
        (kind, size, round(size * min(height, width)))
        for kind, (_, sizes) in _KINDS.items()
        for size in sizes
    )
    return [line for line in sides if line[2] >= _FEWEST_PIXELS]


@dataclass(frozen=True)
class Square:
    """Where an image is changed."""

    side: int
    here: Floats  # side×side×C in [0, 1], as it is
    image: Floats  # the whole image, H×W×C
    other: Floats  # side×side×C, a part of another image
    generator: np.random.Generator


Change = tuple[Floats, Floats]  # new pixels side×side×C, and their weight side×side
Make = Callable[[Square], Change]


def _changed(
    make: Make, image: NDArray[Any], others: NDArray[Any], side: int, generator: np.random.Generator
) -> tuple[NDArray[Any], float]:
    """The changed image, and the contrast of the change. It takes the first visible change of
    several draws, or else the most visible one."""
    before = _unit(image)
    other = others[generator.integers(len(others))]
    best, most = image, -1.0
    for _ in range(_TRIES):
        place, foreign = (_place(image.shape, side, generator) for _ in range(2))
        here = before[place]
        pixels, weight = make(Square(side, here, before, _unit(other[foreign]), generator))
        made = here + weight[..., None] * (pixels - here)
        seen = max(float(weight.sum()), 1e-6) * image.shape[2]
        if (contrast := float(np.abs(made - here).sum()) / seen) > most:
            best, most = image.copy(), contrast
            best[place] = _bytes(made) if image.dtype == np.uint8 else made
        if most >= _VISIBLE:
            break
    return best, most


def _place(
    shape: tuple[int, ...], side: int, generator: np.random.Generator
) -> tuple[slice, slice]:
    top, left = (int(generator.integers(length - side + 1)) for length in shape[:2])
    return slice(top, top + side), slice(left, left + side)


# ── kinds ────────────────────────────────────────────────────────────────────────────────────


def _pasted(square: Square) -> Change:
    side, generator = square.side, square.generator
    piece = square.image[_place(square.image.shape, side, generator)]
    piece = np.rot90(piece, int(generator.integers(1, 4))) * np.float32(generator.uniform(*_LIGHT))
    weight = np.zeros((side, side), np.float32)
    sides = [side, max(1, round(side * generator.uniform(0.5, 1)))]
    tall, wide = generator.permutation(sides)
    weight[:tall, :wide] = 1
    return np.clip(piece, 0, 1), weight


def _foreign(square: Square) -> Change:
    noise = _perlin(square.side, square.generator) - _away(square.side)  # ends inside the square
    return square.other, _BLENDED * (noise > np.quantile(noise, 0.5)).astype(np.float32)


def _scratch(square: Square) -> Change:
    """A bent line from one side of the square to the other."""
    side, generator = square.side, square.generator
    angle, bend = generator.uniform(0, 2 * pi), generator.uniform(-0.15, 0.15) * side
    across, up = cos(angle), sin(angle)
    points = [
        (side / 2 + t * side * across - b * up, side / 2 + t * side * up + b * across)
        for t, b in ((-0.5, 0), (-0.2, bend), (0.2, bend), (0.5, 0))
    ]
    thick = max(1, round(_FINER * max(1.0, min(square.image.shape[:2]) / 150)))
    weight = 0.7 * _drawn(side, lambda draw, places: draw.line(places, 255, thick), points)
    light = 1.0 if square.here.mean() < 0.5 else 0.0
    return np.full_like(square.here, light), weight


def _blurred(square: Square) -> Change:
    blur = ImageFilter.GaussianBlur(max(1.0, square.side / 8))
    planes = np.moveaxis(_bytes(square.here), 2, 0)
    blurred = [np.asarray(Image.fromarray(plane).filter(blur)) for plane in planes]
    weight = np.clip(3 * (1 - _away(square.side)), 0, 1)
    return np.stack(blurred, axis=2).astype(np.float32) / np.float32(255), weight


def _missing(square: Square) -> Change:
    image, side, generator = square.image, square.side, square.generator
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    angles = np.sort(generator.uniform(0, 2 * pi, 7))
    radii = side / 2 * generator.uniform(0.7, 1, 7)
    points = [(side / 2 + r * cos(a), side / 2 + r * sin(a)) for a, r in zip(angles, radii)]
    weight = _drawn(side, lambda draw, places: draw.polygon(places, 255), points)
    return np.full_like(square.here, np.median(border, axis=0)), weight


# Each kind with its sizes, shares of the shorter side.
_KINDS: dict[str, tuple[Make, tuple[float, ...]]] = {
    "pasted pieces": (_pasted, (0.2, 0.1, 0.05, 0.02)),
    "foreign textures": (_foreign, (0.2, 0.1)),
    "scratches": (_scratch, (0.3, 0.1)),
    "blurred parts": (_blurred, (0.3, 0.1)),
    "missing parts": (_missing, (0.1, 0.05)),
}


# ── shapes and pixels ────────────────────────────────────────────────────────────────────────


def _away(side: int) -> Floats:
    """side×side: the distance to the middle, 1 at the sides."""
    along = (2 * np.arange(side) + 1) / side - 1
    return np.hypot(along[:, None], along).astype(np.float32)


def _perlin(side: int, generator: np.random.Generator) -> Floats:
    """Perlin's gradient noise, side×side, about −0.7 to 0.7."""
    angles = generator.uniform(0, 2 * pi, (_CELLS + 1, _CELLS + 1))
    gradients = np.stack([np.sin(angles), np.cos(angles)])  # [2, 4, 4]
    place = np.linspace(0, _CELLS, side, endpoint=False)
    cell, inside = place.astype(int), place % 1
    fade = inside**3 * (inside * (6 * inside - 15) + 10)

    def corner(down: int, right: int) -> NDArray[np.float64]:
        y, x = gradients[:, cell + down][:, :, cell + right]
        return np.asarray(y * (inside[:, None] - down) + x * (inside - right))

    top, bottom = (corner(down, 0) + fade * (corner(down, 1) - corner(down, 0)) for down in (0, 1))
    return np.asarray(top + fade[:, None] * (bottom - top), dtype=np.float32)


def _drawn(
    side: int,
    draw: Callable[[ImageDraw.ImageDraw, list[tuple[float, float]]], None],
    points: list[tuple[float, float]],
) -> Floats:
    """A drawing as a weight in [0, 1], with soft edges: side×side."""
    canvas = Image.new("L", (_FINER * side, _FINER * side))
    draw(ImageDraw.Draw(canvas), [(_FINER * x, _FINER * y) for x, y in points])
    return np.asarray(canvas.reduce(_FINER), dtype=np.float32) / np.float32(255)


def _unit(image: NDArray[Any]) -> Floats:
    scaled = np.asarray(image, dtype=np.float32)
    return scaled / np.float32(255) if image.dtype == np.uint8 else scaled


def _bytes(image: Floats) -> NDArray[np.uint8]:
    return np.asarray(np.rint(255 * np.clip(image, 0, 1)), dtype=np.uint8)
