"""Where memory runs out, work goes on in smaller parts, and one line says so.

A GPU refuses what it does not have, and so does a CPU whose system counts: then the work is
repeated with less at once. Linux usually grants more than there is and ends the process when it is
used, which nothing in the process can catch.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from anocaps.base.errors import AnocapsError

T = TypeVar("T")

# What libraries say that have no error class for it: CUDA, torch on Windows and on Linux, cuBLAS.
_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    # a CUDA graph whose recording failed may fail again while it is closed
    first = error.__context__
    return any(word in str(error) for word in _WORDS) or (first is not None and ran_out(first))


def release() -> None:
    """Give back what nobody uses; to be called outside `except`, where the error is gone and with
    it the tensors of the calls that it came through."""
    gc.collect()
    torch.cuda.empty_cache()


def in_parts(
    count: int, size: int, work: Callable[[slice], T], whole: str, thing: str
) -> Iterator[T]:
    """What `work` makes of things 0 … count−1, a slice of `size` at a time.

    A slice that does not fit into memory is halved, and so are all after it. `whole` and `thing`
    are words for the user: a "batch" of so many "image"s.
    """
    start = 0
    while start < count:
        part = slice(start, min(start + size, count))
        tried = part.stop - start
        try:
            found = work(part)
        except Exception as error:
            if not ran_out(error):
                raise
            if tried == 1:
                raise AnocapsError(
                    f"not even one {thing} fits into memory: free some, use smaller images, or "
                    "another device"
                ) from error
        else:
            yield found
            start = part.stop
            continue
        release()
        size = -(-tried // 2)
        tell(f"a {whole} of {tried} {thing}s does not fit into memory: going on with {size}")


def tell(line: str) -> None:
    warnings.warn(line, UserWarning, stacklevel=3)
