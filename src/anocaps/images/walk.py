"""Which files are images: those that are named, and all below folders, any number of them."""

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
    """What a walk meets and does not take, to be told."""

    others: Counter[str] = field(default_factory=Counter)  # files that are no images, by extension
    links: list[Path] = field(default_factory=list)  # that lead astray

    def sentences(self) -> list[str]:
        """Empty where all was taken."""
        return list(filter(None, (passed_over(self.others), links_passed_over(self.links))))


def list_images(paths: Iterable[Path], passed: PassedOver | None = None) -> Iterator[Path]:
    """Files as they are named, and all images below folders, sorted; one folder's names in memory.

    A missing path is an error at once, not when its turn comes. `passed` as for `walk`.
    """
    places = [Path(path) for path in paths]
    for place in places:
        if not os.path.lexists(place):
            raise ImageError(f"{shown(place)} does not exist; give an image or a folder of them.")
    entered: set[tuple[int, int]] = set()

    def files() -> Iterator[Path]:
        for place in places:
            if place.is_dir():
                yield from walk(place, entered, passed)
            else:
                yield place

    return files()


def walk(
    folder: Path,
    entered: set[tuple[int, int]],
    passed: PassedOver | None = None,
    above: Sequence[Path] = (),
) -> Iterator[Path]:
    """All images below a folder, by their extension, in sorted order; hidden names are left out.

    Links are followed, but every real folder is entered once: `entered` holds those to stay out
    of, so that a loop ends; and no link is followed to a folder above, be it above this one or
    one of those that it was reached by, `above`. A folder that cannot be opened is yielded as if it
    were an image, so that whoever reads it gets an error with its name. `passed` gets what else
    there is.
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
        if suffix in EXTENSIONS and not is_folder:
            yield place / name
        elif leads_astray(place / name, [*above, *(each for each, _ in levels)]):
            passed.links.append(place / name)
        elif is_folder:
            levels.append((place / name, _entries(place / name, entered)))
        else:
            passed.others[suffix] += 1


def leads_astray(path: Path, above: Iterable[Path]) -> bool:
    """Whether this is a link that leads nowhere, or to a folder that holds one of those that it was
    reached by, `above`: a circle, or all that lies there would be taken in."""
    if not os.path.islink(path):
        return False
    target = os.path.realpath(path)
    return not os.path.exists(path) or any(
        Path(os.path.realpath(folder)).is_relative_to(target) for folder in above
    )


def passed_over(others: Mapping[str, int]) -> str:
    """What `walk` counted beside images: phones write .heic, for example. Empty where nothing."""
    if not others:
        return ""
    kinds = ", ".join(f"{shown(suffix or 'no extension')} {n:,}" for suffix, n in others.items())
    return f"Not looked at, since their names are not those of images: {kinds}."


def links_passed_over(links: Sequence[str | Path]) -> str:
    """Likewise of links that lead astray."""
    if not links:
        return ""
    many = "1 link, which leads" if len(links) == 1 else f"{len(links):,} links, which lead"
    names = ", ".join(map(shown, links[:_NAMED_AT_MOST]))
    more = f" and {len(links) - _NAMED_AT_MOST:,} more" if len(links) > _NAMED_AT_MOST else ""
    return f"Not followed: {many} in a circle, to a folder above or nowhere: {names}{more}."


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
