"""Write rows of scores to a file, CSV, JSON lines or Parquet, so that a stopped run can resume.

During a run, rows are appended to OUT.partial, for every format as JSON lines, because a line that
a crash cut off can be recognised and dropped. The first line identifies the run. At the end, all
rows are written to OUT, and OUT.partial is removed. Memory holds one row, or one row group of
Parquet. A live table belongs to a run without an end. It also appends every row to OUT.

The rows of a stopped run are never overwritten: the user continues or deletes them. Only one run
at a time writes a table.
"""

import csv
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import IO, Any

from anocaps.base.errors import DataError, InputError
from anocaps.base.files import one_run, remove, replacing
from anocaps.base.text import path_cell, shown, text_cell

Row = dict[str, Any]  # column → text, number or None
Noted = tuple[Row, Row]  # a row, and notes that a resumed run needs

_TEXT = frozenset({"file", "verdict", "class", "error", "mark"})  # the other columns are numbers
_ROW_GROUP = 65_536  # rows of Parquet in memory
_BUFFER = 1 << 20  # bytes: the rows of a batch reach the file at once


def partial_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def check_format(out: Path, live: bool = False) -> None:
    """Refuse an unknown format before hours of work. A live table cannot be Parquet."""
    kind = out.suffix.lower()
    if kind not in _WRITERS:
        raise InputError(f"{shown(out)}: unknown format; name the file .csv, .jsonl or .parquet")
    if live and kind == ".parquet":
        raise InputError(f"{shown(out)}: no row can be appended to Parquet; name it .csv or .jsonl")
    if kind == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(
            f"{shown(out)}: Parquet needs pyarrow, which is not installed; name the file .csv or "
            ".jsonl, or install it with: pip install 'anocaps[parquet]'"
        )


class UnfinishedTable:
    """The rows of a run that may be stopped at any moment, in the order of its files.

    `run` describes the run as JSON. Only a run with the same description is continued. With `live`,
    the table itself has all rows at any moment.
    """

    def __init__(
        self, out: Path, columns: Sequence[str], run: Row, resume: bool, live: bool = False
    ) -> None:
        self.out = out
        self.live = live
        self.columns = tuple(columns)
        self.path = partial_path(out)
        self.resume = resume
        self.rows = 0  # in the file
        self._end = 0  # of its last whole line, in bytes
        self._head = (json.dumps({"run": run, "columns": columns}) + "\n").encode()

    def __enter__(self) -> "UnfinishedTable":
        with ExitStack() as opened:
            opened.enter_context(one_run(self.out))
            self._open()
            opened.callback(self._close)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with self._opened:
            if self.live and error is None:  # sync its rows, so that they survive a crash
                os.fsync(self._file.fileno())
                self._write()

    def _open(self) -> None:
        there = self.path.exists() and self.path.stat().st_size > 0
        if there and not self.resume:
            raise InputError(
                f"{shown(self.path)} has the rows of a stopped run: add --resume to continue it, "
                "or delete that file to start again"
            )
        if there:
            self._find_end()
        # Unbuffered: every write reaches the file at once, and closing cannot fail.
        self._file = FileIO(self.path, "r+b" if there else "wb")
        self._cut()
        if self.live:
            self._write()

    def _cut(self) -> None:
        """Remove everything after the last whole line, and continue there."""
        self._file.truncate(self._end)
        self._file.seek(self._end)

    def _close(self) -> None:
        """Keep the rows of a stopped run, if there are any."""
        self._file.close()
        if self.rows == 0:
            self.path.unlink(missing_ok=True)

    def append(self, rows: Iterable[Noted]) -> None:
        """Write all rows, or none and raise an error."""
        rows = list(rows)
        lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows]
        data = (b"" if self._end else self._head) + "".join(lines).encode()
        try:
            _write_all(self._file, data)
        except OSError as error:
            self._cut()
            raise self._unwritable(error, self.path) from error
        self._end += len(data)
        self.rows += len(lines)
        if self.live:
            self._write(row for row, _ in rows)

    def finished(self) -> Iterator[Noted]:
        """The rows so far."""
        try:
            with open(self.path, "rb") as file:
                file.readline()  # the description of the run
                for _ in range(self.rows):
                    row, notes = json.loads(file.readline())
                    yield _checked({name: row[name] for name in self.columns}, dict(notes))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f"{shown(self.path)} is damaged; delete it and score all images again"
            ) from error

    def finish(self) -> None:
        """Write the table. Only now it replaces an older one."""
        self._write()
        self._file.close()
        remove(self.path)

    def _write(self, added: Iterable[Row] | None = None) -> None:
        """Append rows to the table, or write it as a whole."""
        write = _WRITERS[self.out.suffix.lower()]
        try:
            if added is not None:
                write(self.out, self.columns, iter(added), "a")
                return
            with replacing(self.out) as temporary:
                write(temporary, self.columns, (row for row, _ in self.finished()), "w")
        except OSError as error:
            raise self._unwritable(error, self.out) from error

    def _find_end(self) -> None:
        """Count the whole lines. A line that a crash cut off will be written again."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file):
                if number == 0 and not self._head.startswith(line):
                    raise DataError(
                        f"{shown(self.path)} is of a run with another model, alpha or columns; "
                        "repeat that run, or delete that file to start again"
                    )
                if not line.endswith(b"\n"):
                    break
                self.rows = number
                self._end += len(line)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Add to the error of another output file that the rows are kept."""
        try:
            yield
        except OSError as error:
            why = f"{error.strerror or error}{self._kept()}"
            raise OSError(error.errno, why, error.filename) from error

    def _unwritable(self, error: OSError, path: Path) -> OSError:
        why = f"cannot be written ({error.strerror or error}){self._kept()}"
        return OSError(error.errno, why, str(path))

    def _kept(self) -> str:
        rows = "1 row is" if self.rows == 1 else f"{self.rows:,} rows are"
        return f"; {rows} kept, make room and add --resume" if self.rows else ""


def _checked(row: Row, notes: Row) -> Noted:
    """Refuse values that no run writes."""
    there = {name: value for name, value in row.items() if value is not None}
    texts = [value for name, value in there.items() if name in _TEXT]
    numbers = [value for name, value in there.items() if name not in _TEXT]
    names = [row["file"], *notes.values()]  # of files, or sentences with such names
    if not all(isinstance(text, str) for text in (*texts, *names)):
        raise TypeError("a text is of another type")
    if not all(isinstance(number, float) and math.isfinite(number) for number in numbers):
        raise ValueError("a number is of another type, or not finite")
    if b"\0" in os.fsencode("".join(names)):
        raise ValueError("no file has such a name")
    "".join(texts).encode()  # raises an error for half a character
    return row, notes


def _write_all(file: FileIO, data: bytes) -> None:
    """An unbuffered file may write only a part of the data."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


# ── the formats ──────────────────────────────────────────────────────────────────────────────


def _write_csv(path: Path, columns: Sequence[str], rows: Iterator[Row], mode: str) -> None:
    """Write cells of one line that a spreadsheet cannot take for formulas.

    A file =1+1.png becomes ./=1+1.png, which is the same file. An error begins with its file, so it
    changes in the same way. A class gets an apostrophe, the mark of a text cell.
    """
    with open(path, mode, _BUFFER, newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        if mode == "w":
            writer.writeheader()
        for row in rows:
            safe = {name: path_cell(row[name]) for name in ("file", "error") if row.get(name)}
            if row.get("class"):
                safe["class"] = text_cell(row["class"])
            writer.writerow(row | safe)


def _write_json_lines(path: Path, columns: Sequence[str], rows: Iterator[Row], mode: str) -> None:
    with open(path, mode, _BUFFER, encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_parquet(
    path: Path | IO[bytes], columns: Sequence[str], rows: Iterator[Row], mode: str = "w"
) -> None:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    kinds = [(n, pyarrow.string() if n in _TEXT else pyarrow.float64()) for n in columns]
    schema = pyarrow.schema(kinds)
    with ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, _ROW_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema))


_WRITERS: dict[str, Callable[[Path, Sequence[str], Iterator[Row], str], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
    ".ndjson": _write_json_lines,
    ".parquet": write_parquet,
}
