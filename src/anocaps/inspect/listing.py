"""The image files of a run, found in one walk through its folders."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from weakref import finalize

from anocaps.base.errors import DataError
from anocaps.base.text import shown
from anocaps.images.walk import PassedOver, list_images

_IN_MEMORY = 2**24  # bytes of file names; a longer list goes to a temporary file
_READ = 2**16  # bytes read at a time


class Listing:
    """The files to score, each listed once."""

    def __init__(self, paths: Iterable[Path], follow_links: bool = True) -> None:
        self.paths = list(paths)
        self.repeated = 0  # how often a file was named again
        self.passed = PassedOver()
        self.follow_links = follow_links
        self._count = 0
        self._names = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        finalize(self, self._names.close)
        for file in self._found():
            self._names.write(os.fsencode(file) + b"\0")
            self._count += 1
        if not self._count:
            nothing = f"{shown(self.paths[0])}: there is no image here."
            raise DataError(" ".join([nothing, *self.passed.sentences()]))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Path]:
        place, rest = 0, b""
        while True:
            self._names.seek(place)
            if not (part := self._names.read(_READ)):
                return
            place += len(part)
            *names, rest = (rest + part).split(b"\0")
            yield from (Path(os.fsdecode(name)) for name in names)

    def _found(self) -> Iterator[Path]:
        """The files without repeats. Folders are entered once, so only named files can repeat."""
        named = {os.path.realpath(path) for path in self.paths if not os.path.isdir(path)}
        met: set[str] = set()
        for file in list_images(self.paths, self.passed, self.follow_links):
            if named:
                real = os.path.realpath(file)
                if real in met:
                    self.repeated += 1
                    continue
                met.update({real} & named)
            yield file
