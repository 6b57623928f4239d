"""Fetch image files from addresses that fsspec knows, with a limit on the bytes held at once.

The first bytes of several files are fetched together, and most images end there. The rest of larger
ones is fetched within a budget of memory, which all threads share. HTTP is read as a stream: a
server may ignore which bytes were asked for, and send gigabytes.
"""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from io import BytesIO
from typing import Any

from anocaps.base.text import shown
from anocaps.base.threads import Budget
from anocaps.images.decode import ImageError
from anocaps.images.limits import MOST_BYTES

_FIRST = 2**20  # bytes of each file that are fetched together with those of others
_PIECE = 2**22  # bytes of a larger file that are fetched at once
_TRIES = 3  # of an address that cannot be read
_FINAL = (FileNotFoundError, PermissionError, ImportError, ValueError)  # not worth another try

_held = Budget(MOST_BYTES)  # for files with more than the first bytes


def is_address(name: str) -> bool:
    return "://" in name


def system_of(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it. Listings are not kept in memory."""
    import fsspec

    fs, path = fsspec.core.url_to_fs(address, use_listings_cache=False)
    return fs, path


def why(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def fetched(addresses: Sequence[str]) -> Generator[bytes | ImageError]:
    """The content of each address in order, or why it cannot be read.

    Use each before the next one is drawn: until then, it counts as held.
    """
    begun = _begin(addresses)
    try:
        for name in addresses:
            with ExitStack() as held:
                yield _content(name, begun.pop(0), held)
    finally:
        for each in begun:
            if not isinstance(each, Exception):
                each.close()


def _content(name: str, begun: "_Begun | Exception", held: ExitStack) -> bytes | ImageError:
    """The whole file, for which `held` takes memory."""
    for left in reversed(range(_TRIES)):
        try:
            if isinstance(begun, Exception):
                raise begun
            if (content := begun.whole(held)) is not None:
                return content
            break
        except Exception as error:  # drivers raise errors of their own kinds
            held.close()
            if not left or isinstance(error, _FINAL):
                return ImageError(
                    f"{shown(name)} cannot be read ({why(error)}); check that it exists."
                )
        (begun,) = _begin([name])
    most = f"{MOST_BYTES // 1_000_000} MB"
    return ImageError(f"{shown(name)} has more than {most}; make it smaller.")


def _begin(addresses: Sequence[str]) -> "list[_Begun | Exception]":
    """Fetch the first bytes of each file, together."""
    found: dict[int, _Begun | Exception] = {}
    by_system: dict[Any, list[tuple[int, str]]] = {}
    for place, name in enumerate(addresses):
        try:
            fs, path = system_of(name)
            by_system.setdefault(fs, []).append((place, path))
        except Exception as error:  # an unknown protocol, a driver that is not installed
            found[place] = error
    for fs, pairs in by_system.items():
        places, paths = zip(*pairs)
        kind = _Stream if "http" in fs.protocol else _Ranges
        try:
            found |= zip(places, kind.several(fs, paths))
        except Exception as error:
            found |= dict.fromkeys(places, error)
    return [found[place] for place in range(len(addresses))]


class _Begun:
    """A file with its first bytes. If these are more than _FIRST, there are others."""

    def __init__(self) -> None:
        self._content = BytesIO()

    def whole(self, held: ExitStack) -> bytes | None:
        """The content, or None if it is too large."""
        if self._content.tell() > _FIRST:
            try:
                size = self._opened()
                if size is not None and size > MOST_BYTES:
                    return None
                held.enter_context(_held.taken(size or MOST_BYTES))
                self._read_to((size or MOST_BYTES) + 1)
            finally:
                self.close()
            if size and self._content.tell() > size:
                raise OSError("it is larger than its server says")
        return None if self._content.tell() > MOST_BYTES else self._content.getvalue()

    def _opened(self) -> int | None:
        """Begin to read the rest. The size of the file, if it is known."""
        raise NotImplementedError

    def _read_to(self, end: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End reading before the end of the file."""


class _Ranges(_Begun):
    """A file that its driver reads from any place."""

    def __init__(self, fs: Any, path: str, first: bytes) -> None:
        super().__init__()
        self._content.write(first)
        self._fs, self._path = fs, path
        self._file: Any = None

    @classmethod
    def several(cls, fs: Any, paths: Sequence[str]) -> "list[_Begun | Exception]":
        starts, ends = [0] * len(paths), [_FIRST + 1] * len(paths)
        found = fs.cat_ranges(list(paths), starts, ends, on_error="return")
        return [
            first if isinstance(first, Exception) else cls(fs, path, first)
            for path, first in zip(paths, found, strict=True)
        ]

    def _opened(self) -> int | None:
        self._file = self._fs.open(self._path, "rb", block_size=_PIECE)
        self._file.seek(self._content.tell())
        size = getattr(self._file, "size", None)
        return size if isinstance(size, int) and size > 0 else None

    def _read_to(self, end: int) -> None:
        while self._content.tell() < end and (piece := self._file.read(_PIECE)):
            self._content.write(piece)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Stream(_Begun):
    """An answer of an HTTP server."""

    def __init__(self, fs: Any, response: Any) -> None:
        super().__init__()
        self._fs, self._response = fs, response

    @classmethod
    def several(cls, fs: Any, paths: Sequence[str]) -> "list[_Begun | Exception]":
        from asyncio import gather

        from fsspec.asyn import sync

        async def all_of_them() -> list[Any]:
            return await gather(*(cls._one(fs, p) for p in paths), return_exceptions=True)

        found: list[_Begun | Exception] = sync(fs.loop, all_of_them)
        return found

    @classmethod
    async def _one(cls, fs: Any, url: str) -> _Begun:
        session = await fs.set_session()
        response = await session.get(fs.encode_url(url), **fs.kwargs)
        try:
            if response.status == 404:
                raise FileNotFoundError(url)
            response.raise_for_status()
            begun = cls(fs, response)
            await begun._stream_to(_FIRST + 1)
            return begun
        except BaseException:
            response.close()
            raise

    def _opened(self) -> int | None:
        packed = "Content-Encoding" in self._response.headers  # then the length is another one
        size: int | None = None if packed else self._response.content_length
        return size

    def _read_to(self, end: int) -> None:
        from fsspec.asyn import sync

        sync(self._fs.loop, self._stream_to, end)

    async def _stream_to(self, end: int) -> None:
        body, content = self._response.content, self._content
        while (left := end - content.tell()) > 0 and (piece := await body.read(left)):
            content.write(piece)

    def close(self) -> None:
        self._fs.loop.call_soon_threadsafe(self._response.close)
