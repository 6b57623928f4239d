"""Estimate from its header how much memory and time an image file takes to decode.

A small file can claim a large image. Files above these limits are refused before a pixel is
decoded. Within the limits, decoding takes less than 400 MB and, on one core of a CPU of 2020, less
than 3 s.
The factors below were measured with Pillow 12.
"""

import os
from typing import IO, Any

MOST_PIXELS = 64_000_000  # below Pillow's own limit, so that users see our message
LONGEST_SIDE = 65_535  # as in JPEG; resizing a longer row would need gigabytes
MOST_BYTES = 400_000_000
_MOST_SCANS = 20  # of a JPEG with MOST_PIXELS; each scan decodes all pixels

# bytes per pixel; 4 in all other modes
_STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
_RUN_LENGTH = 100  # counted as bytes per pixel: Pillow decodes a run-length BMP in slow Python
_TIFF_ORIENTATION, _TIFF_ROWS, _TIFF_TILE_HEIGHT, _TIFF_BITS = 274, 278, 323, 258
_JPEG_SCAN = b"\xff\xda"
_JPEG_ALONE = frozenset((0x00, 0x01, *range(0xD0, 0xDA)))  # markers without a segment


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
    if image.format == "WEBP":  # four copies and the file
        return 5 * stored
    if image.format in ("JPEG", "MPO"):
        return stored + _jpeg_coefficients(image, width * height)
    if image.format == "TIFF":
        return _tiff_bytes(image, stored)
    if image.format == "PNG" and "16" in str(image.tile[0].args):  # 2 bytes per value
        return max(stored, 2 * pixels * len(image.getbands()))
    if image.format == "BMP" and image.tile[0].codec_name == "bmp_rle":
        length = _length(image.fp)
        return max(pixels, length // 2) * _RUN_LENGTH
    return stored


def _length(file: IO[bytes]) -> int:
    back = file.tell()
    length = file.seek(0, os.SEEK_END)
    file.seek(back)
    return length


def _jpeg_coefficients(image: Any, pixels: int) -> int:
    """Bytes of the coefficients that a JPEG with several scans keeps, even in draft mode."""
    components, scans = _jpeg_scans(image.fp)
    if components == len(image.layer) and "progressive" not in image.info:
        return 0
    if scans * pixels > _MOST_SCANS * MOST_PIXELS:
        return 2 * MOST_BYTES
    factors: list[int] = [across * down for _, across, down, _ in image.layer]
    return 2 * pixels * sum(factors) // max(factors)


def _jpeg_scans(file: IO[bytes]) -> tuple[int, int]:
    """Components of the first scan, and the number of scans, which may include thumbnails."""
    back = file.tell()
    file.seek(2)
    while len(marker := file.read(2)) == 2 and marker != _JPEG_SCAN:
        if marker[0] != 0xFF or marker[1] == 0xFF:  # padding: search byte by byte
            file.seek(-1, 1)
        elif marker[1] not in _JPEG_ALONE:  # a length below 2 would move back
            file.seek(max(int.from_bytes(file.read(2), "big") - 2, 0), 1)
    components, scans, end = (file.read(3) or b"\0")[-1], 1, b""
    while part := file.read(1 << 20):
        scans += (end + part).count(_JPEG_SCAN)
        end = part[-1:]
    file.seek(back)
    return components, scans


def _tiff_bytes(image: Any, stored: int) -> int:
    """Pillow's image, and a rotated copy or one decoded strip or row of tiles."""
    tags = image.tag_v2
    rows = tags.get(_TIFF_TILE_HEIGHT) or tags.get(_TIFF_ROWS) or image.height
    bits = tags.get(_TIFF_BITS, (8,))
    per_pixel = max(sum(bits), 8 * len(image.getbands())) / 8
    turned = 2 if tags.get(_TIFF_ORIENTATION, 1) in range(2, 9) else 1
    whole = any(tile.codec_name == "libtiff" for tile in image.tile)
    strip = min(int(rows), image.height) * image.width * per_pixel if whole else 0
    return int(max(stored * turned, stored + strip))
