"""Small questions about the bytes of an open file."""

import os
from typing import IO

_BLOCK = 1 << 18


def length_of(file: IO[bytes]) -> int:
    """Bytes of an open file."""
    back = file.tell()
    length = file.seek(0, os.SEEK_END)
    file.seek(back)
    return length


def count_in(
    file: IO[bytes], word: bytes, length: int | None = None, padding: bytes = b""
) -> int | None:
    """How often two bytes occur in the next `length` bytes of a file, or up to its end.

    None if a whole block consists of the byte `padding`.
    """
    left = length_of(file) if length is None else length
    found, end = 0, b""
    while left > 0 and (part := file.read(min(left, _BLOCK))):
        if padding and len(part) == _BLOCK and not part.lstrip(padding):
            return None
        found += (end + part).count(word)
        end = part[-1:]
        left -= len(part)
    return found
