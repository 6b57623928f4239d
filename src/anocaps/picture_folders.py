"""Which files are images: those that are named, and all below folders, any number of them."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from anocaps.pictures import EXTENSIONS, PictureError, shown


def list_pictures(paths: Iterable[Path], others: Counter[str] | None = None) -> Iterator[Path]:
    """Files as they are named, and all images below folders, sorted; one folder's names in memory.

    A missing path is an error at once, not when its turn comes. `others` as for `walk`.
    """
    places = [Path(path) for path in paths]
    for place in places:
        if not os.path.lexists(place):
            raise PictureError(f"{shown(place)} does not exist; give an image or a folder of them.")
    entered: set[tuple[int, int]] = set()

    def files() -> Iterator[Path]:
        for place in places:
            if place.is_dir():
                yield from walk(place, entered, others)
            else:
                yield place

    return files()


def walk(
    folder: Path, entered: set[tuple[int, int]], others: Counter[str] | None = None
) -> Iterator[Path]:
    """All images below a folder, by their extension, in sorted order; hidden names are left out.

    Links are followed, but every real folder is entered once: `entered` holds those to stay out
    of, so that a loop ends. A folder that cannot be opened is yielded as if it were an image, so
    that whoever reads it gets an error with its name. `others` counts what else there is.
    """
    levels = [(folder, _entries(folder, entered))]
    while levels:
        place, entries = levels[-1]
        if entries is None:
            yield place
        if not entries:
            levels.pop()
            continue
        name, is_folder = entries.pop()
        suffix = os.path.splitext(name)[1].lower()
        if is_folder:
            levels.append((place / name, _entries(place / name, entered)))
        elif suffix in EXTENSIONS:
            yield place / name
        elif others is not None:
            others[suffix] += 1


def passed_over(others: Mapping[str, int]) -> str:
    """What `walk` counted beside images: phones write .heic, for example. Empty where nothing."""
    if not others:
        return ""
    kinds = ", ".join(f"{shown(suffix or 'no extension')} {n:,}" for suffix, n in others.items())
    return f"Not looked at, since their names are not those of images: {kinds}."


def identity(folder: Path) -> tuple[int, int]:
    """What a folder is, whatever it is called."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _entries(folder: Path, entered: set[tuple[int, int]]) -> list[tuple[str, bool]] | None:
    """Names and whether they are folders, last one first; None if the folder cannot be read."""
    try:
        if (this := identity(folder)) in entered:
            return []
        entered.add(this)
        with os.scandir(folder) as found:
            names = [(e.name, _is_folder(e)) for e in found if not e.name.startswith(".")]
    except OSError:
        return None
    return sorted(names, reverse=True)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
