"""Reservations: while a runner works on a cell, it holds the cell's lock.

Runners may share a folder, on one computer or on a shared disk. The system frees the locks of a
killed runner, so the next runner can run its cells.
"""

from pathlib import Path
from typing import Self

from filelock import BaseFileLock

from anocaps.base.files import lock, make_folder, marker, unlock

SUFFIX = ".running"


class Reservations:
    """The cells that this process runs. The end of the `with` block frees them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mine: dict[str, BaseFileLock] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._mine):
            self.give_back(name)

    def take(self, name: str) -> bool:
        """Reserve a cell; False if another process runs it."""
        path = self._folder / f"{name}{SUFFIX}"
        make_folder(path.parent)
        held = lock(path)
        if held is not None:
            self._mine[name] = held
        return held is not None

    def give_back(self, name: str) -> None:
        unlock(self._mine.pop(name))


def is_running(path: Path) -> bool:
    """Whether a runner holds this reservation. Remove the lock file of a killed runner."""
    if not (path.exists() or marker(path).exists()):
        return False
    held = lock(path, 0)
    if held is not None:
        unlock(held)
    return held is None
