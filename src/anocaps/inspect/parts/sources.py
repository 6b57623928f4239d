"""The sources of images: folders, list files, Parquet tables, and addresses that fsspec knows.

    photos/  photo.jpg                 image files, and folders that are searched for them
    list.txt                           a path or an address on each line
    table.parquet                      a column `path`; or `bytes`, the content of image files, with
                                       or without `path`; or `image`, which holds both
    s3://bucket/photos  https://…      any of these at an address

Relative paths in a list or table start from its folder. Images are cut into shards in a fixed
order. A shard names its images, and the worker that scores it reads them.
"""

import hashlib
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import IO, Any

from anocaps.base.errors import DataError
from anocaps.base.text import shown
from anocaps.base.threads import in_order
from anocaps.images.decode import EXTENSIONS, Fit, ImageError, Pixels, read_image
from anocaps.images.walk import PassedOver, is_hidden, list_images
from anocaps.inspect.parts.addresses import fetched, is_address, system_of, why

SHARD = 4096  # images; a multiple of the batch, so that batches are the same as in a single table
SHARD_BYTES = 2**28  # of row groups of a table, uncompressed
_AT_ONCE = 8  # files that a thread reads together
_HELD = 2**26  # bytes of images from a table that wait to be decoded
_BUFFER = 2**20  # bytes of a column of a table; a page of a column may be larger

Read = tuple[str, Pixels | ImageError]
Row = tuple[str, bytes | None]  # name and content of the image in a row of a table


@dataclass(frozen=True)
class Files:
    """Image files by name."""

    names: tuple[str, ...]
    begin: str  # where relative paths begin

    def __len__(self) -> int:
        return len(self.names)

    @property
    def digest(self) -> str:
        return _digest(self.names)

    def read(self, fit: Fit, ahead: int) -> Iterator[Read]:
        """Each name with its pixels, or with its error, in order."""
        names = iter(self.names)
        some = iter(lambda: list(islice(names, _AT_ONCE)), [])
        found = in_order(lambda n: self._read(n, fit), some, ahead=max(1, ahead // _AT_ONCE))
        return chain.from_iterable(found)

    def _read(self, names: Sequence[str], fit: Fit) -> list[Read]:
        with closing(fetched([name for name in names if is_address(name)])) as contents:
            return [
                (name, self._one(name, next(contents) if is_address(name) else None, fit))
                for name in names
            ]

    def _one(self, name: str, content: bytes | ImageError | None, fit: Fit) -> Pixels | ImageError:
        if isinstance(content, ImageError):
            return content
        return _decoded(_from(self.begin, name) if content is None else name, fit, content)


@dataclass(frozen=True)
class TableRows:
    """The content of image files, in consecutive row groups of a Parquet table."""

    table: str
    groups: tuple[int, ...]
    first: int  # row of the table
    rows: int
    begin: str = field(default_factory=os.getcwd)  # where a relative path begins

    def __len__(self) -> int:
        return self.rows

    @property
    def digest(self) -> str:
        return _digest([self.table, *map(str, (*self.groups, self.first, self.rows))])

    def read(self, fit: Fit, ahead: int) -> Iterator[Read]:
        """Each name with its pixels, or with its error, in order."""

        def decoded(rows: list[Row]) -> list[Read]:
            return [(name, _decoded(name, fit, content or b"")) for name, content in rows]

        ahead = max(1, ahead // _AT_ONCE)
        return chain.from_iterable(in_order(decoded, self._lists(_HELD // ahead), ahead))

    def _lists(self, share: int) -> Iterator[list[Row]]:
        """Rows that a thread decodes together, of about `share` bytes.

        Empty lists follow large images. So a number of lists has a limited number of bytes.
        """
        rows: list[Row] = []
        held = 0
        for row in self._contents():
            rows.append(row)
            held += len(row[1] or b"")
            if len(rows) == _AT_ONCE or held >= share:
                yield rows
                yield from repeat([], held // share)
                rows, held = [], 0
        yield rows

    def _contents(self) -> Iterator[Row]:
        """The rows, read page by page."""
        number = self.first
        with _parquet(_from(self.begin, self.table)) as file:
            content, path = _columns(file.schema_arrow.names)
            wanted = [name for name in (content, path) if name]
            groups = list(self.groups)
            size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
            few = max(1, min(_AT_ONCE, _BUFFER * self.rows // max(1, size)))
            batches = file.iter_batches(few, row_groups=groups, columns=wanted, use_threads=False)
            for row in chain.from_iterable(batch.to_pylist() for batch in batches):
                held = row[content] if content == "image" else row
                yield self._checked(number, {} if held is None else held)
                number += 1

    def _checked(self, number: int, held: Any) -> Row:
        name, image = (held.get("path"), held.get("bytes")) if isinstance(held, dict) else (0, 0)
        if not isinstance(name, str | None) or not isinstance(image, bytes | None):
            raise DataError(
                f"{shown(self.table)}: in row {number}, path is no text or the image is no bytes; "
                "convert these columns"
            )
        return name or f"{self.table}#{number}", image


Shard = Files | TableRows


def _decoded(name: str, fit: Fit, content: bytes | None) -> Pixels | ImageError:
    try:
        return read_image(name, fit, content)
    except ImageError as error:
        return error


def begin_of(sources: Iterable[str]) -> str | None:
    """Where the relative sources begin. None if there are none: then a run can begin anywhere."""
    relative = any(not is_address(each) and not os.path.isabs(each) for each in sources)
    return os.getcwd() if relative else None


def is_plain(source: str) -> bool:
    """Whether a source is an image file or a folder on this computer."""
    return not is_address(source) and _suffix(source) not in (".txt", ".parquet")


def shards_of(sources: Iterable[str], passed: PassedOver, follow_links: bool) -> Iterator[Shard]:
    """All images, cut into shards. `passed` collects what a walk through folders leaves out."""
    names: list[str] = []
    begin = os.getcwd()
    for found in chain.from_iterable(_found(s, passed, follow_links) for s in sources):
        if isinstance(found, str):
            names.append(found)
        if names and (len(names) == SHARD or not isinstance(found, str)):
            yield Files(tuple(names), begin)
            names = []
        if not isinstance(found, str):
            yield found
    if names:
        yield Files(tuple(names), begin)


def _found(source: str, passed: PassedOver, follow_links: bool) -> Iterator[str | TableRows]:
    suffix = _suffix(source)
    if suffix == ".txt":
        yield from _listed(source)
    elif suffix == ".parquet":
        yield from _in_table(source)
    elif not is_address(source):
        yield from map(str, list_images([Path(source)], passed, follow_links))
    elif suffix in EXTENSIONS:
        yield source
    else:
        yield from _walk(source, passed)


def _suffix(source: str) -> str:
    return os.path.splitext(source)[1].lower()


def _listed(source: str) -> Iterator[str]:
    with _opened(source) as file:
        for number, line in enumerate(file):
            line = line.removeprefix(BOM_UTF8) if number == 0 else line  # Windows writes it
            if name := os.fsdecode(line.rstrip(b"\r\n")):
                yield _beside(source, name)


def _in_table(source: str) -> Iterator[str | TableRows]:
    with _parquet(source) as file:
        content, path = _columns(file.schema_arrow.names)
        if content is not None:
            yield from _row_groups(source, file.metadata)
            return
        if path is None:
            raise DataError(f"{shown(source)} needs a column named path, bytes or image")
        batches = file.iter_batches(SHARD, columns=[path])
        names = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
        for number, name in enumerate(names):
            if not isinstance(name, str):
                raise DataError(
                    f"{shown(source)}: in row {number}, path is missing or no text; "
                    "correct this column"
                )
            yield _beside(source, name)


def _row_groups(source: str, metadata: Any) -> Iterator[TableRows]:
    """Join row groups to shards up to SHARD rows and SHARD_BYTES. A larger one is one shard."""
    groups: list[int] = []
    first = rows = held = 0
    for group in range(metadata.num_row_groups):
        described = metadata.row_group(group)
        more, size = described.num_rows, described.total_byte_size
        if groups and (rows + more > SHARD or held + size > SHARD_BYTES):
            yield TableRows(source, tuple(groups), first, rows)
            groups, first, rows, held = [], first + rows, 0, 0
        groups.append(group)
        rows += more
        held += size
    if rows:
        yield TableRows(source, tuple(groups), first, rows)


def _columns(names: Iterable[str]) -> tuple[str | None, str | None]:
    """The columns with the content of files and with their paths."""
    there = set(names)
    content = next((name for name in ("bytes", "image") if name in there), None)
    return content, "path" if "path" in there else None


def _from(begin: str, name: str) -> str:
    return name if is_address(name) else os.path.join(begin, name)


def _beside(source: str, name: str) -> str:
    """A name in a list or table. A relative path starts from the folder of the list or table."""
    if is_address(name) or os.path.isabs(name):
        return name
    folder = source.rpartition("/")[0] if is_address(source) else os.path.dirname(source)
    return f"{folder}/{name}" if is_address(source) else os.path.join(folder, name)


# ── addresses ────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Turn errors of fsspec drivers into one line that names the source."""
    from pyarrow import ArrowException

    try:
        yield
    except DataError:
        raise
    except ArrowException as error:
        raise DataError(
            f"{shown(source)} is not a Parquet table, or is damaged; replace it"
        ) from error
    except Exception as error:  # drivers raise errors of their own kinds
        if isinstance(error, ImportError) and not is_address(source):
            raise
        raise DataError(
            f"{shown(source)} cannot be read ({why(error)}); check its name and your access"
        ) from error


@contextmanager
def _opened(source: str, here: Callable[[str, str], Any] = open) -> Iterator[IO[bytes]]:
    with _naming(source):
        if is_address(source):
            fs, path = system_of(source)
            with fs.open(path, "rb") as file:
                yield file
        else:
            with here(source, "rb") as file:
                yield file


@contextmanager
def _parquet(source: str) -> Iterator[Any]:
    """A table that is read page by page. pyarrow opens files itself, which saves a copy."""
    from pyarrow import OSFile
    from pyarrow.parquet import ParquetFile

    with _opened(source, lambda path, mode: OSFile(os.fsencode(path), mode)) as file:
        yield ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER)


def _walk(address: str, passed: PassedOver) -> Iterator[str]:
    """All images below an address, sorted. Memory holds only the names in the open folders.

    `passed` collects other files. Hidden ones are left out, as on a disk.
    """
    with _naming(address):
        fs, top = system_of(address)
        web = "http" in fs.protocol
        folders = [top]
        while folders:
            place = folders.pop()
            found = sorted(fs.ls(place, detail=True), key=lambda entry: str(entry["name"]))
            inside = [entry for entry in found if _is_inside(place, entry["name"], web)]
            for name in (e["name"] for e in inside if e["type"] != "directory"):
                if (suffix := _suffix(name)) in EXTENSIONS:
                    yield fs.unstrip_protocol(name)
                else:
                    passed.others[suffix] += 1
            folders += [e["name"] for e in reversed(inside) if e["type"] == "directory"]


def _is_inside(place: str, name: str, web: bool) -> bool:
    """Whether a listed name is below its place and not hidden.

    A web page may link to itself as x/../, ?sort=name or #top. Following these would never end.
    """
    above = place.rstrip("/")
    rest = name.removeprefix(above)
    if above and not (name.startswith(above) and rest.startswith("/")):
        return False
    if web and ("?" in rest or "#" in rest):
        return False
    parts = rest.removeprefix("/").removesuffix("/").split("/")
    return not any(part == "" or is_hidden(part) for part in parts)


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(os.fsencode(text) + b"\0")
    return digest.hexdigest()
