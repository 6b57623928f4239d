"""The project's database: jobs, scored rows, marks, audits and settings, in one SQLite file.

Marks are only ever added: the newest mark of a file counts, the older ones stay. The file is in WAL
mode, so that readers do not wait for a writer. `_MIGRATIONS` brings an older file up to date.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anocaps.base.errors import DataError

Record = dict[str, Any]

_MIGRATIONS = (
    """
    CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE classes (
        source TEXT PRIMARY KEY, name TEXT NOT NULL, excluded INTEGER NOT NULL
    );
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, spec TEXT NOT NULL,
        progress TEXT NOT NULL DEFAULT '{}', error TEXT NOT NULL DEFAULT '',
        created REAL NOT NULL, changed REAL NOT NULL
    );
    CREATE TABLE rows (
        id INTEGER PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs(id), file BLOB NOT NULL,
        file_sha256 TEXT, model TEXT NOT NULL, model_checksum TEXT NOT NULL, score REAL,
        p_value REAL, class TEXT, details TEXT NOT NULL, error TEXT, time REAL NOT NULL,
        UNIQUE (job, file)
    );
    CREATE TABLE marks (
        id INTEGER PRIMARY KEY, time REAL NOT NULL, row INTEGER NOT NULL REFERENCES rows(id),
        file BLOB NOT NULL, file_sha256 TEXT NOT NULL, model_checksum TEXT NOT NULL,
        p_value REAL, mark TEXT NOT NULL
    );
    CREATE INDEX marks_of_row ON marks (row, id);
    CREATE TABLE audits (
        id INTEGER PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs(id), time REAL NOT NULL,
        alpha REAL NOT NULL, among TEXT NOT NULL, drawn_from INTEGER NOT NULL, rows TEXT NOT NULL
    );
    """,
)


class Database:
    """One connection, used by several threads in turn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, timeout=30)
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")  # a mark survives a power cut
            self._connection.execute("PRAGMA foreign_keys = ON")
            if (found := self.read("PRAGMA quick_check(1)")[0]["quick_check"]) != "ok":
                raise DataError(f"{path}: the database is damaged ({found}); move it away")
            self._migrate()
        except sqlite3.OperationalError as error:  # a full disk, for example
            raise DataError(f"{path}: cannot be opened ({error}); check the disk") from error
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path}: not a database of a project ({error}); move it away") from (
                error
            )

    def _migrate(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > len(_MIGRATIONS):
            raise DataError(f"{self.path}: written by a newer anocaps; upgrade anocaps")
        for number, script in enumerate(_MIGRATIONS[version:], version + 1):
            # One transaction: a crash leaves the old version, whole.
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;"
            )

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of the block is written, or none of it."""
        with self._lock, self._connection:
            yield self._connection

    def read(self, query: str, *values: object) -> list[Record]:
        with self._lock:
            return [dict(row) for row in self._connection.execute(query, values)]

    def write(self, query: str, *values: object) -> int:
        """Run one statement; the id of a new row."""
        with self.writing() as connection:
            return connection.execute(query, values).lastrowid or 0

    # ── settings ─────────────────────────────────────────────────────────────────────────────

    def setting(self, key: str, default: Any = None) -> Any:
        found = self.read("SELECT value FROM settings WHERE key = ?", key)
        return json.loads(found[0]["value"]) if found else default

    def set(self, key: str, value: Any) -> None:
        self.write("INSERT OR REPLACE INTO settings VALUES (?, ?)", key, json.dumps(value))

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────

    def add_job(self, kind: str, spec: Record) -> int:
        now = time.time()
        return self.write(
            "INSERT INTO jobs (kind, state, spec, created, changed) VALUES (?, 'queued', ?, ?, ?)",
            kind, json.dumps(spec), now, now,
        )  # fmt: skip

    def jobs(
        self,
        kind: str | None = None,
        state: str | None = None,
        changed_after: float = -1.0,
        limit: int = -1,
    ) -> list[Record]:
        """Newest first; all, or only those of a kind, in a state or changed after a time.

        A limit leaves out the oldest of those that are over.
        """
        found = self.read(
            "SELECT * FROM (SELECT * FROM jobs WHERE kind = coalesce(?, kind)"
            " AND state = coalesce(?, state) AND changed > ?"
            " ORDER BY state IN ('queued', 'running') DESC, id DESC LIMIT ?) ORDER BY id DESC",
            kind, state, changed_after, limit,
        )  # fmt: skip
        return [_job(row) for row in found]

    def job(self, number: int) -> Record | None:
        found = self.read("SELECT * FROM jobs WHERE id = ?", number)
        return _job(found[0]) if found else None

    def change_job(self, number: int, **fields: Any) -> None:
        """Change some of state, spec, progress and error."""
        values = [json.dumps(v) if isinstance(v, dict) else v for v in fields.values()]
        names = ", ".join(f"{name} = ?" for name in fields)
        self.write(
            f"UPDATE jobs SET {names}, changed = ? WHERE id = ?", *values, time.time(), number
        )

    # ── rows and marks ───────────────────────────────────────────────────────────────────────

    def add_rows(self, rows: Iterable[Record]) -> None:
        """A file that was scored twice by a stopped job keeps its first row."""
        with self.writing() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO rows (job, file, file_sha256, model, model_checksum, score,"
                " p_value, class, details, error, time) VALUES (:job, :file, :file_sha256, :model,"
                " :model_checksum, :score, :p_value, :class, :details, :error, :time)",
                rows,
            )

    def rows(self, job: int, after: int = 0, limit: int = -1) -> list[Record]:
        """Rows with their newest mark, in the order in which they were scored."""
        return self.read(
            "SELECT rows.*, (SELECT mark FROM marks WHERE marks.row = rows.id ORDER BY marks.id"
            " DESC LIMIT 1) AS mark FROM rows WHERE job = ? AND id > ? ORDER BY id LIMIT ?",
            job, after, limit,
        )  # fmt: skip

    def row(self, number: int) -> Record | None:
        found = self.read("SELECT * FROM rows WHERE id = ?", number)
        return found[0] if found else None

    def add_mark(self, row: Record, mark: str) -> int:
        return self.write(
            "INSERT INTO marks (time, row, file, file_sha256, model_checksum, p_value, mark)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            time.time(), row["id"], row["file"], row["file_sha256"] or "", row["model_checksum"],
            row["p_value"], mark,
        )  # fmt: skip

    def newest_marks(self) -> list[Record]:
        """The newest mark of each file content, over all jobs."""
        return self.read(
            "SELECT * FROM marks WHERE id IN (SELECT MAX(id) FROM marks WHERE file_sha256 <> ''"
            " GROUP BY file_sha256) ORDER BY id"
        )


def _job(row: Record) -> Record:
    return row | {"spec": json.loads(row["spec"]), "progress": json.loads(row["progress"])}
