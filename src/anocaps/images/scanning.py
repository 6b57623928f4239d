"""Small questions about the bytes of an open file."""

import os
import re
from collections.abc import Iterator
from typing import IO

_BLOCK = 1 << 18
# The header of a JPEG scan: marker, length for 1 to 4 bands, and their number. Other data hold the
# marker by chance, but hardly the header.
SCAN = re.compile(rb"\xff\xda\0(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
SCAN_LENGTH = 5


def length_of(file: IO[bytes]) -> int:
    """Bytes of an open file."""
    back = file.tell()
    length = file.seek(0, os.SEEK_END)
    file.seek(back)
    return length


def places(file: IO[bytes], pattern: re.Pattern[bytes], longest: int, length: int) -> Iterator[int]:
    """Where a pattern of `longest` bytes occurs in the next `length` bytes of a file."""
    begin = file.tell()
    for block in _blocks(file, length, longest - 1):
        yield from (begin + found.start() for found in pattern.finditer(block))
        begin += len(block) - (longest - 1)


def count_scans(file: IO[bytes]) -> int | None:
    """How many JPEG scans begin in the rest of a file; None if a whole block is padding."""
    found = 0
    for block in _blocks(file, length_of(file), SCAN_LENGTH - 1):
        if len(block) >= _BLOCK and not block.lstrip(b"\xff"):
            return None
        found += len(SCAN.findall(block))
    return found


def _blocks(file: IO[bytes], length: int, overlap: int) -> Iterator[bytes]:
    """The next `length` bytes of a file; a block begins with the last bytes of the one before."""
    end = b""
    while length > 0 and (part := file.read(min(length, _BLOCK))):
        length -= len(part)
        part = end + part
        yield part
        end = part[-overlap:]
