"""Find new image files: look into the folders once a second."""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from anocaps.images.decode import ImageError
from anocaps.images.walk import list_images
from anocaps.inspect.scoring import Scored, fingerprint, score_batches
from anocaps.judging.judgement import Judge

_EVERY = 1.0  # seconds between two looks


class Arrivals:
    """The new files below some folders, each once.

    A file is complete if it is not empty and its size and time are the same in two looks. A file
    that is replaced later does not count as new.
    """

    def __init__(self, paths: Sequence[Path], follow_links: bool = True) -> None:
        self.paths, self.follow_links = paths, follow_links
        self._known: set[bytes] = set()  # 16 bytes a file
        self._waiting: dict[Path, tuple[int, int]] = {}  # size and time at the last look

    def know(self, files: Iterable[Path]) -> None:
        """Leave these files out."""
        self._known.update(map(fingerprint, files))

    def look(self) -> list[Path]:
        """The files that are complete since the last look."""
        complete: list[Path] = []
        waiting: dict[Path, tuple[int, int]] = {}
        with suppress(ImageError):  # a folder may be missing for a moment
            for file in list_images(self.paths, follow_links=self.follow_links):
                if fingerprint(file) in self._known or (state := _state(file)) is None:
                    continue
                if self._waiting.get(file) == state:
                    complete.append(file)
                    self._known.add(fingerprint(file))
                else:
                    waiting[file] = state
        self._waiting = waiting
        return complete


def score_arrivals(
    judge: Judge,
    arrivals: Arrivals,
    alpha: float,
    stopping: Callable[[], bool],
    with_heat: bool = False,
) -> Iterator[list[Scored]]:
    """Score files as they arrive, in batches. Call `stopping` after every batch and every look."""
    while not stopping():
        for batch in score_batches(judge, arrivals.look(), alpha, with_heat):
            yield batch
            if stopping():
                return
        time.sleep(_EVERY)


def _state(file: Path) -> tuple[int, int] | None:
    """Size and time of a file with content."""
    try:
        found = os.stat(file)
    except OSError:  # it was removed meanwhile
        return None
    return (
        (found.st_size, found.st_mtime_ns)
        if stat.S_ISREG(found.st_mode) and found.st_size
        else None
    )
