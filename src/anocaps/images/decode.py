"""From image files to arrays of bytes: decoding, turning upright, fitting to one size.

Training, scoring and the runtime without torch all read through here, with Pillow and NumPy
alone, so that a file is the same array everywhere. Files come from anywhere, so nothing is taken
on trust: few formats, told by their content; a cap on pixels, read from the header before
anything is decoded; no file is half read; every failure is a sentence that names the file.

What is decided here once, for every image:
- Transparent parts are laid on white: it is what most viewers show behind a cut-out, and the one
  background must never depend on the colours that a program left under full transparency.
- Of several frames or pages the first is read. Colour profiles are not applied.
- 16-bit grey becomes 8 bits by one division for all images, never by the range of the one at
  hand: what counts as white is part of the fit, since cameras put 12 bits into such files.
- One filter, Pillow's bilinear: it averages over areas when it shrinks, so that fine texture does
  not turn into false patterns, is smooth when it enlarges, never overshoots an edge, and works in
  whole numbers, so that it rounds alike on every machine.
- The bars of a letterbox have the image's own colour, the median of its outermost pixels: bars
  of one colour for all would be the strongest edges in a picture with another background.
- A JPEG of more than twice the size it is needed in is decoded at a half, a quarter or an eighth
  by its own transform: several times faster, and within a few grey levels of the long way.
- Pictures that are decoded at the same time share room for the pixels of one of the largest.
"""

import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.Image import Resampling, Transpose

from anocaps.base.errors import InputError
from anocaps.base.text import shown
from anocaps.base.threads import Room, in_order

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".tif", ".tiff", ".bmp", ".webp"})
MOST_PIXELS = 64_000_000  # below Pillow's own limit, so that one sentence is said, not two
SIXTEEN_BITS = 65535

How = Literal["resize", "letterbox", "crop"]
Bars = Literal["black", "border"]
Pixels = NDArray[np.uint8]

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
_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F"})
_COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})

_room = Room(MOST_PIXELS)  # of pixels; to decode one takes 4 to 24 bytes

# MOST_PIXELS decides. Appended: whoever made this warning an error still gets one.
warnings.simplefilter("ignore", Image.DecompressionBombWarning, append=True)


class ImageError(InputError):
    """One image file cannot be used; the sentence names it and says what to do."""


@dataclass(frozen=True)
class Fit:
    """How files become images of one size; stored with the model that was trained on them."""

    height: int
    width: int
    channels: int  # 1 grey, 3 colour
    how: How  # resize: squeeze; letterbox: fit in, bars around; crop: fill, cut the centre
    white: int = SIXTEEN_BITS  # and all above it, in 16-bit grey
    bars: Bars = "black"  # of a letterbox, as older models have it; border: the image's own colour

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 4096:
                raise InputError(f"fit: {name} is a number of pixels, 1 to 4096, not {value!r}")
        if type(self.channels) is not int or self.channels not in (1, 3):
            raise InputError(f"fit: channels is 1 (grey) or 3 (colour), not {self.channels!r}")
        if self.how not in get_args(How):
            raise InputError(f"fit: how is one of {', '.join(get_args(How))}, not {self.how!r}")
        if type(self.white) is not int or not 255 <= self.white <= SIXTEEN_BITS:
            raise InputError(f"fit: white is a 16-bit value, 255 to 65535, not {self.white!r}")
        if self.bars not in get_args(Bars):
            raise InputError(f"fit: bars is one of {', '.join(get_args(Bars))}, not {self.bars!r}")


def describe(fit: Fit) -> str:
    """One sentence for the user."""
    size = f"{fit.width}×{fit.height} pixels"
    bars = "black bars around"
    if fit.bars == "border":
        bars = "bars around in the colour of their own borders"
    way = {
        "resize": f"resized to {size}",
        "letterbox": f"scaled to fit into {size} with {bars}",
        "crop": f"scaled to fill {size} and cut at the centre",
    }
    white = f" In 16-bit grey, {fit.white:,} is white." if fit.white != SIXTEEN_BITS else ""
    colour = "grey" if fit.channels == 1 else "colour"
    return f"Images are read in {colour} and {way[fit.how]}.{white}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a file's header says."""

    path: Path
    format: str  # one of FORMATS
    mode: str  # Pillow's name for the kind of pixels
    width: int  # upright
    height: int
    colour: bool  # the pixels may hold colour; whether they do is not in the header
    several: bool  # more frames or pages than the one that is read

    @property
    def deep(self) -> bool:
        """Grey of 16 bits; of colour, Pillow hands out the upper 8 bits alone."""
        return self.mode.startswith("I")


# ── one file ─────────────────────────────────────────────────────────────────────────────────


def look(path: Path) -> Seen:
    """The header alone; no pixel is decoded."""
    with _opened(path) as image:
        width, height = image.size
        # Pillow has turned a TIFF by itself, and would decode a PNG in search of EXIF data.
        known = image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)
        if known and _orientation(image) >= 5:
            width, height = height, width
        return Seen(
            path,
            "JPEG" if image.format == "MPO" else str(image.format),  # phones: JPEG with extras
            image.mode,
            width,
            height,
            image.mode not in _GREY,
            bool(getattr(image, "is_animated", False)),
        )


def read_image(path: Path, fit: Fit) -> Pixels:
    """H×W×C bytes, as `fit` says."""
    with _opened(path) as image:
        pixels = image.width * image.height
        enough = 2 * max(fit.height, fit.width)
        image.draft(None, (enough, enough))
        if "progressive" not in image.info:  # such a JPEG is held whole, however small it becomes
            pixels = image.width * image.height
        with _room.taken(pixels):
            flat = _in_mode("L" if fit.channels == 1 else "RGB", _flat(image, path, fit.white))
            return np.array(_fitted(flat, fit)).reshape(fit.height, fit.width, fit.channels)


def largest_value(path: Path) -> int:
    """Of the pixels of a file that is `deep`."""
    with _opened(path) as image, _room.taken(image.width * image.height):
        image.load()
        return int(_deep(image, path).max())


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The file with its header read and found acceptable; what fails inside is a ImageError."""
    name = shown(path)
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            os.scandir(path).close()  # a folder that cannot be opened has that to say instead
            raise ImageError(f"{name} is a folder; give the images in it.")
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
            raise ImageError(f"{name} is not an ordinary file; remove it or copy its content.")
        if status.st_size == 0:
            raise ImageError(f"{name} is empty (0 bytes); remove or replace it.")
        # Opened here, not by Pillow, which would map the file and crash if it shrinks meanwhile.
        with open(path, "rb") as file, Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            yield image
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"{name} has more than {MOST_PIXELS // 1_000_000} million pixels; make it smaller."
        ) from error
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{name} is not an image in one of the formats {', '.join(FORMATS)}, or its beginning "
            "is damaged; remove or convert it."
        ) from error
    except Exception as error:  # decoders fail on damaged files in every possible way
        if isinstance(error, OSError) and error.errno is not None:
            raise ImageError(
                f"{name} cannot be opened ({os.strerror(error.errno)}); check that it is still "
                "there and that you may read it."
            ) from error
        why = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(
            f"{name} is damaged or cut short ({why}); remove it or replace it by a good copy."
        ) from error


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; broken EXIF data count as none, as they do in viewers."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # the parser, too, fails in every possible way
        return 1
    return value if value in _TURNS else 1


def _flat(image: Image.Image, path: Path, white: int) -> Image.Image:
    """Decoded, 8 bits, on white, upright, in mode L or RGB."""
    image.load()
    turn = _TURNS.get(_orientation(image))
    mode = image.mode
    if mode not in _GREY | _COLOUR:
        raise ImageError(f"{shown(path)} has {mode} pixels; save it as grey or RGB.")
    if mode[0] in "IF":
        image = _eight_bits(image, path, white)
    elif image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, _in_mode("RGBA", image))
    image = _in_mode("L" if mode in _GREY else "RGB", image)
    return image if turn is None else image.transpose(turn)


def _in_mode(mode: str, image: Image.Image) -> Image.Image:
    """Where nothing is to do, Pillow would make a copy."""
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image, path: Path, white: int) -> Image.Image:
    """16-bit grey, and float grey from 0 to 1, as bytes; the same value always the same byte."""
    deep = _deep(image, path)
    if image.mode == "F":
        scaled = np.rint(deep / (1 / 255)).astype(np.uint8)
    else:  # rounded in whole numbers
        whole = np.minimum(deep, white).astype(np.uint32) * 255
        scaled = ((whole + white // 2) // white).astype(np.uint8)
    if (clear := image.info.get("transparency")) is not None:  # the value that is transparent
        scaled[deep == clear] = 255
    return Image.fromarray(scaled)


def _deep(image: Image.Image, path: Path) -> NDArray[Any]:
    """H×W values from 0 to 65535, or to 1 in floats."""
    deep = np.asarray(image)
    largest = 1 if image.mode == "F" else SIXTEEN_BITS
    if not (deep.min() >= 0 and deep.max() <= largest):  # also where there is a NaN
        raise ImageError(
            f"{shown(path)} has {'float' if image.mode == 'F' else '32-bit'} pixels outside "
            f"0 to {largest}, so which is black and which white is not known; save it with 8 or "
            "16 bits."
        )
    return deep


def _fitted(image: Image.Image, fit: Fit) -> Image.Image:
    size = (fit.width, fit.height)
    across, down = image.width / fit.width, image.height / fit.height
    if fit.how == "resize" or across == down:
        return image.resize(size, Resampling.BILINEAR)
    if fit.how == "crop":
        scale = min(across, down)
        width, height = min(image.width, fit.width * scale), min(image.height, fit.height * scale)
        left, top = (image.width - width) / 2, (image.height - height) / 2
        return image.resize(size, Resampling.BILINEAR, (left, top, left + width, top + height))
    scale = max(across, down)
    width, height = (max(1, round(side / scale)) for side in image.size)
    inner = image.resize((width, height), Resampling.BILINEAR)
    whole = Image.new(image.mode, size, 0 if fit.bars == "black" else _border_colour(inner))
    whole.paste(inner, ((fit.width - width) // 2, (fit.height - height) // 2))
    return whole


def _border_colour(image: Image.Image) -> int | tuple[int, ...]:
    """The median of the outermost pixels, of each channel."""
    pixels = np.asarray(image)  # H×W or H×W×3
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    colour = np.median(border, axis=0).astype(np.uint8).tolist()
    return tuple(colour) if isinstance(colour, list) else int(colour)


# ── many files ───────────────────────────────────────────────────────────────────────────────


def look_at(files: Iterable[Path]) -> Iterator[tuple[Path, Seen | ImageError]]:
    """Each file with what its header says, or with its error."""
    return in_order(lambda file: (file, _or_error(look, file)), files)


def read_images(
    files: Iterable[Path], fit: Fit, ahead: int = 64
) -> Iterator[tuple[Path, Pixels | ImageError]]:
    """Each file with its pixels H×W×C, or with its error: so many read ahead of those in use."""
    return in_order(lambda f: (f, _or_error(lambda path: read_image(path, fit), f)), files, ahead)


Result = TypeVar("Result")


def _or_error(work: Callable[[Path], Result], file: Path) -> Result | ImageError:
    try:
        return work(file)
    except ImageError as error:
        return error
