"""Small questions about the bytes of an open file."""

import os
import re
from collections.abc import Iterator
from typing import IO

_BLOCK = 1 << 18


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


def count_in(file: IO[bytes], word: bytes, padding: bytes) -> int | None:
    """How often a word occurs in the rest of a file; None if a whole block is padding."""
    found = 0
    for block in _blocks(file, length_of(file), len(word) - 1):
        if len(block) >= _BLOCK and not block.lstrip(padding):
            return None
        found += block.count(word)
    return found


def _blocks(file: IO[bytes], length: int, overlap: int) -> Iterator[bytes]:
    """The next `length` bytes of a file; a block begins with the last bytes of the one before."""
    end = b""
    while length > 0 and (part := file.read(min(length, _BLOCK))):
        length -= len(part)
        part = end + part
        yield part
        end = part[-overlap:]
