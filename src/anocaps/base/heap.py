"""Return freed memory to the system."""

import ctypes
from contextlib import suppress


def return_freed_memory() -> None:
    """Return the memory that threads have freed but that the C library keeps for each of them.

    It needs glibc. Elsewhere nothing happens.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library; Windows
        ctypes.CDLL(None).malloc_trim(0)
