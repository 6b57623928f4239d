"""A drawing as a PNG file, for papers and slides: drawn large with Pillow, then made smaller.

Pillow brings one typeface, which knows English. Where a text has other signs, a common typeface
of the system is used; without one, Pillow's shows a box for the sign.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anocaps.base.files import replacing
from anocaps.study.report.drawing import Area, Drawing, Line, Picture, Shape, Text, light_colours

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

SCALE = 3  # pixels per unit: a drawing of 400 units is 85 mm wide at 360 dpi
_LARGER = 2  # drawn so many times larger still, for smooth edges
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # of the base line
_SYSTEM_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial.ttf", "arial.ttf")
_NO_SIGN = "\ufffe"  # never a letter: drawn as the sign for what is missing


def write_png(path: Path, drawing: Drawing) -> None:
    from PIL import Image

    image = draw(drawing)
    if not any(isinstance(shape, Picture) for shape in drawing.shapes):
        image = image.quantize(dither=Image.Dither.NONE)  # 256 colours: half the size
    with replacing(path) as temporary:
        image.save(temporary, "PNG", optimize=True, dpi=(360, 360))


def draw(drawing: Drawing) -> "Image.Image":
    from PIL import Image, ImageDraw

    width, height = round(drawing.width * SCALE), round(drawing.height * SCALE)
    image = Image.new("RGB", (width * _LARGER, height * _LARGER), light_colours()["paper"])
    canvas = ImageDraw.Draw(image, "RGBA")  # colours with opacity are blended
    for shape in drawing.shapes:
        _add(shape, image, canvas, SCALE * _LARGER)
    return image.resize((width, height), Image.Resampling.BOX)


def _add(shape: Shape, image: "Image.Image", canvas: "ImageDraw.ImageDraw", scale: int) -> None:
    match shape:
        case Line():
            width = max(1, round(shape.width * scale))
            for part in _dashes(np.asarray(shape.points, dtype=float), shape.dash):
                canvas.line(_flat(part, scale), _colour(shape.colour), width, joint="curve")
        case Area():
            points = np.asarray(shape.points, dtype=float)
            canvas.polygon(_flat(points, scale), _colour(shape.colour, shape.opacity))
        case Text():
            font = _font(shape.text, round(shape.size * scale))
            at = (shape.x * scale, shape.y * scale)
            stroke = shape.size * scale / 70 if shape.bold else 0
            colour = _colour(shape.colour)
            canvas.text(at, shape.text, colour, font, _ANCHORS[shape.anchor], stroke_width=stroke)
        case Picture():
            image.paste(_scaled(shape, scale), (round(shape.x * scale), round(shape.y * scale)))


def _scaled(picture: Picture, scale: int) -> "Image.Image":
    from PIL import Image

    size = round(picture.width * scale), round(picture.height * scale)
    pixels = Image.fromarray(picture.pixels)
    return pixels.resize(size, Image.Resampling.NEAREST)


def _colour(name: str, opacity: float = 1.0) -> tuple[int, ...]:
    code = light_colours()[name]
    return (*bytes.fromhex(code[1:]), round(255 * opacity))


def _flat(points: npt.NDArray[np.float64], scale: int) -> list[tuple[float, float]]:
    return [(x, y) for x, y in (points * scale).tolist()]


def _dashes(
    points: npt.NDArray[np.float64], dash: Sequence[float]
) -> Iterator[npt.NDArray[np.float64]]:
    """The pieces of a line [n, 2] that are drawn."""
    if not dash:
        yield points
        return
    steps = np.hypot(*np.diff(points, axis=0).T)
    along = np.concatenate([[0.0], np.cumsum(steps)])  # way to each point
    start = 0.0
    for drawn, length in zip(cycle((True, False)), cycle(dash)):
        end = min(start + length, along[-1])
        if drawn:
            inner = along[(along > start) & (along < end)]
            at = np.concatenate([[start], inner, [end]])
            yield np.stack([np.interp(at, along, values) for values in points.T], axis=1)
        start = end
        if end >= along[-1]:
            return


def _font(text: str, size: int) -> Any:
    """The first typeface that knows every sign of the text."""
    fonts = _fonts(size)
    return next((font for font in fonts if _knows(font, text)), fonts[0])


@cache
def _fonts(size: int) -> list[Any]:
    """Pillow's own, then those that the system has."""
    from PIL import ImageFont

    found: list[Any] = [ImageFont.load_default(size)]
    for name in _SYSTEM_FONTS:
        with suppress(OSError):
            found.append(ImageFont.truetype(name, size))
    return found


def _knows(font: Any, text: str) -> bool:
    missing = bytes(font.getmask(_NO_SIGN))
    return all(bytes(font.getmask(sign)) != missing for sign in set(text) - {" "})
