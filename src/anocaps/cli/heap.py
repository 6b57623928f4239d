"""How the C library keeps memory. A setting holds for the whole process, so only commands make it.

Freed memory is kept for the next batch: the C library returns a large buffer to the system as soon
as it is freed, and the next buffer then arrives page by page, filled with zeros. On a CPU these
pages took a tenth of the time of training and of scoring.

A server shares memory between its threads: else each of its many threads keeps what it once needed.
"""

import ctypes
import os

# glibc's names in the environment, its numbers for mallopt, and the values in bytes or counts
_SETTINGS = (
    ("MALLOC_MMAP_MAX_", -4, 0),
    ("MALLOC_TRIM_THRESHOLD_", -1, 2**31 - 1),
    ("MALLOC_TOP_PAD_", -2, 2**26),
)
_ARENAS = -8, 2  # glibc's number for mallopt: parts of memory, each for some of the threads


def keep_freed_memory() -> None:
    """For this process and those that it starts; nothing where the C library is not glibc."""
    for name, number, value in _SETTINGS:
        if _mallopt(number, value):
            os.environ.setdefault(name, str(value))


def share_memory_of_threads() -> None:
    """Of this process; call it before threads start."""
    _mallopt(*_ARENAS)


def _mallopt(number: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(number, value))
    except (AttributeError, OSError, TypeError):  # another C library; Windows
        return False
