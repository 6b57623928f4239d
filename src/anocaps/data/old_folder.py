"""Images of the user's own: a file, a folder, or a folder with one sub-folder per class.

Files come from anywhere, so nothing is taken on trust: few formats, told by their content; a cap
on pixels, read from the header before anything is decoded; every bad file reported by name.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anocaps.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"})
MOST_PIXELS = 64_000_000
_NAMED_AT_MOST = 10


class PlainFolder(NamedTuple):
    images: NDArray[np.uint8]  # N×H×W if all are grey, else N×H×W×3
    labels: NDArray[np.int64]  # N
    class_names: tuple[str, ...]
    files: tuple[Path, ...]  # N


def list_images(path: Path) -> list[Path]:
    """The file itself, or all images below a folder, sorted; hidden ones are left out."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path} does not exist; give an image or a folder of images.")
    found = []
    for folder, inner, names in os.walk(path):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(folder, name) for name in names if _looks_like_image(name)]
    return sorted(found)


def _looks_like_image(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in EXTENSIONS


def read_image(path: Path, size: int | None = None) -> NDArray[np.uint8]:
    """H×W if grey, else H×W×3; upright, on white; the first frame of several.

    With `size`, squeezed to size×size by averaging over areas.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty (0 bytes); remove or replace it.")
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            pixels = _as_grey_or_rgb(image)
        if size is not None:
            pixels = pixels.resize((size, size), Image.Resampling.BOX)
        return np.array(pixels)
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            f"{path} has more than {MOST_PIXELS // 1_000_000} million pixels; make it smaller."
        ) from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"{path} is not an image in one of the formats {', '.join(FORMATS)}; "
            "remove or convert it."
        ) from error
    except Exception as error:  # decoders fail on damaged files in every possible way
        raise DataError(f"{path} cannot be read ({error}); remove or replace it.") from error


def _as_grey_or_rgb(image: "Image.Image") -> "Image.Image":
    """Upright and in mode L or RGB."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        wide = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("32-bit pixels without a known range, save it with 8 or 16 bits")
    grey = image.mode in ("1", "L", "LA", "La")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("L" if grey else "RGB")


def load_folder(path: Path, size: int | None = None) -> PlainFolder:
    """All images of a folder; each sub-folder is a class, a flat folder is one class.

    With `size`, every image is squeezed to size×size; without, all must have one size.
    """
    classes = _classes(path)
    files = [file for members in classes.values() for file in members]
    labels = np.repeat(np.arange(len(classes)), [len(members) for members in classes.values()])
    arrays = _read_all(files, path, size)
    if any(array.ndim == 3 for array in arrays):
        arrays = [a if a.ndim == 3 else np.repeat(a[..., None], 3, axis=2) for a in arrays]
    return PlainFolder(np.stack(arrays), labels.astype(np.int64), tuple(classes), tuple(files))


def _classes(path: Path) -> dict[str, list[Path]]:
    """Class name → its files, both sorted."""
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; give one with a sub-folder of images per class.")
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    folders = [entry for entry in entries if entry.is_dir()]
    loose = [entry for entry in entries if entry.is_file() and _looks_like_image(entry.name)]
    if loose and folders:
        raise DataError(
            f"{path} holds both images ({loose[0].name}) and sub-folders ({folders[0].name}); "
            "move the images into the sub-folder of their class."
        )
    if loose:
        return {path.resolve().name: loose}
    if not folders:
        raise DataError(
            f"{path} holds no images and no sub-folders; put one sub-folder of "
            f"{', '.join(FORMATS)} images per class into it."
        )
    classes = {folder.name: list_images(folder) for folder in folders}
    for name, members in classes.items():
        if not members:
            raise DataError(
                f"{path / name} holds no {', '.join(FORMATS)} images; add some or remove it."
            )
    return classes


def _read_all(files: Sequence[Path], path: Path, size: int | None) -> list[NDArray[np.uint8]]:
    arrays, bad = [], []
    for file in files:
        try:
            arrays.append(read_image(file, size))
        except DataError as error:
            bad.append(str(error).removesuffix("."))
    if bad:
        more = f"; and {len(bad) - _NAMED_AT_MOST} more" if len(bad) > _NAMED_AT_MOST else ""
        raise DataError(
            f"{len(bad)} of {len(files)} images in {path} cannot be used: "
            f"{'; '.join(bad[:_NAMED_AT_MOST])}{more}."
        )
    for file, array in zip(files, arrays):
        if array.shape[:2] != arrays[0].shape[:2]:
            raise DataError(
                f"{files[0]} is {_size(arrays[0])} pixels but {file} is {_size(array)}; "
                "resize the images to one size or ask for a size."
            )
    return arrays


def _size(array: NDArray[np.uint8]) -> str:
    return f"{array.shape[1]}×{array.shape[0]}"
