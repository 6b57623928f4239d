"""Work in a few threads: results in order, and a bound on what is in use at a time."""

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
    """Do `work` on every item in a few threads; results come in the order of the items.

    At most `ahead` items are taken before their results are used, so that memory is bounded.

    Ctrl-C can raise an exception between any two steps of the main thread. Inside `threading` or
    `concurrent.futures` it can leave a lock locked for ever. So both sides only use simple queues,
    whose steps are atomic; and threads started in this way never keep Python from ending.
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
    """A bound on what threads use together: who needs more than is free waits for the others.

    A thread may take room once at a time, and never more than all; so nobody waits for ever.
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
