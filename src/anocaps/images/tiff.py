"""What a TIFF file costs: its directories before Pillow reads them, then its strips or tiles.

The directories are walked as Pillow does: the first one, and the EXIF and GPS directories that it
names. Later pages are not read.
"""

import re
import struct
from collections.abc import Sequence
from itertools import islice
from typing import IO, Any

import numpy as np

from anocaps.images.scanning import SCAN, SCAN_LENGTH, length_of, places
from anocaps.images.slowcode import has_many_blocks, is_old_lzw

MOST_PARTS = 262_144  # strips or tiles; 64 million pixels in the smallest legal tiles are 250,000
_MOST_TAGS = 1_000  # of one directory; cameras write about 100
_MOST_DIRECTORIES = 16  # Pillow reads 4: those of the first page, EXIF, GPS and interoperability
_MOST_VALUES = 1_000_000  # numbers in all tags; a profile's tables have 200,000
_MOST_FRACTIONS = 10_000  # Pillow makes a slow object of each
_MOST_TEXT = 32_000_000  # bytes of all other tags
_MOST_PADDED = 96_000_000  # pixels of all tiles with the parts outside the image
_PART_BYTES = 450  # Pillow's entry for one part of an uncompressed file
_MOST_READ = 800_000_000  # bytes of all parts in the file
_MOST_SHARED = 20_000_000  # bytes of all parts, if parts share data
MOST_SECONDS = 3.0  # to decode JPEG of several scans, deflate or LZMA, on one core
_MOST_SCANS = 1_000_000  # of all parts of a TIFF; most JPEG files have one
_TOO_MUCH = 1 << 40  # bytes: refused

_STARTS = (b"II*\0", b"MM\0*", b"II\0*", b"MM*\0", b"II+\0", b"MM\0+")
_ORIENTATION, _ROWS, _BITS, _COMPRESSION, _PHOTOMETRIC = 274, 278, 258, 259, 262
_WIDTH, _HEIGHT, _TILE_WIDTH, _TILE_HEIGHT = 256, 257, 322, 323
_OFFSETS, _LENGTHS = (273, 324), (279, 325)
_FURTHER = (34665, 34853, 40965)  # EXIF, GPS and interoperability directories
_TEXT = (1, 2, 7)  # types whose values are bytes
_FRACTION = (5, 10)
_INTEGER = {3: "H", 4: "L", 6: "b", 8: "h", 9: "l", 13: "L", 16: "Q"}
_JPEG = (6, 7)
_LZW = 5
_MOST_LZW = 5_000_000  # bytes of all parts, if the code may be slow
_DEFLATE = (8, 32946)
_LZMA, _ZSTANDARD = 34925, 50000
_FRAME = 5  # bytes: marker, length for up to 6 bands, bits; parts.py says why it is refused
_ARITHMETIC = re.compile(rb"\xff[\xc9-\xcb\xcd-\xcf]\0[\x0b\x0e\x11\x14\x17\x1a][\x08\x0c]")
_YCBCR = 6


def tiff_problem(file: IO[bytes]) -> str | None:
    """Why a file has too many parts to be opened; None if it has not, or is no TIFF."""
    head = file.read(16)
    if head[:4] not in _STARTS or len(head) < 16:
        return None
    order = "<" if head[:2] == b"II" else ">"
    big = head[2] == 43  # as Pillow decides
    number, entry, place = ("Q", "HHQ8s", 8) if big else ("H", "HHL4s", 4)
    (first,) = struct.unpack_from(order + ("Q" if big else "L"), head, place)
    waiting, seen = [first], set()
    values = fractions = text = 0
    while waiting:
        if (begin := waiting.pop()) in seen or not 0 <= begin < 1 << 62:
            continue
        seen.add(begin)
        if len(seen) > _MOST_DIRECTORIES:
            return f"has more than {_MOST_DIRECTORIES} TIFF directories of metadata"
        file.seek(begin)
        start = file.read(struct.calcsize(number))
        if len(start) < struct.calcsize(number):
            continue
        (tags,) = struct.unpack(order + number, start)
        if tags > _MOST_TAGS:
            return f"has more than {_MOST_TAGS:,} TIFF tags"
        layout = struct.Struct(order + entry)
        data = file.read(tags * layout.size)
        data = data[: len(data) // layout.size * layout.size]
        for tag, kind, count, value in layout.iter_unpack(data):
            if kind in _TEXT:
                text += count
            elif kind in _FRACTION:
                fractions += count
            else:
                values += count
            if tag in _OFFSETS and count > MOST_PARTS:
                return f"has more than {MOST_PARTS:,} strips or tiles"
            if tag in _FURTHER and kind in _INTEGER and count == 1:
                waiting.append(_integer(file, order, kind, value))
        if values > _MOST_VALUES or fractions > _MOST_FRACTIONS or text > _MOST_TEXT:
            return "has TIFF tags with too many values"
    return None


def _integer(file: IO[bytes], order: str, kind: int, value: bytes) -> int:
    """The only value of a tag, which is stored elsewhere if it is too long."""
    layout = struct.Struct(order + _INTEGER[kind])
    if layout.size > len(value):
        file.seek(struct.unpack(order + "L", value)[0])
        value = file.read(layout.size).ljust(layout.size, b"\0")
    return int(layout.unpack_from(value)[0])


def tiff_bytes(image: Any, stored: int) -> int:
    """Memory to decode an opened TIFF: Pillow's image, and a rotated copy or one decoded part."""
    tags = image.tag_v2
    bands = len(image.getbands())
    turned = 2 if tags.get(_ORIENTATION, 1) in range(2, 9) else 1
    width, height = tags[_WIDTH], tags[_HEIGHT]
    if not any(tile.codec_name == "libtiff" for tile in image.tile):
        boxes = (tile.extents for tile in image.tile)
        area = sum((right - left) * (bottom - top) for left, top, right, bottom in boxes)
        if area > (bands + 1) * width * height:  # parts are decoded again and again
            return _TOO_MUCH
        return stored * turned + _PART_BYTES * len(image.tile)
    wide, high = width, min(int(tags.get(_ROWS) or height), height)
    if _TILE_WIDTH in tags or _TILE_HEIGHT in tags:
        wide = max(int(tags.get(_TILE_WIDTH, width)), 1)
        high = max(int(tags.get(_TILE_HEIGHT, height)), 1)
    across, down = -(-width // wide), -(-height // high)
    parts = across * down
    lengths = _lengths(image, parts)
    if parts > MOST_PARTS or parts * wide * high > _MOST_PADDED:
        return _TOO_MUCH
    if sum(lengths) > min(max(_MOST_SHARED, length_of(image.fp)), _MOST_READ):
        return _TOO_MUCH
    least = 32 if tags.get(_PHOTOMETRIC) == _YCBCR else 8 * bands  # libtiff makes RGBA of it
    per_pixel = max(sum(tags.get(_BITS, (8,))), least) / 8
    if tags.get(_COMPRESSION) in _JPEG:
        if (scans := _jpeg_scans(image, lengths)) is None:
            return _TOO_MUCH
        if seconds_of_scans(sum(lengths), sum(scans) * wide * high) > MOST_SECONDS:
            return _TOO_MUCH
        if max(scans, default=0) > 1:  # the coefficients of a part are kept
            per_pixel += 2 * bands
    if _is_slow(image, lengths, int(parts * wide * high * per_pixel)):
        return _TOO_MUCH
    if tags.get(_COMPRESSION) in (_LZMA, _ZSTANDARD):
        per_pixel *= 2  # the decoder's window may be as large as a part
    read = max(lengths, default=0)  # libtiff holds a part as it is in the file, too
    return int(max(stored * turned, stored + wide * high * per_pixel + read))


def _tiled(tags: Any) -> bool:
    return _OFFSETS[0] not in tags


def _lengths(image: Any, parts: int) -> Sequence[int]:
    """Bytes of each part in the file. libtiff reads one of unknown length to the file's end."""
    tags = image.tag_v2
    found: Sequence[int] = tags.get(_LENGTHS[_tiled(tags)], ())
    if parts == 1 and (not found or 0 in found):
        return (length_of(image.fp),) * max(1, len(found))
    return found


def _jpeg_scans(image: Any, lengths: Sequence[int]) -> list[int] | None:
    """How many scans each part has; None if there are far too many, or arithmetic coding."""
    tags, file = image.tag_v2, image.fp
    parts = list(zip(tags.get(_OFFSETS[_tiled(tags)], ()), lengths, strict=False))
    if not parts:
        return []
    begins, ends = np.array([(begin, begin + length) for begin, length in parts]).T
    first, length = int(begins.min()), int(ends.max() - begins.min())
    back = file.tell()
    file.seek(first)
    arithmetic = any(True for _ in places(file, _ARITHMETIC, _FRAME, length))
    file.seek(first)
    found = list(islice(places(file, SCAN, SCAN_LENGTH, length), _MOST_SCANS + 1))
    file.seek(back)
    if arithmetic or len(found) > _MOST_SCANS:
        return None
    counts: list[int] = (np.searchsorted(found, ends) - np.searchsorted(found, begins)).tolist()
    return counts


def _is_slow(image: Any, lengths: Sequence[int], unpacked: int) -> bool:
    """Whether parts of these lengths may take more than MOST_SECONDS. JPEG is judged elsewhere."""
    tags, stored = image.tag_v2, sum(lengths)
    packing = tags.get(_COMPRESSION)
    parts = zip(tags.get(_OFFSETS[_tiled(tags)], ()), lengths, strict=False)
    if packing in _DEFLATE:
        return seconds_to_inflate(stored, unpacked) > MOST_SECONDS
    if packing == _LZMA:
        return 27e-9 * stored + 4e-9 * unpacked > MOST_SECONDS
    if packing == _LZW:
        return stored > _MOST_LZW and is_old_lzw(image.fp, parts)
    return packing == _ZSTANDARD and has_many_blocks(image.fp, parts)


def seconds_of_scans(stored: int, scanned: float) -> float:
    """At most what a JPEG of several scans takes: bytes of the file, pixels of all its scans.

    Both factors bound all files of benchmarks/decoding.py, with scans repeated.
    """
    return 14e-9 * stored + 2.4e-9 * scanned


def seconds_to_inflate(stored: int, unpacked: int) -> float:
    """The most time that deflated pixels take. Blocks without content are the slowest."""
    return 38e-9 * stored + 4.2e-9 * unpacked
