"""Image files to arrays of bytes: decode, apply EXIF rotation, fit to one size.

Training, scoring and the runtime without torch all read files here, so that a file gives the same
array everywhere. This needs only Pillow and NumPy. No file is trusted. The content, not the name,
decides the format. Limits on memory (limits.py) are checked before decoding. A truncated file is an
error, and every error names its file.

Rules for every image:
- Transparent parts become white, as in most viewers. Colours under full transparency are ignored.
- Only the first frame or page is read. Colour profiles are not applied.
- 16-bit grey is divided by the same white value in all images. It is part of the fit, because many
  cameras store 12 bits in such files.
- Images are resized with Pillow's bilinear filter. It averages over areas and never overshoots an
  edge. It computes with integers, so that it rounds in the same way on every machine.
- The bars of a letterbox have the median colour of the image's outermost pixels. Bars of another
  colour would be the strongest edges of the image.
- A JPEG of more than twice the needed size is decoded at a half, a quarter or an eighth of its size
  (Pillow's draft mode). This is several times faster and changes pixels by a few grey levels.
- A decoded image is converted and resized in strips. All threads together use at most MOST_BYTES.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.Image import Resampling, Transpose

from anocaps.base.errors import InputError
from anocaps.base.heap import return_freed_memory
from anocaps.base.text import shown
from anocaps.base.threads import Budget
from anocaps.images.limits import MOST_BYTES, MOST_PIXELS, bytes_to_decode, size_problem
from anocaps.images.parts import parts_problem

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".tif", ".tiff", ".bmp", ".webp"})
SIXTEEN_BITS = 65535

How = Literal["resize", "letterbox", "crop"]
Bars = Literal["black", "border"]
Pixels = NDArray[np.uint8]
Box = tuple[float, float, float, float]  # left, top, right, bottom

_ORIENTATION = 0x0112  # the EXIF tag
_TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
_SIDEWAYS = tuple(_TURNS[orientation] for orientation in (5, 6, 7, 8))
_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F"})
_COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})

_STRIP = 1 << 20  # pixels converted at once

_LARGE = 1 << 26  # bytes of a decoded image

_memory = Budget(MOST_BYTES)


class ImageError(InputError):
    """One image file cannot be used."""


@dataclass(frozen=True)
class Fit:
    """How files become images of one size. The model file stores it."""

    height: int
    width: int
    channels: int  # 1 grey, 3 colour
    how: How  # resize: distort; letterbox: add bars; crop: keep the centre
    white: int = SIXTEEN_BITS  # 16-bit grey values from this one on are white
    bars: Bars = "black"  # colour of a letterbox's bars; border: that of the image's border

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 4096:
                raise InputError(f"fit: {name} must be 1 to 4096 pixels, not {value!r}")
        if type(self.channels) is not int or self.channels not in (1, 3):
            raise InputError(f"fit: channels must be 1 (grey) or 3 (colour), not {self.channels!r}")
        if self.how not in get_args(How):
            known = ", ".join(get_args(How))
            raise InputError(f"fit: how must be one of {known}, not {self.how!r}")
        if type(self.white) is not int or not 255 <= self.white <= SIXTEEN_BITS:
            raise InputError(f"fit: white must be 255 to 65535, not {self.white!r}")
        if self.bars not in get_args(Bars):
            raise InputError(f"fit: bars must be one of {get_args(Bars)}, not {self.bars!r}")


def describe(fit: Fit) -> str:
    """Sentences for the user."""
    size = f"{fit.width}×{fit.height} pixels"
    bars = "bars in the colour of their border" if fit.bars == "border" else "black bars"
    way = {
        "resize": f"resized to {size}",
        "letterbox": f"scaled to fit into {size} with {bars}",
        "crop": f"scaled to fill {size} and cropped at the centre",
    }
    white = f" In 16-bit grey, {fit.white:,} is white." if fit.white != SIXTEEN_BITS else ""
    colour = "grey" if fit.channels == 1 else "colour"
    return f"Images are read in {colour} and {way[fit.how]}.{white}"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an image file."""

    path: Path
    format: str  # one of FORMATS
    mode: str  # Pillow's name for the kind of pixels
    width: int  # upright
    height: int
    colour: bool  # a colour mode; the pixels may still be grey
    several: bool  # has several frames or pages; only the first is read

    @property
    def deep(self) -> bool:
        """Whether it is 16-bit grey. From 16-bit colour, Pillow returns only the upper 8 bits."""
        return self.mode.startswith("I")


# ── one file ─────────────────────────────────────────────────────────────────────────────────


def read_header(path: Path) -> Header:
    """Read the header without decoding pixels."""
    with _opened(path) as image:
        width, height = image.size
        # Pillow rotates a TIFF itself. In a PNG, it would decode pixels to search for EXIF data.
        known = image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)
        if known and _orientation(image) >= 5:
            width, height = height, width
        return Header(
            path,
            "JPEG" if image.format == "MPO" else str(image.format),  # phones write MPO
            image.mode,
            width,
            height,
            image.mode not in _GREY,
            bool(getattr(image, "is_animated", False)),
        )


def read_image(path: str | Path, fit: Fit, content: bytes | None = None) -> Pixels:
    """The pixels H×W×C of a file, fitted to one size. `content`: the file's bytes, if known."""
    with _opened(path, content) as image:
        size = image.size
        enough = 2 * max(fit.height, fit.width)
        image.draft(None, (enough, enough))
        with _decoded(image, path, size):
            fitted = _fitted(image, path, fit)
            return np.array(fitted).reshape(fit.height, fit.width, fit.channels)


def read_photo(path: Path, longest: int, white: int = SIXTEEN_BITS) -> Pixels:
    """A whole photo H×W×3 in its own aspect ratio, with at most `longest` pixels per side."""
    header = read_header(path)
    scale = min(1, longest / max(header.width, header.height))
    width, height = (max(1, round(scale * side)) for side in (header.width, header.height))
    return read_image(path, Fit(height, width, 3, "resize", white))


def place_of(size: tuple[int, int], fit: Fit) -> tuple[Box, Box]:
    """The box of a photo (width, height) that is used, and its box in the fitted image."""
    (width, height), used = _scaled(size, fit)
    left, top = (fit.width - width) // 2, (fit.height - height) // 2
    return used, (left, top, left + width, top + height)


def largest_value(path: Path) -> int:
    """The largest pixel of a file that is `deep`."""
    with _opened(path) as image, _decoded(image, path, image.size):
        return max(int(_deep(strip, path).max()) for strip in _strips(image))


@contextmanager
def _decoded(image: Image.Image, path: str | Path, size: tuple[int, int]) -> Iterator[None]:
    """Wait for enough memory, then decode an opened image. `size` is the size in the file."""
    needed = bytes_to_decode(image, *size)
    if needed > MOST_BYTES:
        raise ImageError(
            f"{shown(path)} takes more than {MOST_BYTES // 1_000_000} MB or too much time to "
            "decode; make it smaller or save it in another format."
        )
    with _memory.taken(needed):
        try:
            image.load()
            yield
        finally:
            image.close()
            if needed > _LARGE:  # else each thread would keep as much
                return_freed_memory()


def _size(path: str | Path) -> int:
    """Size of a regular file in bytes. Any other file is an error."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        os.scandir(path).close()  # raises if the folder cannot be opened
        raise ImageError(f"{shown(path)} is a folder; give the images in it.")
    if not stat.S_ISREG(status.st_mode):  # a pipe would block forever
        raise ImageError(f"{shown(path)} is not a regular file; remove it or copy its content.")
    return status.st_size


@contextmanager
def _opened(path: str | Path, content: bytes | None = None) -> Iterator[Image.Image]:
    """Open a file and check its header. Every error in the block becomes an ImageError."""
    name = shown(path)
    try:
        if (_size(path) if content is None else len(content)) == 0:
            raise ImageError(f"{name} is empty (0 bytes); remove or replace it.")
        # given a path, Pillow would map the file into memory and crash if the file shrinks
        data = open(path, "rb") if content is None else BytesIO(content)  # noqa: SIM115
        with data as file:
            if problem := parts_problem(file):
                raise ImageError(f"{name} {problem}; save it again with an image editor.")
            with Image.open(file, formats=FORMATS) as image:
                if problem := size_problem(image.width, image.height):
                    raise ImageError(f"{name} {problem}; make it smaller.")
                yield image
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"{name} has more than {MOST_PIXELS // 1_000_000} million pixels; make it smaller."
        ) from error
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{name} is not an image in one of the formats {', '.join(FORMATS)}, or its header is "
            "damaged; remove or convert it."
        ) from error
    except Exception as error:  # decoders raise errors of any class for damaged files
        if isinstance(error, OSError) and error.errno is not None:
            raise ImageError(
                f"{name} cannot be opened ({os.strerror(error.errno)}); check that it exists and "
                "that you may read it."
            ) from error
        why = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(
            f"{name} is damaged or cut short ({why}); remove it or replace it with a good copy."
        ) from error


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8. It is 1 if the EXIF data is broken, as in viewers."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # the parser raises errors of any class
        return 1
    return value if value in _TURNS else 1


def _strips(image: Image.Image) -> Iterator[Image.Image]:
    """The image in strips of a few rows, from top to bottom."""
    rows = max(1, _STRIP // image.width)
    if rows >= image.height:
        yield image
        return
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height)))


def _flat(image: Image.Image, path: str | Path, fit: Fit) -> Image.Image:
    """The image in mode L or RGB, 8 bits, on a white background."""
    mode = image.mode
    if mode not in _GREY | _COLOUR:
        raise ImageError(f"{shown(path)} has {mode} pixels; save it as grey or RGB.")
    if mode[0] in "IF":
        image = _eight_bits(image, path, fit.white)
    elif image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, _in_mode("RGBA", image))
    image = _in_mode("L" if mode in _GREY else "RGB", image)
    return _in_mode("L" if fit.channels == 1 else "RGB", image)


def _in_mode(mode: str, image: Image.Image) -> Image.Image:
    """Convert, but do not copy an image that has this mode already."""
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image, path: str | Path, white: int) -> Image.Image:
    """16-bit grey, or float grey from 0 to 1, as bytes."""
    deep = _deep(image, path)
    if image.mode == "F":
        return Image.fromarray(np.rint(deep / (1 / 255)).astype(np.uint8))
    return Image.fromarray(_byte_of(white, image.info.get("transparency"))[deep])


@lru_cache(maxsize=8)
def _byte_of(white: int, clear: int | None) -> Pixels:
    """A table from 16-bit values to bytes. The value `clear` is transparent, so it is white."""
    values = np.minimum(np.arange(SIXTEEN_BITS + 1), white) * 255
    table = ((values + white // 2) // white).astype(np.uint8)
    if clear is not None and 0 <= clear <= SIXTEEN_BITS:
        table[clear] = 255
    return table


def _deep(image: Image.Image, path: str | Path) -> NDArray[Any]:
    """The values H×W: integers from 0 to 65535, or floats from 0 to 1."""
    deep = np.asarray(image)
    largest = 1 if image.mode == "F" else SIXTEEN_BITS
    if not (deep.min() >= 0 and deep.max() <= largest):  # also true for NaN
        raise ImageError(
            f"{shown(path)} has {'float' if image.mode == 'F' else '32-bit'} pixels outside "
            f"0 to {largest}; save it with 8 or 16 bits."
        )
    return deep


def _fitted(image: Image.Image, path: str | Path, fit: Fit) -> Image.Image:
    """The decoded image, upright, in the size and mode of the fit."""
    turn = _TURNS.get(_orientation(image))
    upright = image.size[::-1] if turn in _SIDEWAYS else image.size
    size, box = _scaled(upright, fit)
    if turn in _SIDEWAYS:  # a flip does not move the box, which is centred
        size, box = size[::-1], (box[1], box[0], box[3], box[2])
    inner = _shrunk(image, path, fit, size, box)
    if turn is not None:
        inner = inner.transpose(turn)
    if inner.size == (fit.width, fit.height):
        return inner
    bars = 0 if fit.bars == "black" else _border_colour(inner)
    whole = Image.new(inner.mode, (fit.width, fit.height), bars)
    whole.paste(inner, ((fit.width - inner.width) // 2, (fit.height - inner.height) // 2))
    return whole


def _scaled(size: tuple[int, int], fit: Fit) -> tuple[tuple[int, int], Box]:
    """The size of the scaled image without bars, and the box of the upright image that it shows."""
    width, height = size
    across, down = width / fit.width, height / fit.height
    if fit.how == "resize" or across == down:
        return (fit.width, fit.height), (0, 0, width, height)
    if fit.how == "crop":
        scale = min(across, down)
        used = min(width, fit.width * scale), min(height, fit.height * scale)
        left, top = (width - used[0]) / 2, (height - used[1]) / 2
        return (fit.width, fit.height), (left, top, left + used[0], top + used[1])
    scale = max(across, down)
    return (max(1, round(width / scale)), max(1, round(height / scale))), (0, 0, width, height)


def _shrunk(
    image: Image.Image, path: str | Path, fit: Fit, size: tuple[int, int], box: Box
) -> Image.Image:
    """Convert and resize like Pillow: first the width, strip by strip, then the height."""
    left, top, right, bottom = box
    narrow = None
    done = 0
    for strip in _strips(image):
        flat = _flat(strip, path, fit)
        if strip is image:
            return flat.resize(size, Resampling.BILINEAR, box)
        across = (left, 0, right, flat.height)
        part = flat.resize((size[0], flat.height), Resampling.BILINEAR, across)
        narrow = narrow or Image.new(part.mode, (size[0], image.height))
        narrow.paste(part, (0, done))
        done += flat.height
    assert narrow is not None
    return narrow.resize(size, Resampling.BILINEAR, (0, top, size[0], bottom))


def _border_colour(image: Image.Image) -> int | tuple[int, ...]:
    """The median of the outermost pixels, per channel."""
    pixels = np.asarray(image)  # H×W or H×W×3
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    colour = np.median(border, axis=0).astype(np.uint8).tolist()
    return tuple(colour) if isinstance(colour, list) else int(colour)
