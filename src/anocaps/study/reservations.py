"""Who works on which cell: one small file per cell, created by exactly one runner.

Runners may share a folder, on one computer or on a shared disk. A reservation is alive while its
file is touched now and then; a runner that was killed leaves one behind, which is taken over when
it is `STALE_SECONDS` old, or at once where its process is known to be gone.
"""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

STALE_SECONDS = 600
_BEAT_SECONDS = 30
SUFFIX = ".running"


class Reservations:
    """Those of this process in one folder; as a context it keeps them alive and gives them back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mine: set[Path] = set()
        self._ended = threading.Event()
        self._beat = threading.Thread(target=self._keep_alive, daemon=True)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._beat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._ended.set()
        for path in list(self._mine):
            self._forget(path)

    def take(self, name: str) -> bool:
        """Whether cell `name` is now this process's to run."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._folder / ".lock"):  # or two runners would take over one stale file
            if path.exists() and is_alive(path):
                return False
            note = {"host": socket.gethostname(), "process": os.getpid(), "since": time.time()}
            path.write_text(json.dumps(note))
        self._mine.add(path)
        return True

    def give_back(self, name: str) -> None:
        self._forget(self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"

    def _forget(self, path: Path) -> None:
        self._mine.discard(path)
        path.unlink(missing_ok=True)

    def _keep_alive(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            for path in list(self._mine):
                with contextlib.suppress(OSError):
                    os.utime(path)


def is_alive(path: Path) -> bool:
    """Whether the reservation's runner still works, as far as can be told from here."""
    try:
        age = time.time() - path.stat().st_mtime
        note = json.loads(path.read_text())
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True  # being written just now
    if age > STALE_SECONDS:
        return False
    return note.get("host") != socket.gethostname() or _is_running(int(note.get("process", 0)))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # someone else's, but there
        return True
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
