"""From image files to arrays of bytes: decode, turn upright, fit to one size.

Training, scoring and the runtime without torch all read files here, with Pillow and NumPy alone,
so that a file is the same array everywhere. No file is trusted: few formats, told by their
content; limits on memory (limits.py), checked before anything is decoded; no file is half read;
every error is one sentence that names the file.

Rules for every image:
- Transparent parts become white, as in most viewers. The colours that a program left under full
  transparency never count.
- Only the first frame or page is read. Colour profiles are not applied.
- 16-bit grey becomes 8 bits by one division for all images, never by the range of one image. What
  counts as white is part of the fit, since cameras put 12 bits into such files.
- One filter, Pillow's bilinear. It averages over areas when it shrinks, never overshoots an edge,
  and works in whole numbers, so that it rounds alike on every machine.
- The bars of a letterbox have the image's own colour, the median of its outermost pixels. Bars of
  one colour for all would be the strongest edges in an image with another background.
- A JPEG of more than twice the needed size is decoded at a half, a quarter or an eighth by its own
  transform. This is several times faster, and within a few grey levels of the long way.
- A decoded image is converted and shrunk in strips. Images that are decoded at the same time share
  the memory that one of them may take.
"""

import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.Image import Resampling, Transpose

from anocaps.base.errors import InputError
from anocaps.base.text import shown
from anocaps.base.threads import Room, in_order
from anocaps.images.limits import MOST_BYTES, MOST_PIXELS, bytes_to_decode, size_problem

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
_SIDEWAYS = (
    Transpose.TRANSPOSE, Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90,
)  # fmt: skip
_GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F"})
_COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})

_STRIP = 1 << 20  # pixels converted at a time

_memory = Room(MOST_BYTES)

# Our own limits decide. Appended, so that a user who made this warning an error still gets one.
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
    bars: Bars = "black"  # of a letterbox; border: the image's own colour

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
        size = image.size
        enough = 2 * max(fit.height, fit.width)
        image.draft(None, (enough, enough))
        with _decoded(image, path, size):
            fitted = _fitted(image, path, fit)
            return np.array(fitted).reshape(fit.height, fit.width, fit.channels)


def largest_value(path: Path) -> int:
    """The largest pixel of a file that is `deep`."""
    with _opened(path) as image, _decoded(image, path, image.size):
        return max(int(_deep(strip, path).max()) for strip in _strips(image))


@contextmanager
def _decoded(image: Image.Image, path: Path, size: tuple[int, int]) -> Iterator[None]:
    """Decode an opened image, whose file has this size, once there is memory for it."""
    needed = bytes_to_decode(image, *size)
    if needed > MOST_BYTES:
        raise ImageError(
            f"{shown(path)} takes more than {MOST_BYTES // 1_000_000} MB or too long to decode; "
            "make it smaller or save it in another format."
        )
    with _memory.taken(needed):
        image.load()
        yield


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The file with its header read and found acceptable; an error inside is an ImageError."""
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


def _strips(image: Image.Image) -> Iterator[Image.Image]:
    """The image from top to bottom, a few rows at a time."""
    rows = max(1, _STRIP // image.width)
    if rows >= image.height:
        yield image
        return
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height)))


def _flat(image: Image.Image, path: Path, fit: Fit) -> Image.Image:
    """8 bits, on white, in mode L or RGB."""
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
    """Where nothing is to do, Pillow would make a copy."""
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image, path: Path, white: int) -> Image.Image:
    """16-bit grey, and float grey from 0 to 1, as bytes; the same value always the same byte."""
    deep = _deep(image, path)
    if image.mode == "F":
        return Image.fromarray(np.rint(deep / (1 / 255)).astype(np.uint8))
    return Image.fromarray(_byte_of(white, image.info.get("transparency"))[deep])


@lru_cache(maxsize=8)
def _byte_of(white: int, clear: int | None) -> Pixels:
    """The byte for each 16-bit value, rounded in whole numbers; `clear` is transparent."""
    values = np.minimum(np.arange(SIXTEEN_BITS + 1), white) * 255
    table = ((values + white // 2) // white).astype(np.uint8)
    if clear is not None and 0 <= clear <= SIXTEEN_BITS:
        table[clear] = 255
    return table


def _deep(image: Image.Image, path: Path) -> NDArray[Any]:
    """H×W values from 0 to 65535, or to 1 in floats."""
    deep = np.asarray(image)
    largest = 1 if image.mode == "F" else SIXTEEN_BITS
    if not (deep.min() >= 0 and deep.max() <= largest):  # also where there is a NaN
        raise ImageError(
            f"{shown(path)} has {'float' if image.mode == 'F' else '32-bit'} pixels outside "
            f"0 to {largest}, so black and white are not known; save it with 8 or 16 bits."
        )
    return deep


def _fitted(image: Image.Image, path: Path, fit: Fit) -> Image.Image:
    """A decoded image, upright, in the size and mode of the fit."""
    turn = _TURNS.get(_orientation(image))
    upright = image.size[::-1] if turn in _SIDEWAYS else image.size
    size, box = _scaled(upright, fit)
    if turn in _SIDEWAYS:  # `box` lies in the centre, so that a flip changes nothing
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
    """The size of an upright image before bars are added, and the part of it that is used."""
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
    image: Image.Image, path: Path, fit: Fit, size: tuple[int, int], box: Box
) -> Image.Image:
    """Converted and made narrower strip by strip, then made lower: as Pillow does it at once."""
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
