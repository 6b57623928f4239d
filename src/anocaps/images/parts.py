"""Count the parts of an image file before Pillow reads them.

Pillow walks over chunks, segments and tags in Python and keeps most of them. A few megabytes can
hold millions. Files with far more parts than any camera, scanner or editor writes are refused, and
JPEG files that are not baseline or progressive with Huffman coding. TIFF files are counted in
tiff.py.
"""

import os
from collections.abc import Iterator
from typing import IO

from anocaps.images.scanning import count_scans, length_of
from anocaps.images.tiff import tiff_problem

MOST_CHUNKS = 100_000  # of a PNG; libpng writes 64 million pixels of RGBA in 31,250
MOST_SEGMENTS = 10_000  # of a JPEG before its first scan, or chunks of a WebP
MOST_EXTRA = 32_000_000  # bytes besides the pixels: EXIF, XMP, profiles, comments
_MOST_PACKED = 64  # compressed texts and profiles of a PNG, each up to 1 MB unpacked
_MOST_EXIF = 4_000_000  # bytes
_MOST_EXIF_SEGMENTS = 100  # Pillow joins them one by one
_MOST_SKIPPED = 65_536  # bytes between the segments of a JPEG
_MOST_TABLES = 1_000_000  # bytes before the first scan of a JPEG; all tables take 2,000
_MOST_JPEG = 400_000_000  # bytes; the largest image of the best quality takes 150 million
_MOST_WEBP = 150_000_000  # bytes; Pillow holds the whole file twice
_LARGEST_BMP_HEADER = 124

_PNG, _JPEG, _BMP = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM"
_PACKED = frozenset((b"zTXt", b"iTXt", b"iCCP"))
_PIXELS = frozenset((b"IDAT", b"fdAT"))
_UNPACKED = 1 << 20  # Pillow's limit of bytes for one of _PACKED
_SCAN, _APP0, _APP1 = 0xDA, 0xE0, 0xE1
# Frames with lossless, hierarchical or arithmetic coding. After the end of arithmetic code, libjpeg
# goes on decoding: 20 kB take 8 s. Draft mode fails for lossless files.
_RARE = frozenset((0xC3, *range(0xC5, 0xD0)))
_ALONE = frozenset((0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE)))  # markers without a length


def parts_problem(file: IO[bytes]) -> str | None:
    """Why a file has too many parts to be read; None if it has not."""
    file.seek(0)
    start = file.read(16)
    file.seek(0)
    problem = None
    if start.startswith(_PNG):
        problem = _png_problem(file)
    elif start.startswith(_JPEG):
        problem = _jpeg_problem(file)
    elif start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        problem = _webp_problem(file)
    elif start.startswith(_BMP):
        if int.from_bytes(file.read(18)[14:], "little") > _LARGEST_BMP_HEADER:
            problem = f"has a BMP header of more than {_LARGEST_BMP_HEADER} bytes"
    else:
        problem = tiff_problem(file)
    file.seek(0)
    return problem


# ── PNG ──────────────────────────────────────────────────────────────────────────────────────


def _chunks(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Kind and length of the chunks of a PNG."""
    size = length_of(file)
    file.seek(len(_PNG))
    while len(head := file.read(8)) == 8:
        length = int.from_bytes(head[:4], "big")
        yield head[4:], min(length, size)  # a damaged length is not a large chunk
        if head[4:] == b"IEND":
            return
        file.seek(length + 4, os.SEEK_CUR)


def _png_problem(file: IO[bytes]) -> str | None:
    extra = packed = 0
    for chunks, (kind, length) in enumerate(_chunks(file), 1):
        packed += kind in _PACKED
        extra += 0 if kind in _PIXELS else length
        if chunks > MOST_CHUNKS:
            return f"has more than {MOST_CHUNKS:,} PNG chunks"
        if packed > _MOST_PACKED:
            return f"has more than {_MOST_PACKED} compressed texts or profiles"
        if extra > MOST_EXTRA or (kind == b"eXIf" and length > _MOST_EXIF):
            return _too_much_extra()
    return None


def png_pixels(file: IO[bytes]) -> int:
    """Bytes of the compressed pixels of a PNG."""
    back = file.tell()
    found = sum(length for kind, length in _chunks(file) if kind in _PIXELS)
    file.seek(back)
    return found


def png_extra(file: IO[bytes]) -> int:
    """Memory for the parts of a PNG that are not pixels, and for the data behind the pixels."""
    back = file.tell()
    extra = longest = 0
    for kind, length in _chunks(file):
        if kind in _PIXELS:
            longest = max(longest, length)  # Pillow reads the unused rest of a chunk at once
        else:
            extra += length + (_UNPACKED if kind in _PACKED else 0)
    file.seek(back)
    return 4 * extra + longest  # a character may take 4 bytes


# ── JPEG ─────────────────────────────────────────────────────────────────────────────────────


def _segments(file: IO[bytes]) -> Iterator[tuple[int, int, int]]:
    """Marker, length and the bytes skipped before it, up to the first scan of a JPEG.

    The file stands at the content of the segment, where the next one is searched from.
    """
    file.seek(2)
    while True:
        begin = file.tell()
        for most in (64, _MOST_SKIPPED + 2):
            file.seek(begin)
            part = file.read(most)
            rest = part[part.find(b"\xff") :].lstrip(b"\xff") if b"\xff" in part else b""
            if rest:
                break
        else:
            yield 0, 0, len(part)
            return
        marker, end = rest[0], len(part) - len(rest) + 1
        file.seek(begin + end)
        skipped = end - 2
        if marker in _ALONE or marker < 0xC0:
            yield marker, 0, skipped
            continue
        length = max(int.from_bytes(file.read(2), "big") - 2, 0)
        content = file.tell()
        yield marker, length, skipped
        if marker == _SCAN:
            return
        file.seek(content + length)


def _jpeg_problem(file: IO[bytes]) -> str | None:
    if length_of(file) > _MOST_JPEG:
        return f"is a JPEG of more than {_MOST_JPEG // 1_000_000} MB"
    skipped = extra = tables = exif = exifs = 0
    for segments, (marker, length, before) in enumerate(_segments(file), 1):
        if marker in _RARE:
            return "is a JPEG with arithmetic, lossless or hierarchical coding"
        skipped += before
        extra += length
        tables += length if marker < _APP0 else 0
        if marker == _APP1 and file.read(6) == b"Exif\0\0":
            exif += length
            exifs += 1
        if segments > MOST_SEGMENTS:
            return f"has more than {MOST_SEGMENTS:,} JPEG segments"
        if skipped > _MOST_SKIPPED:
            return f"has more than {_MOST_SKIPPED:,} unused bytes before the image"
        if tables > _MOST_TABLES:
            return f"has more than {_MOST_TABLES // 1_000_000} MB of JPEG tables"
        if extra > MOST_EXTRA or exif > _MOST_EXIF or exifs > _MOST_EXIF_SEGMENTS:
            return _too_much_extra()
    return None


def jpeg_scans(file: IO[bytes]) -> tuple[int, int] | None:
    """Components of the first scan, and the number of scans, which may include thumbnails.

    None if there is so much padding that the decoder, which starts each time at its first byte,
    would read it for seconds.
    """
    back = file.tell()
    last = [marker for marker, _, _ in _segments(file)][-1]
    components = (file.read(1) or b"\0")[0] if last == _SCAN else 0
    scans = count_scans(file)
    file.seek(back)
    return None if scans is None else (components, 1 + scans)


# ── WebP ─────────────────────────────────────────────────────────────────────────────────────


def _webp_problem(file: IO[bytes]) -> str | None:
    length = length_of(file)
    if length > _MOST_WEBP:
        return f"is a WebP of more than {_MOST_WEBP // 1_000_000} MB"
    file.seek(4)
    end = 8 + int.from_bytes(file.read(4), "little")
    file.seek(12)
    chunks = extra = 0
    while file.tell() < end and len(head := file.read(8)) == 8:
        chunks += 1
        size = min(int.from_bytes(head[4:], "little"), length)
        if head[:4] not in (b"VP8 ", b"VP8L", b"ALPH", b"ANMF"):
            extra += size
        if chunks > MOST_SEGMENTS:
            return f"has more than {MOST_SEGMENTS:,} WebP chunks"
        if extra > MOST_EXTRA or (head[:4] == b"EXIF" and size > _MOST_EXIF):
            return _too_much_extra()
        file.seek(size + size % 2, os.SEEK_CUR)
    return None


def _too_much_extra() -> str:
    return (
        f"has more than {MOST_EXTRA // 1_000_000} MB of metadata, "
        f"or {_MOST_EXIF // 1_000_000} MB of EXIF data"
    )
