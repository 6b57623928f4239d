"""Estimate from its header how much memory and time an image file takes to decode.

A small file can claim a large image. Files above these limits are refused before a pixel is
decoded. Files with too many parts are refused earlier (parts.py). Within the limits, decoding takes
less than 400 MB and, on one core of a CPU of 2020, less than 3 s.
benchmarks/decoding.py measures the costliest files. The factors were measured with Pillow 13.
"""

from typing import Any

from anocaps.images.parts import jpeg_scans, png_extra, png_pixels
from anocaps.images.scanning import length_of
from anocaps.images.tiff import (
    MOST_SECONDS,
    seconds_of_scans,
    seconds_to_inflate,
    tiff_bytes,
)
from anocaps.images.webp import huffman_groups

MOST_PIXELS = 64_000_000  # below Pillow's own limit, so that users see our message
LONGEST_SIDE = 65_535  # as in JPEG; resizing a longer row would need gigabytes
MOST_BYTES = 400_000_000

# bytes per pixel; 4 in all other modes
_STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
_WEBP_TABLES = 8_000_000  # bytes that the decoder takes beside its copies
_WEBP_GROUP = 21_000  # bytes of the tables of a group of codes, with the largest colour cache
_SCAN = 200  # counted as pixels: what a scan takes beside its pixels
_RUN_LENGTH = 100  # counted as bytes per pixel: Pillow decodes a run-length BMP in slow Python


def size_problem(width: int, height: int) -> str | None:
    """Why an image of this size is refused; None if it is not."""
    if width * height > MOST_PIXELS:
        return f"has more than {MOST_PIXELS // 1_000_000} million pixels"
    if max(width, height) > LONGEST_SIDE:
        return f"has a side of more than {LONGEST_SIDE:,} pixels"
    return None


def bytes_to_decode(image: Any, width: int, height: int) -> int:
    """Memory to decode an opened image. Width and height are those before draft mode."""
    pixels: int = image.width * image.height
    stored = pixels * _STORED.get(image.mode, 4)
    if image.format == "WEBP":  # four copies, the file and its metadata
        extra = sum(len(value) for value in image.info.values() if isinstance(value, bytes))
        extra += _WEBP_GROUP * (huffman_groups(image.fp) or 1)
        return 4 * stored + max(stored, length_of(image.fp)) + extra + _WEBP_TABLES
    if image.format in ("JPEG", "MPO"):
        return stored + _jpeg_coefficients(image, width * height)
    if image.format == "TIFF":
        return tiff_bytes(image, stored)
    if image.format == "PNG":
        if "16" in str(image.tile[0].args):  # 2 bytes per value
            stored = max(stored, 2 * pixels * len(image.getbands()))
        if seconds_to_inflate(png_pixels(image.fp), stored) > MOST_SECONDS:
            return 2 * MOST_BYTES
        return stored + png_extra(image.fp)
    if image.format == "BMP" and image.tile[0].codec_name == "bmp_rle":
        return max(pixels, length_of(image.fp) // 2) * _RUN_LENGTH
    return stored


def _jpeg_coefficients(image: Any, pixels: int) -> int:
    """Bytes of the coefficients that a JPEG with several scans keeps, even in draft mode."""
    if (found := jpeg_scans(image.fp)) is None:
        return 2 * MOST_BYTES
    components, scans = found
    if components == len(image.layer) and "progressive" not in image.info:
        return 0
    if seconds_of_scans(length_of(image.fp), scans * (pixels + _SCAN)) > MOST_SECONDS:
        return 2 * MOST_BYTES
    factors: list[int] = [across * down for _, across, down, _ in image.layer]
    return 2 * pixels * sum(factors) // max(factors)
