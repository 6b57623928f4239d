"""Who works on which cell: a runner holds a lock per cell while it runs it.

Runners may share a folder, on one computer or on a shared disk. The system frees the locks of a
runner that was killed, so that the next runner takes its cells over.
"""

from pathlib import Path
from typing import Self

from filelock import BaseFileLock

from anocaps.base.files import lock, marker, unlock

SUFFIX = ".running"


class Reservations:
    """The cells of one folder that this process runs; a `with` block gives them back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mine: dict[str, BaseFileLock] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._mine):
            self.give_back(name)

    def take(self, name: str) -> bool:
        """Whether cell `name` is now this process's to run."""
        path = self._folder / f"{name}{SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        held = lock(path)
        if held is not None:
            self._mine[name] = held
        return held is not None

    def give_back(self, name: str) -> None:
        unlock(self._mine.pop(name))


def is_running(path: Path) -> bool:
    """Whether a runner holds this reservation; what a killed one left is removed."""
    if not (path.exists() or marker(path).exists()):
        return False
    held = lock(path, 0)
    if held is not None:
        unlock(held)
    return held is None
