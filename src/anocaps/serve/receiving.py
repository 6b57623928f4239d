"""Uploads: images of one request, and whole folders in parts that can be resumed.

Small images of a request stay in memory, all other bytes go to files as they arrive, so that memory
does not grow with the size of an upload. A name that a client sends is data: it is checked part by
part before it becomes a path.
"""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fastapi import HTTPException
from python_multipart.multipart import MultipartParser, parse_options_header

from anocaps.base.errors import InputError
from anocaps.base.files import make_folder, move
from anocaps.base.text import printable
from anocaps.images.decode import EXTENSIONS

MOST_IMAGES = 256  # of one request
_LONGEST_NAME, _DEEPEST = 200, 8  # bytes of a name, names in a path
_LONGEST_HEADERS = 2_000  # bytes of the headers of one part
_IN_MEMORY = 262_144  # bytes of the images of one request; the others go to files
_ALL_IN_MEMORY = 32_000_000  # the same of all requests together
_FREE = 200_000_000  # bytes that stay free on the disk
_BAD_NAME = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|\ud800-\udfff]')  # what some systems refuse


class Room:
    """The bytes of memory that are left for images of requests."""

    def __init__(self) -> None:
        self.left = _ALL_IN_MEMORY


class Parts:
    """Receives a multipart body. Files stay in memory or go to STEM-0, STEM-1, …; fields are
    ignored."""

    def __init__(self, content_type: str, stem: Path, most_bytes: int, room: Room) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise HTTPException(415, "Send images as multipart/form-data.")
        self.stem, self.most_bytes, self.room = stem, most_bytes, room
        self.names: list[str] = []  # of the files, as the client names them
        self.files: list[tuple[Path, bytes | None]] = []  # with their bytes, if these are in memory
        self._kept = 0  # bytes in memory, taken from the room
        self._file: IO[bytes] | None = None
        self._headers: dict[bytes, bytes] = {}
        self._name, self._content = bytearray(), bytearray()  # of the header that is received
        self._header_bytes = self._written = 0  # of the part
        calls: Any = {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, a, b: self._add(self._name, data[a:b]),
            "on_header_value": lambda data, a, b: self._add(self._content, data[a:b]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._open,
            "on_part_data": self._write,
            "on_part_end": self._close,
        }
        self._parser = MultipartParser(options[b"boundary"], calls)

    async def receive(self, stream: AsyncIterator[bytes]) -> None:
        try:
            async for chunk in stream:
                self._parser.write(chunk)
            self._parser.finalize()
            if self._file is not None:
                raise ValueError("its last line is missing")
        except ValueError as error:  # also of the parser
            raise HTTPException(400, f"The multipart body is broken: {error}") from error
        finally:
            if self._file is not None:
                self._file.close()

    def discard(self) -> None:
        """Remove the files on disk, and give the room back."""
        self.room.left += self._kept
        self._kept = 0
        for path, content in self.files:
            if content is None:
                path.unlink(missing_ok=True)

    def _begin(self) -> None:
        self._headers, self._header_bytes = {}, 0

    def _add(self, buffer: bytearray, data: bytes) -> None:
        self._header_bytes += len(data)
        if self._header_bytes > _LONGEST_HEADERS:
            raise HTTPException(431, "The headers of a part are too long.")
        buffer += data

    def _end_header(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._content)
        self._name, self._content = bytearray(), bytearray()

    def _open(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"filename" not in options:
            return
        if len(self.names) >= MOST_IMAGES:
            raise HTTPException(413, f"At most {MOST_IMAGES} images fit into one request.")
        self._written = 0
        self._file = BytesIO()
        self.files.append((self.stem.with_name(f"{self.stem.name}-{len(self.files)}"), b""))
        self.names.append(printable(options[b"filename"].decode("utf-8", "replace"))[:1000])

    def _write(self, data: bytes, start: int, end: int) -> None:
        if self._file is None:
            return
        self._written += end - start
        if self._written > self.most_bytes:
            raise HTTPException(413, f"An image has more than {self.most_bytes:,} bytes.")
        if isinstance(self._file, BytesIO):
            if self._kept + end - start <= _IN_MEMORY and end - start <= self.room.left:
                self._take(end - start)
            else:
                path, begun = self.files[-1][0], self._file.getvalue()
                self.files[-1] = path, None
                self._take(-len(begun))
                self._file = open(path, "wb")  # noqa: SIM115
                self._file.write(begun)
        self._file.write(data[start:end])

    def _take(self, count: int) -> None:
        self._kept += count
        self.room.left -= count

    def _close(self) -> None:
        if isinstance(self._file, BytesIO):
            self.files[-1] = self.files[-1][0], self._file.getvalue()
        if self._file is not None:
            self._file.close()
            self._file = None


# ── folders, in parts ────────────────────────────────────────────────────────────────────────


def safe_name(name: str) -> str:
    """The name, if every system accepts it for a file or folder; else an error."""
    hidden = name.startswith(".") or name.endswith(".") or name != name.strip()
    too_long = len(name.encode("utf-8", "replace")) > _LONGEST_NAME
    if not name or hidden or too_long or _BAD_NAME.search(name):
        raise InputError(f"{printable(name)[:100]}: rename it, this name is not accepted")
    return name


def safe_path(folder: Path, name: str) -> Path:
    """Where an uploaded file goes: inside the folder, whatever the client calls it."""
    parts = PurePosixPath(name).parts
    if not 1 <= len(parts) <= _DEEPEST or name.startswith("/"):
        raise InputError(f"{printable(name)[:100]}: not a path inside a folder")
    for part in parts:
        safe_name(part)
    path = folder.joinpath(*parts)
    if path.suffix.lower() not in EXTENSIONS:
        raise InputError(f"{printable(parts[-1])}: not an image file")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise InputError(f"{printable(name)[:100]}: leads outside its folder")
    return path


def received(folder: Path, name: str, size: int) -> int:
    """How many bytes of a file have arrived; `size` if it is complete."""
    path = safe_path(folder, name)
    if path.is_file() and path.stat().st_size == size:
        return size
    part = _part_of(path)
    arrived = part.stat().st_size if part.is_file() else 0
    return arrived if arrived < size else 0  # a crash left it without its name: send it again


async def receive_part(
    folder: Path, name: str, offset: int, size: int, stream: AsyncIterator[bytes]
) -> int:
    """Append bytes to a file, which gets its name when complete; return the bytes so far.

    They survive a system crash: a client that is told of them need not send them again.
    """
    path = safe_path(folder, name)
    await asyncio.to_thread(make_folder, path.parent)
    check_room(folder, size)
    part = _part_of(path)
    with open(part, "r+b" if part.exists() else "w+b") as file:
        file.seek(0, os.SEEK_END)
        if offset > file.tell():
            raise HTTPException(409, f"{file.tell()} bytes have arrived; go on from there.")
        file.seek(offset)
        async for chunk in stream:
            if file.tell() + len(chunk) > size:
                raise HTTPException(413, "The file is longer than announced.")
            file.write(chunk)
        file.truncate()
        total = file.tell()
        file.flush()
        await asyncio.to_thread(os.fsync, file.fileno())
    if total == size:
        await asyncio.to_thread(move, part, path)
    return total


def check_room(folder: Path, size: int) -> None:
    """Refuse to write these bytes if the disk would be nearly full."""
    if shutil.disk_usage(folder).free < _FREE + size:
        raise HTTPException(507, "The disk of the server is full.")


def _part_of(path: Path) -> Path:
    """The name of an incomplete file: hidden, so that no walk takes it for an image."""
    return path.with_name(f".{path.name}.part")
