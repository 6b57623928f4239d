"""Memory settings of the C library. They hold for the whole process, so only commands change them.

Training and scoring keep freed memory for the next batch. By default the C library returns a large
buffer to the system as soon as it is freed. The next buffer then arrives page by page, filled with
zeros. On a CPU these pages took a tenth of the time of training and of scoring.

A server shares memory between its threads. Otherwise each thread keeps the most that it ever used.
"""

import ctypes
import os

# glibc's names in the environment, its numbers for mallopt, and the values in bytes or counts
_SETTINGS = (
    ("MALLOC_MMAP_MAX_", -4, 0),
    ("MALLOC_TRIM_THRESHOLD_", -1, 2**31 - 1),
    ("MALLOC_TOP_PAD_", -2, 2**26),
)
_ARENAS = -8, 2  # glibc's number for mallopt, and how many parts of memory the threads share


def keep_freed_memory() -> None:
    """Keep freed memory in this process and those that it starts. It needs glibc."""
    for name, number, value in _SETTINGS:
        if _mallopt(number, value):
            os.environ.setdefault(name, str(value))


def share_memory_of_threads() -> None:
    """Let the threads of this process share memory. Call it before they start."""
    _mallopt(*_ARENAS)


def _mallopt(number: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(number, value))
    except (AttributeError, OSError, TypeError):  # another C library; Windows
        return False
