"""A thread pool with results in order, and a limit on the memory that threads use together."""

import os
import re
import sys
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Failed:
    error: BaseException


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], ahead: int = 64
) -> Iterator[Result]:
    """The results of `work` on every item, computed in threads, in the order of the items.

    At most `ahead` results wait to be used, which bounds memory.

    Ctrl-C can interrupt the main thread inside `threading` or `concurrent.futures` and leave a lock
    locked for ever. The operations of a SimpleQueue are atomic. Threads of `start_new_thread` do
    not keep Python from exiting.
    """
    tasks: SimpleQueue[tuple[Item, SimpleQueue[Result | _Failed]] | None] = SimpleQueue()
    ended: SimpleQueue[None] = SimpleQueue()
    threads = min(8, os.cpu_count() or 1)
    started = 0
    over = False

    def work_on_tasks() -> None:
        while (task := tasks.get()) is not None:
            item, place = task
            if over:
                continue
            try:
                place.put(work(item))
            except BaseException as error:  # raised again by `result_of`
                place.put(_Failed(error))
        ended.put(None)

    def result_of(place: SimpleQueue[Result | _Failed]) -> Result:
        found = place.get()
        if isinstance(found, _Failed):
            raise found.error
        return found

    try:
        for _ in range(threads):
            start_new_thread(work_on_tasks, ())
            started += 1
        under_way: deque[SimpleQueue[Result | _Failed]] = deque()
        for item in items:
            under_way.append(SimpleQueue())
            tasks.put((item, under_way[-1]))
            if len(under_way) > ahead:
                yield result_of(under_way.popleft())
        while under_way:
            yield result_of(under_way.popleft())
    finally:
        over = True
        for _ in range(threads):
            tasks.put(None)
        if not sys.is_finalizing():  # at exit, the threads no longer run
            for _ in range(started):
                ended.get()


def wanted_threads() -> int | None:
    """The first number in OMP_NUM_THREADS, which OpenMP allows to be a list. None if unusable."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if re.fullmatch("0*[1-9][0-9]{0,5}", first) else None


class Budget:
    """A limit on the memory that threads use together: a thread waits until its amount is free.

    A thread takes one amount at a time, at most the total, so there is no deadlock.
    """

    def __init__(self, total: int) -> None:
        self.free = total
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
