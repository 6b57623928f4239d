"""What a TIFF file costs: its directories before Pillow reads them, then its strips or tiles.

The directories are walked as Pillow does: the first one, and the EXIF and GPS directories that it
names. Later pages are not read.
"""

import struct
from collections.abc import Sequence
from typing import IO, Any

from anocaps.images.scanning import count_in

MOST_PARTS = 262_144  # strips or tiles; 64 million pixels in the smallest legal tiles are 250,000
_MOST_TAGS = 1_000  # of one directory; cameras write about 100
_MOST_VALUES = 1_000_000  # numbers in all tags; a profile's tables have 200,000
_MOST_FRACTIONS = 10_000  # Pillow makes a slow object of each
_MOST_TEXT = 32_000_000  # bytes of all other tags
_MOST_PADDED = 96_000_000  # pixels of all tiles with the parts outside the image
_PART_BYTES = 450  # Pillow's entry for one part of an uncompressed file
_MOST_READ = 800_000_000  # bytes of all parts in the file
MOST_SECONDS = 3.0  # to decode a JPEG of several scans, on one core
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
    if parts > MOST_PARTS or parts * wide * high > _MOST_PADDED or _read_again(image, parts):
        return _TOO_MUCH
    least = 32 if tags.get(_PHOTOMETRIC) == _YCBCR else 8 * bands  # libtiff makes RGBA of it
    per_pixel = max(sum(tags.get(_BITS, (8,))), least) / 8
    read = max(_lengths(tags), default=0)  # libtiff holds a part as it is in the file, too
    return int(max(stored * turned, stored + wide * high * per_pixel + read))


def _tiled(tags: Any) -> bool:
    return _OFFSETS[0] not in tags


def _lengths(tags: Any) -> Sequence[int]:
    """Bytes of each part in the file."""
    found: Sequence[int] = tags.get(_LENGTHS[_tiled(tags)], ())
    return found


def _read_again(image: Any, parts: int) -> bool:
    """Whether parts share so much data, or have so many JPEG scans, that decoding is slow."""
    tags = image.tag_v2
    offsets, lengths = tags.get(_OFFSETS[_tiled(tags)], ()), _lengths(tags)
    if sum(lengths) > _MOST_READ:
        return True
    if tags.get(_COMPRESSION) not in _JPEG or not offsets or not lengths:
        return False
    begin = min(offsets)
    end = max(start + length for start, length in zip(offsets, lengths, strict=False))
    back = image.fp.tell()
    image.fp.seek(begin)
    scans = count_in(image.fp, b"\xff\xda", end - begin) or 0
    image.fp.seek(back)
    scanned = scans * image.width * image.height / parts
    return seconds_of_scans(sum(lengths), scanned) > MOST_SECONDS


def seconds_of_scans(stored: int, scanned: float) -> float:
    """At most what a JPEG of several scans takes: bytes of the file, pixels of all its scans.

    Both factors bound all files of benchmarks/decoding.py, with scans repeated.
    """
    return 14e-9 * stored + 2.4e-9 * scanned
