"""A folder of scores: one Parquet file per shard, and a manifest of those that are finished.

    FOLDER/part-000000.parquet      the rows of a shard, in order
    FOLDER/_manifest.jsonl          readers of Parquet folders ignore it because of its underscore

The first line of the manifest describes the run. Each other line names a finished part with its
rows and SHA-256. The last line says that all are finished. A part is written whole before its line.
So a killed run loses at most the parts without a line. When it is resumed, it writes them again
under the same names.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anocaps.base.errors import DataError, InputError
from anocaps.base.files import one_run, replacing, sweep
from anocaps.base.text import shown

MANIFEST = "_manifest.jsonl"
_NEVER = 10**12  # parts, images in a part, or bytes of its rows: no run reaches so many


@dataclass(frozen=True)
class Part:
    """A line of the manifest: one finished part."""

    part: int
    shard: str  # digest of the names of its images
    scored: int
    anomalous: int
    failed: int
    error: str  # the first
    bytes: int
    sha256: str

    @property
    def file(self) -> str:
        return f"part-{self.part:06}.parquet"


class PartsFolder:
    """The parts of a run. It can be stopped at any moment and resumed with the same arguments."""

    def __init__(self, folder: Path, run: dict[str, Any], resume: bool) -> None:
        self.folder, self.resume = folder, resume
        self.path = folder / MANIFEST
        self.parts: dict[int, Part] = {}  # finished ones
        self.changed: list[str] = []  # files that are listed, but missing or with another content
        self._head = (json.dumps({"run": run}) + "\n").encode()

    def __enter__(self) -> "PartsFolder":
        with ExitStack() as opened:
            opened.enter_context(one_run(self.path))
            end = self._read()
            opened.callback(self._remove_if_empty)
            self._file = opened.enter_context(open(self.path, "r+b" if end else "wb"))
            self._file.truncate(end)
            self._file.seek(end)
            if not end:
                self._append(self._head)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _remove_if_empty(self) -> None:
        """Remove the manifest of a run that wrote no part, with or without its line."""
        if not any(self.folder.glob("part-*")):
            self.path.unlink()

    def has(self, number: int, shard: str, rows: int | None = None) -> bool:
        """Whether a part is finished. Raise an error if its images have changed since then.

        `rows` is the number of its images, if known.
        """
        found = self.parts.get(number)
        if found is None:
            return False
        if found.shard != shard:
            raise DataError(
                f"{shown(self.folder)}: the images have changed since the run began (part "
                f"{number}); score them into a new folder"
            )
        if rows is not None and found.scored + found.failed != rows:
            raise self._damaged()
        return True

    def add(self, part: Part, content: bytes) -> None:
        """Write a part, then its line."""
        with replacing(self.folder / part.file) as temporary:
            temporary.write_bytes(content)
        self._append((json.dumps(asdict(part)) + "\n").encode())
        self.parts[part.part] = part

    def finish(self, parts: int) -> None:
        """Say that all parts are finished."""
        if len(self.parts) > parts:
            raise DataError(
                f"{shown(self.folder)}: there are fewer images than when the run began; score "
                "them into a new folder"
            )
        rows = sum(part.scored + part.failed for part in self.parts.values())
        self._append((json.dumps({"finished": {"parts": parts, "rows": rows}}) + "\n").encode())

    def _append(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Read the manifest of a stopped run; return the end of its last whole line of a part."""
        others = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        if not self.path.exists() or not self.path.stat().st_size:
            if set(others) - {self.path}:
                raise InputError(f"{shown(self.folder)} has other files; name a new folder")
            return 0
        if not self.resume:
            raise InputError(
                f"{shown(self.folder)} has the scores of an earlier run: add --resume to continue "
                "it, or name a new folder"
            )
        end = 0
        listed: dict[int, Part] = {}  # a part that was scored again has a second line
        for line in self._lines():
            if end == 0 and line != self._head:
                raise DataError(
                    f"{shown(self.path)} is of a run with another model, alpha, source or working "
                    "directory; repeat that run, or name a new folder"
                )
            if end:
                try:
                    said = json.loads(line)
                    if "finished" in said:
                        break
                    part = _checked(Part(**said))
                except (ValueError, TypeError, RecursionError) as error:
                    raise self._damaged() from error
                listed[part.part] = part
            end += len(line)
        for part in listed.values():
            sweep(self.folder / part.file)
            if _is_whole(self.folder / part.file, part):
                self.parts[part.part] = part
            else:
                self.changed.append(part.file)
        return end

    def _damaged(self) -> DataError:
        return DataError(f"{shown(self.path)} is damaged; score the images into a new folder")

    def _lines(self) -> Iterator[bytes]:
        """Whole lines. A line that a crash cut off will be written again."""
        with open(self.path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line


def _checked(part: Part) -> Part:
    """Refuse values that no run writes."""
    numbers = (part.part, part.scored, part.anomalous, part.failed, part.bytes)
    texts = (part.shard, part.error, part.sha256)
    if not all(type(number) is int and 0 <= number < _NEVER for number in numbers):
        raise ValueError("a number")
    if not all(isinstance(text, str) for text in texts) or part.anomalous > part.scored:
        raise ValueError("a text or a count")
    return part


def _is_whole(path: Path, part: Part) -> bool:
    try:
        with open(path, "rb") as file:
            same_size = os.fstat(file.fileno()).st_size == part.bytes
            return same_size and hashlib.file_digest(file, "sha256").hexdigest() == part.sha256
    except FileNotFoundError:
        return False


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
