"""Whole-or-nothing writes and locks, on POSIX and on Windows.

A reader sees the old file or the new one, never half of it. Where the path is a link, its target
is written and the link stays.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from anocaps.base.errors import InputError
from anocaps.base.text import shown

if TYPE_CHECKING:
    from filelock import BaseFileLock

_PATIENCE = 60.0  # seconds to wait for another process that writes the same file
_GLANCE = 0.2  # seconds to try again where a lock is looked at, or its file being removed
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}  # of a disk that knows no locks


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; sync and rename it when the block ends well.

    One process at a time holds the temporary path. What a killed process left there is removed.
    A new file gets the mode that the umask allows, a replaced file keeps its mode.
    """
    target = _target(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    with _locked(temporary, path, _PATIENCE):
        temporary.unlink(missing_ok=True)
        try:
            temporary.touch()  # gets the mode of the umask, which cannot be read without a change
            mode = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
            yield temporary
            with open(temporary, "r+b") as file:  # Windows syncs only what is open for writing
                os.fsync(file.fileno())
            with suppress(PermissionError):  # a file system without modes
                temporary.chmod(mode)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(target.parent)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_writable(path: Path) -> None:
    """Refuse before hours of work a path that the result could not be written to."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, name a file", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is a pipe or a device, name an ordinary file", str(path))
    folder = _target(path).absolute().parent
    while not folder.exists():  # missing folders will be made in the first one that exists
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file, not a folder", str(folder))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "cannot be written to", str(folder))


@contextmanager
def one_run(path: Path, seconds: float = _GLANCE) -> Iterator[None]:
    """Hold `path` until the block ends; refuse if another run still holds it after `seconds`."""
    target = _target(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f".{target.name}"), path, seconds):
        yield


def lock(path: Path, seconds: float = _GLANCE) -> "BaseFileLock | None":
    """Hold a lock file in an existing folder; None if it is still held after `seconds`.

    The system frees the lock of a process that ended in any way. Where the disk knows no locks, a
    file marks the holder: it is freed when its process on this computer is gone.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    try:
        try:
            held: BaseFileLock = FileLock(path, thread_local=False)
            held.acquire(timeout=seconds, poll_interval=0.02)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            path.unlink(missing_ok=True)
            held = SoftFileLock(marker(path), thread_local=False)
            held.acquire(timeout=seconds)
    except Timeout:
        return None
    return held


def marker(path: Path) -> Path:
    """The file that stands for the lock `path` on a disk that knows no locks."""
    return path.with_name(f"{path.name}.held")


def unlock(held: "BaseFileLock") -> None:
    """Remove the lock file and free the lock.

    The file goes first: whoever waits for a removed file notices it and takes a new one.
    """
    with suppress(OSError):  # Windows removes no open file; there `release` does
        os.unlink(held.lock_file)
    held.release()


@contextmanager
def _locked(name: Path, path: Path, seconds: float) -> Iterator[None]:
    held = lock(name.with_name(f"{name.name}.lock"), seconds)
    if held is None:
        raise InputError(
            f"{shown(path)} is being written by another run: wait for its end, or name another file"
        )
    try:
        yield
    finally:
        unlock(held)


def _target(path: Path) -> Path:
    """The file that a link stands for; it need not exist."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a crash of the system; Windows opens no folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
