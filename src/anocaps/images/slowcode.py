"""Find compressed data of a TIFF that decode far more slowly than their size suggests."""

from collections.abc import Iterable
from typing import IO

MOST_BLOCKS = 100_000  # of Zstandard in all parts; each may take 3 µs
_FRAME, _SKIPPED = 0xFD2FB528, 0x184D2A5  # magic numbers; the second without its last digit

Part = tuple[int, int]  # place and length


def is_old_lzw(file: IO[bytes], parts: Iterable[Part]) -> bool:
    """Whether any part has LZW code of before TIFF 5.0, which takes 200 ns a byte."""
    back = file.tell()
    found = False
    for begin, length in parts:
        file.seek(begin)
        start = file.read(min(2, length))
        found = found or (len(start) == 2 and start[0] == 0 and bool(start[1] & 1))
    file.seek(back)
    return found


def has_many_blocks(file: IO[bytes], parts: Iterable[Part]) -> bool:
    """Whether all parts together have more than MOST_BLOCKS blocks of Zstandard."""
    back = file.tell()
    left = MOST_BLOCKS
    for begin, length in parts:
        left -= _blocks(file, begin, begin + length, left + 1)
    file.seek(back)
    return left < 0


def _blocks(file: IO[bytes], place: int, end: int, most: int) -> int:
    """The number of blocks from a place on; it stops counting at `most`."""
    found = 0
    while place + 5 <= end and found < most:
        file.seek(place)
        start = file.read(8)
        magic = int.from_bytes(start[:4], "little")
        if magic >> 4 == _SKIPPED:
            place += 8 + int.from_bytes(start[4:], "little")
            found += 1
            continue
        if magic != _FRAME:
            break
        flags = start[4]
        single = flags >> 5 & 1  # segment: the window has no field of its own
        place += 6 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
        last = 0
        while not last and place + 3 <= end and found < most:
            file.seek(place)
            head = int.from_bytes(file.read(3), "little")
            last = head & 1
            place += 3 + (1 if head >> 1 & 3 == 1 else head >> 3)  # 1: one byte, repeated
            found += 1
        place += 4 * (flags >> 2 & 1)  # checksum
    return found
