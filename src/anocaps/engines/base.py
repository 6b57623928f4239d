"""The contract of an engine, and the loop that collects results as tasks finish.

A task is a module-level function. It is called with a description that can be pickled, and its
result depends on the description alone. So a task whose worker was killed can be run again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

Description = TypeVar("Description")
Result = TypeVar("Result")

RETRIES = 3  # of a task whose worker was killed


@dataclass(frozen=True)
class Lost:
    """The worker of a task ended before the task did."""

    why: str


class SharedFile(Protocol):
    """A file of the process that submits tasks. Tasks can read it on every computer."""

    def opened(self) -> AbstractContextManager[Path]:
        """The path of the file, valid inside the block."""


class Engine(ABC):
    """Runs tasks. Leaving the `with` block cancels those that are not finished."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many tasks run at once, now."""

    @abstractmethod
    def submit(self, number: int, task: Callable[[Any], Any], description: Any) -> None:
        """Run a task as soon as a worker is free."""

    @abstractmethod
    def wait(self) -> tuple[int, Any]:
        """The number of the next finished task with its result, or `Lost`.

        An exception that a task raised is raised here.
        """

    @abstractmethod
    def share(self, path: Path) -> SharedFile:
        """Make a file available to tasks. The result can be a part of descriptions."""

    @abstractmethod
    def close(self) -> None:
        """Cancel the tasks that are not finished."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def collect(
    engine: Engine,
    task: Callable[[Description], Result],
    descriptions: Iterable[Description],
) -> Iterator[tuple[Description, Result | Lost]]:
    """Each description with its result, in the order in which tasks finish.

    Two descriptions per worker are drawn ahead, which bounds memory. A lost task is run again,
    RETRIES times at most.
    """
    left = enumerate(descriptions)
    running: dict[int, tuple[Description, int]] = {}  # description, retries left
    while True:
        for number, what in islice(left, max(0, 2 * engine.workers - len(running))):
            engine.submit(number, task, what)
            running[number] = what, RETRIES
        if not running:
            return
        number, result = engine.wait()
        what, retries = running.pop(number)
        if isinstance(result, Lost) and retries:
            engine.submit(number, task, what)
            running[number] = what, retries - 1
        else:
            yield what, result
