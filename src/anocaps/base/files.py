"""Writing files so that a reader sees the old one or the new one, never half of it.

What a link points to is written, and the link stays.
"""

import errno
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anocaps.base.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` when the block ends well.

    The name holds the process id, so that two processes never write one file. A new file may be
    read by whom the umask lets read it, a replaced one by the same as before: whatever writes the
    temporary one, and some libraries make it private.
    """
    path = _target(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.touch()  # asks for the umask's mode without changing the umask to read it
        mode = stat.S_IMODE((path if path.exists() else temporary).stat().st_mode)
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        with suppress(PermissionError):  # of a file system that knows no modes
            temporary.chmod(mode)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_writable(path: Path) -> None:
    """Say before hours of work that the result could not be written."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, name a file", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is a pipe or a device, name an ordinary file", str(path))
    folder = _target(path).absolute().parent
    while not folder.exists():  # folders still to be made lie in the first one that is there
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file, not a folder", str(folder))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "cannot be written to", str(folder))


def _target(path: Path) -> Path:
    """The file that a link stands for, which need not be there yet."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextmanager
def one_run(path: Path) -> Iterator[None]:
    """Refuse to write what another run is writing, on Linux and macOS and on disks they share.

    The system frees the lock of a process that is gone, however it ended, so that a file left
    behind is in nobody's way. What it says is only for the sentence.
    """
    target = _target(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    lock = target.with_name(f".{target.name}.lock")
    while (file := _locked(lock, path)) is None:
        pass
    try:
        with suppress(OSError):  # a full disk
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(file)


def _locked(lock: Path, path: Path) -> int | None:
    """The lock file, open; None if who had it has removed it meanwhile."""
    import fcntl  # not on Windows

    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        from anocaps.base.text import shown

        who = os.read(file, 1000).decode("utf-8", "replace")
        os.close(file)
        raise InputError(
            f"{shown(path)} is being written by another run{f' ({shown(who)})' if who else ''}: "
            "wait for its end, or name another file"
        ) from None
    except OSError:  # a disk that knows no locks
        return file
    try:
        if os.path.samestat(os.fstat(file), os.stat(lock)):
            return file
    except FileNotFoundError:
        pass
    os.close(file)
    return None
