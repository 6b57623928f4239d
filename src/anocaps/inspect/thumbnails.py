"""Images for a page: photos as small JPEGs, heat as a layer over them, and near-copies."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anocaps.inspect.overlays import layer
from anocaps.pages.embed import data_uri

Bytes = NDArray[np.uint8]

SIDE = 512  # pixels of the longer side of a photo
_LAYER = 128  # pixels of the longer side of a heatmap; it is smooth, so few are enough
_EXACT = 128  # an image of at most this many pixels a side may be a PNG
_SHORT_PNG = 4_000  # characters
_SMALL = 16  # pixels of a side, to compare photos
_NEAR = 4.0  # mean difference of near-copies, of 255


def address(pixels: NDArray[Any]) -> str:
    """A data address of H×W×C: an exact PNG if the image is small, else a JPEG."""
    pixels = _bytes(pixels)
    if max(pixels.shape[:2]) <= _EXACT:
        exact = data_uri(pixels)
        if len(exact) <= _SHORT_PNG:
            return exact
    image = _image(pixels)
    image.thumbnail((SIDE, SIDE))
    return _encoded(image, "JPEG", quality=80)


def layer_address(heat: NDArray[Any]) -> str:
    """A data address of heat h×w: coloured where it is hot, transparent elsewhere."""
    shown = Image.fromarray(layer(np.asarray(heat, dtype=np.float32)))
    shown.thumbnail((_LAYER, _LAYER))
    return _encoded(shown, "WEBP", quality=70)


def layer_size(width: int, height: int) -> tuple[int, int]:
    """Width and height of the heat that `layer_address` needs for a photo of this size."""
    scale = min(1, _LAYER / max(width, height))
    return max(1, round(scale * width)), max(1, round(scale * height))


def small(pixels: NDArray[Any]) -> Bytes:
    """256 bytes by which near-copies are found."""
    shrunk = _image(_bytes(pixels)).convert("L").resize((_SMALL, _SMALL), Image.Resampling.BOX)
    return np.asarray(shrunk).reshape(-1)


def near_copies(photos: Sequence[Bytes]) -> list[int]:
    """For each photo the index of the first photo that it is a near-copy of, or its own index."""
    firsts: list[int] = []
    found: list[int] = []
    known = np.empty((len(photos), _SMALL**2), np.int16)
    light = np.empty(len(photos))  # means; those of near-copies are at most _NEAR apart
    for place, photo in enumerate(photos):
        mean = float(photo.mean())
        likely = np.flatnonzero(np.abs(light[: len(firsts)] - mean) <= _NEAR)
        apart = np.abs(known[likely] - photo.astype(np.int16)).mean(axis=1)
        if len(likely) and apart.min() <= _NEAR:
            found.append(firsts[likely[apart.argmin()]])
            continue
        known[len(firsts)], light[len(firsts)] = photo, mean
        firsts.append(place)
        found.append(place)
    return found


def _image(pixels: Bytes) -> Image.Image:
    """Pixels as an image. Of a stereo pair (two channels), it shows the first."""
    return Image.fromarray(np.ascontiguousarray(pixels if pixels.shape[2] == 3 else pixels[..., 0]))


def _bytes(pixels: NDArray[Any]) -> Bytes:
    if pixels.dtype == np.uint8:
        return pixels
    return np.asarray(np.rint(255 * np.clip(pixels, 0, 1)), dtype=np.uint8)


def _encoded(image: Image.Image, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    code = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{code}"
