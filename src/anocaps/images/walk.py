"""Find image files: given files, and all images in given folders and their sub-folders."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anocaps.base.text import shown
from anocaps.images.decode import EXTENSIONS, ImageError

_NAMED_AT_MOST = 20


@dataclass
class PassedOver:
    """Files and links that a walk left out."""

    others: Counter[str] = field(default_factory=Counter)  # files that are no images, by extension
    links: list[Path] = field(default_factory=list)  # links that were not followed

    def sentences(self) -> list[str]:
        """Sentences for the user; none if nothing was left out."""
        return list(filter(None, (passed_over(self.others), links_passed_over(self.links))))


def list_images(
    paths: Iterable[Path], passed: PassedOver | None = None, follow_links: bool = True
) -> Iterator[Path]:
    """The given files, and all images below the given folders, sorted.

    A missing path raises an error before the first file. Memory holds only the names in the open
    folders. `passed` and `follow_links` are as in `walk`. A given path may be a link.
    """
    places = [Path(path) for path in paths]
    for place in places:
        if not os.path.lexists(place):
            raise ImageError(f"{shown(place)} does not exist; give an image or a folder of them.")
    entered: set[tuple[int, int]] = set()

    def files() -> Iterator[Path]:
        for place in places:
            if place.is_dir():
                yield from walk(place, entered, passed, follow_links=follow_links)
            else:
                yield place

    return files()


def walk(
    folder: Path,
    entered: set[tuple[int, int]],
    passed: PassedOver | None = None,
    above: Sequence[Path] = (),
    follow_links: bool = True,
) -> Iterator[Path]:
    """All files below a folder that have an image extension, sorted, without hidden ones.

    The walk skips the folders in `entered` and adds each folder to it, so that none is entered
    twice. It does not follow a link to a parent folder or to one of `above`. Without
    `follow_links`, it follows no link. It yields a folder that cannot be opened like an image:
    reading it raises an error with its name. `passed` collects what is left out.
    """
    passed = PassedOver() if passed is None else passed
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
        if not follow_links and os.path.islink(place / name):
            passed.links.append(place / name)
        elif suffix in EXTENSIONS and not is_folder:
            yield place / name
        elif is_bad_link(place / name, [*above, *(each for each, _ in levels)]):
            passed.links.append(place / name)
        elif is_folder:
            levels.append((place / name, _entries(place / name, entered)))
        else:
            passed.others[suffix] += 1


def is_hidden(name: str) -> bool:
    """Whether every walk leaves out a file or folder of this name."""
    return name.startswith(".")


def is_bad_link(path: Path, above: Iterable[Path]) -> bool:
    """Whether this is a broken link, or a link to a folder that contains one of `above`."""
    if not os.path.islink(path):
        return False
    target = os.path.realpath(path)
    return not os.path.exists(path) or any(
        Path(os.path.realpath(folder)).is_relative_to(target) for folder in above
    )


def passed_over(others: Mapping[str, int]) -> str:
    """A sentence on files without an image extension, such as .heic."""
    if not others:
        return ""
    kinds = ", ".join(f"{shown(suffix or 'no extension')} {n:,}" for suffix, n in others.items())
    return f"Left out files without an image extension: {kinds}."


def links_passed_over(links: Sequence[str | Path]) -> str:
    """A sentence on links that were not followed."""
    if not links:
        return ""
    names = ", ".join(map(shown, links[:_NAMED_AT_MOST]))
    more = f" and {len(links) - _NAMED_AT_MOST:,} more" if len(links) > _NAMED_AT_MOST else ""
    return f"Did not follow {len(links):,} link{'' if len(links) == 1 else 's'}: {names}{more}."


def identity(folder: Path) -> tuple[int, int]:
    """A key that is the same for all paths of one folder."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _entries(folder: Path, entered: set[tuple[int, int]]) -> list[tuple[str, bool]] | None:
    """Pairs (name, whether it is a folder) in reverse order. None if the folder is unreadable."""
    try:
        if (this := identity(folder)) in entered:
            return []
        entered.add(this)
        with os.scandir(folder) as found:
            names = [(e.name, _is_folder(e)) for e in found if not is_hidden(e.name)]
    except OSError:
        return None
    return sorted(names, reverse=True)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
