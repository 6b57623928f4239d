"""Freed memory stays in the process, to be used again.

The C library gives a large buffer back to the system as soon as it is free. The next one then
arrives page by page, each filled with zeros. Every batch needs the buffers of the one before, and
on a CPU these pages were a tenth of the time of scoring and of training.
"""

import ctypes
from functools import cache

# glibc's mallopt: which setting
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


@cache
def keep_freed_memory() -> None:
    """Ask glibc for it, for the whole process; where it is not the C library, do nothing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; Windows
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)  # bytes: what is free above them still goes back
    mallopt(_TOP_PAD, 2**26)
