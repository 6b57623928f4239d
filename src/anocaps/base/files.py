"""Atomic writes and locks, on POSIX and on Windows. All lasting files are written through here.

A reader sees the old file or the new one, never half of it, also after a crash of the process or
of the system. If the path is a link, its target is replaced and the link stays.
"""

import errno
import os
import re
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
_GLANCE = 0.2  # seconds to wait for a lock that should be free
_OURS = re.compile("anocaps-[0-9a-f]{16}")  # names of temporary folders
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}  # errors of a disk without file locks


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path; when the block ends without an error, rename it to `path`.

    One process at a time holds the temporary path. A file left by a killed process is removed.
    A new file gets its mode from the umask. A replaced file keeps its mode. With `mode`, the file
    and the temporary one have this mode. An OSError without a file gets the name of this one.
    """
    target = _target(path)
    make_folder(target.parent)
    temporary = _temporary(target)
    with _locked(temporary, path, _PATIENCE):
        temporary.unlink(missing_ok=True)
        try:
            temporary.touch(0o666 if mode is None else mode)  # as far as the umask allows
            if mode is None:
                mode = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
            yield temporary
            with suppress(PermissionError):  # a file system without modes
                temporary.chmod(mode)
            move(temporary, target)
        except OSError as error:  # that of a full disk names no file
            if error.errno is not None:
                error.filename = error.filename or os.fspath(path)
            raise
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def move(file: Path, target: Path) -> None:
    """Rename a finished file; its content and its new name survive a system crash."""
    with open(file, "r+b") as opened:  # Windows syncs only a file open for writing
        os.fsync(opened.fileno())
    os.replace(file, target)
    sync_folder(target.parent)


def remove(path: Path) -> None:
    """Remove a file, if it exists; it does not come back after a system crash."""
    sweep(path)
    with suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; they survive a system crash."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a system crash. Windows cannot open folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sweep(path: Path) -> None:
    """Remove what a killed process left when it wrote `path`."""
    temporary = _temporary(_target(path))
    lock_file = _lock_of(temporary)
    left = (temporary, lock_file, marker(lock_file))
    if any(map(os.path.lexists, left)) and (held := lock(lock_file, 0)) is not None:
        temporary.unlink(missing_ok=True)
        unlock(held)


@contextmanager
def temporary_folder(above: Path | None = None) -> Iterator[Path]:
    """Yield a new folder that is removed when the block ends. `above`: by default the system's.

    Folders that killed processes left are removed first. A lock file beside a folder shows that its
    process lives. The lock is acquired before the folder is made. A folder without a lock is left,
    too: a process that outlived its parent wrote into it after its removal.
    """
    from secrets import token_hex
    from shutil import rmtree
    from tempfile import gettempdir

    above = above or Path(gettempdir())
    names = {path.name.partition(".")[0] for path in above.glob("anocaps-*")}
    for left in (above / name for name in names if _OURS.fullmatch(name)):
        if all(map(_is_mine, (left, lock_file := _lock_of(left), marker(lock_file)))):
            with suppress(OSError):
                if (free := lock(lock_file, 0)) is not None:
                    rmtree(left, ignore_errors=True)
                    unlock(free)
    folder = above / f"anocaps-{token_hex(8)}"
    with _locked(folder, folder, _GLANCE):
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            rmtree(folder, ignore_errors=True)


def check_writable(path: Path) -> None:
    """Raise an error if `path` cannot be written. Call this before long work."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, name a file", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is a pipe or a device, name an ordinary file", str(path))
    folder = _target(path).absolute().parent
    while not folder.exists():  # find the folder in which missing folders would be made
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(
            errno.ENOTDIR, "is a file, not a folder; name another", str(folder)
        )
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "cannot be written to, name another", str(folder))


@contextmanager
def one_run(path: Path, seconds: float = _GLANCE) -> Iterator[None]:
    """Hold `path` until the block ends. If another run holds it, wait `seconds`, then refuse."""
    target = _target(path)
    make_folder(target.parent)
    with _locked(target.with_name(f".{target.name}"), path, seconds):
        yield


def lock(path: Path, seconds: float = _GLANCE) -> "BaseFileLock | None":
    """Acquire a lock file in an existing folder; None if it is still held after `seconds`.

    The system frees the lock when its process ends. On a disk without file locks, a marker file
    replaces it. The marker of a process on this computer is ignored after the process has ended.
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
    """The file that replaces the lock `path` on a disk without file locks."""
    return path.with_name(f"{path.name}.held")


def unlock(held: "BaseFileLock") -> None:
    """Remove the lock file and free the lock.

    The file is removed first: a process that waits for it notices this and creates a new one.
    """
    with suppress(OSError):  # Windows cannot remove an open file; `release` removes it
        os.unlink(held.lock_file)
    held.release()


@contextmanager
def _locked(name: Path, path: Path, seconds: float) -> Iterator[None]:
    held = lock(_lock_of(name), seconds)
    if held is None:
        raise InputError(
            f"{shown(path)} is being written by another run: wait for its end, or name another file"
        )
    try:
        yield
    finally:
        unlock(held)


def _is_mine(path: Path) -> bool:
    """Whether this user made a file or folder, or nobody did.

    Others may put files and links into the folder that all share.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return True
    mine = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return mine and not stat.S_ISLNK(status.st_mode)


def _target(path: Path) -> Path:
    """The target of a link, which need not exist; any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.tmp")


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")
