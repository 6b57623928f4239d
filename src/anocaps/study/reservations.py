"""Who works on which cell: one small file per cell, created by exactly one runner.

Runners may share a folder, on one computer or on a shared disk. A reservation is alive while its
file is touched now and then; a runner that was killed leaves one behind, which is taken over when
it is `STALE_SECONDS` old, or at once where its process is known to be gone. That is known of the
same process space only: two containers may share a host name and a disk, but no process numbers.
"""

import contextlib
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anocaps.base.files import write_text

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
        with locked(self._folder):  # or two runners would take over one stale file
            if path.exists() and is_alive(path):
                return False
            write_text(path, json.dumps(_who() | {"since": time.time()}))
        self._mine.add(path)
        return True

    def give_back(self, name: str) -> None:
        self._forget(self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"

    def _forget(self, path: Path) -> None:
        self._mine.discard(path)
        if _is_ours(path):
            path.unlink(missing_ok=True)

    def _keep_alive(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            for path in list(self._mine):
                if _is_ours(path):
                    with contextlib.suppress(OSError):
                        os.utime(path)


def is_alive(path: Path) -> bool:
    """Whether the reservation's runner still works, as far as can be told from here."""
    try:
        if time.time() - path.stat().st_mtime > STALE_SECONDS:
            return False
        note = json.loads(path.read_text())
        process, who = int(note["process"]), _who()
        # a note of an older version names no space: of it, too, only the touches tell
        near = who["space"] and all(note.get(name) == who[name] for name in ("host", "space"))
        return not near or _is_running(process)
    except (OSError, ValueError, KeyError, TypeError):  # gone, or not what a runner writes
        return False


def _is_ours(path: Path) -> bool:
    """Not so after a long sleep, in which somebody else took it over."""
    try:
        note = json.loads(path.read_text())
        who = _who()
        return {name: note[name] for name in who} == who
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _who() -> dict[str, Any]:
    return {"host": socket.gethostname(), "space": _process_space(), "process": os.getpid()}


@cache
def _process_space() -> str | None:
    """Where process numbers are the same: one start of a computer, one container; None: unknown."""
    if sys.platform != "linux":
        return sys.platform  # containers are Linux's
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{start} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # someone else's, but there
        return True
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One runner at a time, on Linux and macOS, and on disks that they share."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
