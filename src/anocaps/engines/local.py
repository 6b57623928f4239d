"""The local engine: processes of this computer, or this process if there is one worker.

Every process has its own pipe. So a killed process loses only its own task, and a new one replaces
it.
"""

import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any

from anocaps.engines.base import Engine, Lost

_Task = tuple[int, Callable[[Any], Any], Any]  # number, function, description


@dataclass(frozen=True)
class OnDisk:
    """A file that every process of this computer sees."""

    path: Path

    @contextmanager
    def opened(self) -> Iterator[Path]:
        yield self.path


class ThisProcess(Engine):
    """Runs one task after another in this process."""

    def __init__(self) -> None:
        self._queue: deque[_Task] = deque()

    @property
    def workers(self) -> int:
        return 1

    def submit(self, number: int, task: Callable[[Any], Any], description: Any) -> None:
        self._queue.append((number, task, description))

    def wait(self) -> tuple[int, Any]:
        number, task, description = self._queue.popleft()
        return number, task(description)

    def share(self, path: Path) -> OnDisk:
        return OnDisk(path.absolute())

    def close(self) -> None:
        self._queue.clear()


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: "Connection[Any, Any]"
    number: int | None = None  # of the task that it runs


class Processes(Engine):
    """Several processes, with `threads` threads each for torch."""

    def __init__(self, workers: int, threads: int) -> None:
        self._most, self._threads = workers, threads
        self._workers: list[_Worker] = []
        self._queue: deque[_Task] = deque()

    @property
    def workers(self) -> int:
        return self._most

    def submit(self, number: int, task: Callable[[Any], Any], description: Any) -> None:
        self._queue.append((number, task, description))
        self._feed()

    def wait(self) -> tuple[int, Any]:
        busy = {worker.pipe: worker for worker in self._workers if worker.number is not None}
        worker = busy[wait(list(busy))[0]]  # type: ignore[index]
        assert worker.number is not None
        number, worker.number = worker.number, None
        try:
            result, error = worker.pipe.recv()
        except (EOFError, OSError):
            self._workers.remove(worker)
            worker.process.join()
            result, error = Lost(f"exit code {worker.process.exitcode}"), None
        self._feed()  # the caller may take its time
        if error is not None:
            raise error
        return number, result

    def share(self, path: Path) -> OnDisk:
        return OnDisk(path.absolute())

    def close(self) -> None:
        self._queue.clear()
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    def _feed(self) -> None:
        """Give waiting tasks to free workers."""
        while self._queue:
            worker = next((each for each in self._workers if each.number is None), None)
            if worker is None:
                if len(self._workers) == self._most:
                    return
                worker = self._start()
                self._workers.append(worker)
            worker.number = self._queue[0][0]
            try:
                worker.pipe.send(self._queue[0][1:])
            except OSError:  # it was killed while it was free
                self._workers.remove(worker)
                worker.process.join()
                continue
            self._queue.popleft()

    def _start(self) -> _Worker:
        context = get_context("spawn")
        ours, its = context.Pipe()
        process = context.Process(target=_work, args=(its,))
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = str(self._threads)  # torch reads it when it is imported
        try:
            process.start()
        finally:
            os.environ.pop("OMP_NUM_THREADS")
            if before is not None:
                os.environ["OMP_NUM_THREADS"] = before
        its.close()  # the process has its own copy, so the pipe closes when the process ends
        return _Worker(process, ours)


def _work(pipe: "Connection[Any, Any]") -> None:
    """The main function of a process. It ignores Ctrl-C and ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves `with` blocks: locks are freed
    Thread(target=_die_with_parent, daemon=True).start()
    while True:
        try:
            task, description = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((task(description), None))
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send((None, error))


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
