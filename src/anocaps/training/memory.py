"""When memory runs out, warn and continue in smaller parts.

This works where an allocation fails: on a GPU and on some operating systems. Linux usually grants
more memory than it has and later kills the process.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from anocaps.base.errors import AnocapsError

T = TypeVar("T")

# In messages of CUDA, torch on Windows and Linux, and cuBLAS, whose errors have no special class.
_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    # after a recording fails, closing the CUDA graph may raise a second error
    first = error.__context__
    return any(word in str(error) for word in _WORDS) or (first is not None and ran_out(first))


def release() -> None:
    """Free unused memory. Call it outside `except`: an error keeps its tensors alive."""
    gc.collect()
    torch.cuda.empty_cache()


def in_parts(
    count: int, size: int, work: Callable[[slice], T], whole: str, thing: str
) -> Iterator[T]:
    """The results of `work` on slices of `size` items, up to `count`.

    If a slice does not fit into memory, it and all later ones are halved. The warning uses the
    words `whole` and `thing`, such as "batch" and "image".
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
                    f"not even one {thing} fits into memory: free memory, use smaller images or "
                    "another device"
                ) from error
        else:
            yield found
            start = part.stop
            continue
        release()
        size = -(-tried // 2)
        tell(f"a {whole} of {tried} {thing}s does not fit into memory: continuing with {size}")


def tell(line: str) -> None:
    warnings.warn(line, UserWarning, stacklevel=3)
