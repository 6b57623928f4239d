"""Work in a few threads, within bounds: results in order, and room for so much at a time."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`work` on every item in a few threads, results in the order of the items.

    Only a few items are taken ahead, so that any number of them fits into memory.
    """
    threads = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        under_way: deque[Future[Result]] = deque()
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) == 8 * threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


class Room:
    """Whoever needs more than is free waits until others are done; no one may need more than all.

    A thread takes room once at a time, so that those who wait wait only for some who do not.
    """

    def __init__(self, all_of_it: int) -> None:
        self.free = all_of_it
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, amount: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self.free >= amount)
            self.free -= amount
        try:
            yield
        finally:
            with self._changed:
                self.free += amount
                self._changed.notify_all()
