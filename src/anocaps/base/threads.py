"""Work in a few threads, within bounds: results in order, and room for so much at a time."""

import os
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
    """`work` on every item in a few threads, results in the order of the items.

    Only so many items are taken ahead of the result at hand, so that any number of them fits into
    memory.

    Ctrl-C is an exception between any two steps of the main thread. In the middle of `threading`
    or `concurrent.futures` it leaves a lock locked, for which others then wait for ever. So here
    the two sides meet in simple queues alone, each step of which is done or not; and threads that
    are started in this way never keep Python from ending.
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
            except BaseException as error:  # raised where the result is asked for
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
        if not sys.is_finalizing():  # else no thread runs any more to be waited for
            for _ in range(started):
                ended.get()


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
