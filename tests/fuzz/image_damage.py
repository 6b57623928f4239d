"""Damage that knows image files: JPEG frames, tags of a TIFF, checksums of a PNG."""

import re
import struct
import zlib
from random import Random

_FRAME = re.compile(rb"\xff[\xc0-\xcf](\0.\x08)(....)", re.DOTALL)
_SIDES = (1, 64, 8_000, 65_535)
_POINTERS = (34665, 34853, 40965)  # to EXIF, GPS and interoperability directories
_PARTS = (273, 278, 279)  # offsets, rows and lengths of strips


def reframed(random: Random, content: bytes) -> bytes:
    """JPEG data, perhaps in a TIFF, whose frames claim another coding or size."""
    marker = random.choice((0xC0, 0xC2, random.randrange(0xC0, 0xD0)))
    side = random.choice(_SIDES) if random.random() < 0.3 else 0

    def changed(found: re.Match[bytes]) -> bytes:
        size = struct.pack(">HH", side, side) if side else found[2]
        return bytes([0xFF, marker]) + found[1] + size

    found = _FRAME.sub(changed, content)
    if side and content.startswith(b"II*\0"):
        for tag in (256, 257, 278):  # width, height, rows of a strip
            found = _with_tag(found, tag, tag, 1, side)
    return found


def retagged(random: Random, content: bytes) -> bytes:
    """A TIFF that names a directory anywhere in it, or has other strips."""
    value = random.choice((0, 1, 8, len(content), random.randrange(len(content))))
    tags = _tags(content)
    if random.random() < 0.5:
        return _with_tag(content, random.choice(tags), random.choice(_POINTERS), 1, value)
    tag = random.choice(_PARTS)
    return _with_tag(content, tag, tag, random.choice((0, 1, 1, 2)), value)


def _tags(content: bytes) -> list[int]:
    """The tags of the first directory, as Pillow writes them."""
    (begin,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, begin)
    return [struct.unpack_from("<H", content, begin + 2 + 12 * n)[0] for n in range(count)]


def _with_tag(content: bytes, old: int, tag: int, count: int, value: int) -> bytes:
    """The file with one tag replaced by another, which has a 32-bit value."""
    (begin,) = struct.unpack_from("<I", content, 4)
    found = bytearray(content)
    place = begin + 2 + 12 * _tags(content).index(old)
    struct.pack_into("<HHII", found, place, tag, 4, count, value)
    return bytes(found)


def with_crc(content: bytes) -> bytes:
    """A PNG whose chunks have their right checksums, as far as it has chunks."""
    if not content.startswith(b"\x89PNG"):
        return content
    found, place = bytearray(content), 8
    while place + 12 <= len(found):
        (length,) = struct.unpack_from(">I", found, place)
        end = place + 8 + length
        if end + 4 > len(found):
            break
        struct.pack_into(">I", found, end, zlib.crc32(found[place + 4 : end]))
        place = end + 4
    return bytes(found)
