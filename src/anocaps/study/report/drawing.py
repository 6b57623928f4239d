"""A drawing is a short list of shapes, so that one drawing serves the page, an SVG and a PNG file.

Lengths are in units of the SVG's view box, y grows downwards. Colours are names from style.css:
in the page they follow light and dark mode, in a file they are its light ones.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from anocaps.pages.embed import data_uri

Floats: TypeAlias = npt.NDArray[np.float64]
Anchor: TypeAlias = Literal["start", "middle", "end"]

_FONTS = "Helvetica, Arial, sans-serif"
_MOST_PIXELS = 1.2  # of the page, per unit


@dataclass(frozen=True)
class Line:
    points: npt.ArrayLike  # [n, 2]
    colour: str = "rule"
    width: float = 1.0
    dash: Sequence[float] = ()  # lengths of line and gap, in turn


@dataclass(frozen=True)
class Area:
    """A filled polygon."""

    points: npt.ArrayLike  # [n, 2]
    colour: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Text:
    x: float
    y: float  # of the base line
    text: str
    colour: str = "ink"
    size: float = 13.0
    anchor: Anchor = "start"
    bold: bool = False


@dataclass(frozen=True)
class Picture:
    x: float
    y: float
    width: float
    height: float
    pixels: npt.NDArray[np.uint8]  # H×W or H×W×3


@dataclass(frozen=True)
class Zone:
    """A rectangle that is seen only under the pointer, and then says something."""

    x: float
    y: float
    width: float
    height: float
    lines: Sequence[str]


Shape: TypeAlias = Line | Area | Text | Picture | Zone


@dataclass(frozen=True)
class Drawing:
    title: str  # for those who cannot see it
    width: float
    height: float
    shapes: Sequence[Shape]


def rectangle(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


@cache
def light_colours() -> dict[str, str]:
    """Name → #rrggbb: the first block of style.css."""
    style = files("anocaps.pages").joinpath("templates/style.css").read_text("utf-8")
    block = style[style.index(":root") : style.index("}")]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


def svg_for_page(drawing: Drawing) -> str:
    """To stand inside the page, in its colours and type."""
    widest = f'style="max-width:{_MOST_PIXELS * drawing.width:g}px"'
    return _svg(drawing, f'class="drawing" {widest}', [], lambda name: f"var(--{name})")


def svg_file(drawing: Drawing) -> str:
    """To stand alone, on white."""
    colours = light_colours()
    background = f'<rect width="100%" height="100%" fill="{colours["paper"]}"/>'
    size = f'width="{drawing.width:g}" height="{drawing.height:g}" font-family="{_FONTS}"'
    head = f'xmlns="http://www.w3.org/2000/svg" {size}'
    return _svg(drawing, head, [background], colours.__getitem__) + "\n"


def _svg(drawing: Drawing, head: str, first: list[str], colour: Callable[[str], str]) -> str:
    shapes = [_element(shape, colour) for shape in drawing.shapes]
    return (
        f'<svg {head} role="img" aria-label="{escape(drawing.title)}"'
        f' viewBox="0 0 {drawing.width:g} {drawing.height:g}">{"".join(first + shapes)}</svg>'
    )


def _element(shape: Shape, colour: Callable[[str], str]) -> str:
    match shape:
        case Line():
            dash = f' stroke-dasharray="{" ".join(map(str, shape.dash))}"' if shape.dash else ""
            return (
                f'<path d="{_path(shape.points)}" fill="none" stroke="{colour(shape.colour)}"'
                f' stroke-width="{shape.width:g}" stroke-linejoin="round"{dash}/>'
            )
        case Area():
            opacity = f' fill-opacity="{shape.opacity:g}"' if shape.opacity < 1 else ""
            return f'<path d="{_path(shape.points)}Z" fill="{colour(shape.colour)}"{opacity}/>'
        case Text():
            bold = ' font-weight="bold"' if shape.bold else ""
            return (
                f'<text x="{_short(shape.x)}" y="{_short(shape.y)}" font-size="{shape.size:g}"'
                f' text-anchor="{shape.anchor}" fill="{colour(shape.colour)}"{bold}>'
                f"{escape(shape.text)}</text>"
            )
        case Picture():
            return (
                f'<image {_box(shape)} href="{data_uri(shape.pixels)}"'
                ' preserveAspectRatio="none" style="image-rendering:pixelated"/>'
            )
        case Zone():
            said = escape("\n".join(shape.lines))
            return (
                f'<rect class="zone" {_box(shape)} fill="none" pointer-events="all">'
                f"<title>{said}</title></rect>"
            )


def _box(shape: Picture | Zone) -> str:
    values = {"x": shape.x, "y": shape.y, "width": shape.width, "height": shape.height}
    return " ".join(f'{name}="{_short(value)}"' for name, value in values.items())


def _path(points: npt.ArrayLike) -> str:
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in np.asarray(points).tolist())


def _short(value: float) -> str:
    """At most two decimals, and none that are zero."""
    return f"{round(value, 2):g}" if abs(value) < 1000 else f"{value:.0f}"
