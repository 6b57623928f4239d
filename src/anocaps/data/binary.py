"""Read plain or gzipped files in chunks. A damaged file raises a DataError.

The content, not the name, shows whether a file is gzipped: some browsers unpack a .gz file.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anocaps.base.errors import DataError

_CHUNK = 1 << 20


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch or copy it again.") from error


def is_gzip(path: Path) -> bool:
    with _reading(path), open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def chunks(path: Path) -> Iterator[bytes]:
    """The decompressed content, in chunks."""
    zipped = is_gzip(path)
    with _reading(path), open(path, "rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if zipped else raw
        while chunk := file.read(_CHUNK):
            yield chunk


def first(path: Path, count: int) -> bytes:
    """The first `count` bytes of the content."""
    head = next(chunks(path), b"")[:count]
    if len(head) < count:
        raise DataError(f"{path} ends inside its header; fetch or copy it again.")
    return head


def whole(path: Path, size: int) -> bytearray:
    """The content, which must be `size` bytes long.

    A plain file of another length is not read. A longer gzipped file is not read to its end.
    """
    content = bytearray()
    if is_gzip(path) or path.stat().st_size == size:
        for chunk in chunks(path):
            content += chunk
            if len(content) > size:
                break
    if len(content) != size:
        raise DataError(
            f"{path} does not hold the {size} bytes that its header states; fetch it again."
        )
    return content
