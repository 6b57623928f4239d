"""Writing files so that a reader sees the old one or the new one, never half of it."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` when the block ends well.

    The name holds the process id, so that two processes never write one file. A new file may be
    read by whom the umask lets read it, a replaced one by the same as before: whatever writes the
    temporary one, and some libraries make it private.
    """
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
    folder = path.absolute().parent
    while not folder.exists():  # folders still to be made lie in the first one that is there
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file, not a folder", str(folder))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "cannot be written to", str(folder))
