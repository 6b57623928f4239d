"""What is in a folder of images, before anything is trained: counts, sizes, and what is wrong.

Every file is read once, in full, and forgotten: what stays of it is its name and 30 bytes.
"""

import hashlib
import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anocaps.data.fitting import choose_fit
from anocaps.data.folder import FEW, FEWEST, find_classes
from anocaps.errors import InputError
from anocaps.pictures import Fit, PictureError, Seen, decode, describe, in_order, look, shown

_NAMED_AT_MOST = 20
_ODD = 1.25  # a size or aspect ratio off the median by less than this factor is never odd

_KINDS = {
    "1": "black and white", "L": "grey", "LA": "grey with transparency", "F": "float grey",
    "I": "32-bit grey", "I;16": "16-bit grey", "I;16B": "16-bit grey", "P": "palette",
    "PA": "palette with transparency", "RGB": "RGB", "RGBA": "RGB with transparency",
}  # fmt: skip


@dataclass(frozen=True)
class Duplicates:
    files: tuple[str, ...]
    classes: tuple[str, ...]  # they lie in; more than one is a contradiction
    same: str  # "bytes", or "pixels" where the files differ and the images do not


@dataclass
class FolderCheck:
    """Everything here can be written as JSON with `dataclasses.asdict`; sizes are width, height."""

    folder: str
    classes: dict[str, int] = field(default_factory=dict)  # readable images
    formats: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)  # Pillow's names
    smallest: tuple[int, int] | None = None  # by area
    median: tuple[int, int] | None = None
    largest: tuple[int, int] | None = None
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # file, reason
    duplicates: list[Duplicates] = field(default_factory=list)
    odd_sized: list[tuple[str, int, int]] = field(default_factory=list)  # file, width, height
    several: list[str] = field(default_factory=list)  # files of which only the first frame is read
    others: dict[str, int] = field(default_factory=dict)  # files that are no images, by extension
    fit: Fit | None = None  # how training would read the images

    @property
    def too_few(self) -> list[str]:
        """Classes that cannot be trained on."""
        return [name for name, count in self.classes.items() if count < FEWEST]

    @property
    def few(self) -> list[str]:
        """Classes that can, but poorly."""
        return [name for name, count in self.classes.items() if FEWEST <= count < FEW]


def check_folder(
    path: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,  # files read, files in all
) -> FolderCheck:
    """Read every image of a folder that `ImageFolder` could be asked to train on."""
    folder = Path(path)
    others: Counter[str] = Counter()
    classes = find_classes(folder, others)
    check = FolderCheck(str(folder), others=dict(others.most_common()))
    tally = _Tally(check)
    files = [(name, file) for name, members in classes.items() for file in members]
    check.classes = dict.fromkeys(classes, 0)

    def seen() -> Iterator[Seen]:
        for done, (name, file, found) in enumerate(in_order(_examine, files), 1):
            if isinstance(found, PictureError):
                check.unreadable.append((str(file), str(found)))
            else:
                tally.add(name, found)
                yield found.seen
            if progress is not None:
                progress(done, len(files))

    try:
        check.fit = choose_fit(seen())
    except InputError:  # not one image can be read: the list of them says so
        return check
    tally.close()
    return check


@dataclass(frozen=True)
class _Examined:
    seen: Seen
    content: int  # 64 bits of a hash of the file
    pixels: int  # and of the decoded image


def _examine(entry: tuple[str, Path]) -> tuple[str, Path, _Examined | PictureError]:
    name, file = entry
    try:
        seen = look(file)
        image = decode(file).convert("RGB")  # grey is grey, in whatever mode
        with open(file, "rb") as stream:
            content = hashlib.file_digest(stream, "sha256")
    except PictureError as error:
        return name, file, error
    except OSError as error:  # it vanished since
        return name, file, PictureError(f"{shown(file)} cannot be opened ({error.strerror}).")
    pixels = hashlib.sha256(f"{image.size}".encode() + image.tobytes())
    keys = [int.from_bytes(digest.digest()[:8], "big") for digest in (content, pixels)]
    return name, file, _Examined(seen, *keys)


class _Tally:
    """Collects one file after the other, then fills in what needs all of them."""

    def __init__(self, check: FolderCheck) -> None:
        self.check = check
        self.files: list[str] = []
        self.labels: list[str] = []
        self.widths, self.heights = array("I"), array("I")
        self.contents, self.pixels = array("Q"), array("Q")

    def add(self, name: str, found: _Examined) -> None:
        seen, check = found.seen, self.check
        check.classes[name] += 1
        check.formats[seen.format] = check.formats.get(seen.format, 0) + 1
        check.modes[seen.mode] = check.modes.get(seen.mode, 0) + 1
        if seen.several:
            check.several.append(str(seen.path))
        self.files.append(str(seen.path))
        self.labels.append(name)
        self.widths.append(seen.width)
        self.heights.append(seen.height)
        self.contents.append(found.content)
        self.pixels.append(found.pixels)

    def close(self) -> None:
        widths, heights = np.array(self.widths, np.int64), np.array(self.heights, np.int64)
        areas = widths * heights
        small, large = areas.argmin(), areas.argmax()
        self.check.smallest = int(widths[small]), int(heights[small])
        self.check.median = int(np.median(widths)), int(np.median(heights))
        self.check.largest = int(widths[large]), int(heights[large])
        self.check.odd_sized = [
            (self.files[i], int(widths[i]), int(heights[i]))
            for i in np.flatnonzero(_odd(widths, heights))
        ]
        groups = _groups(np.array(self.pixels, np.uint64))
        found = [self._duplicates(group) for group in groups]
        # Contradictions first; the sort is stable, so files stay in order.
        self.check.duplicates = sorted(found, key=lambda group: len(group.classes) == 1)

    def _duplicates(self, group: list[int]) -> Duplicates:
        return Duplicates(
            tuple(self.files[i] for i in group),
            tuple(sorted({self.labels[i] for i in group})),
            "bytes" if len({self.contents[i] for i in group}) == 1 else "pixels",
        )


def _odd(widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which files are far from the median in size or shape, measured by how much all differ."""
    odd = np.zeros(len(widths), dtype=bool)
    for values in (np.log(widths * heights) / 2, np.log(widths / heights)):
        off = np.abs(values - np.median(values))
        odd |= off > max(math.log(_ODD), 4 * float(np.median(off)))
    return odd


def _groups(keys: NDArray[np.uint64]) -> list[list[int]]:
    """Indices with equal keys, in groups of two or more, in order of their first."""
    order = np.argsort(keys, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
    return sorted(run.tolist() for run in runs if len(run) > 1)


# ── in words ─────────────────────────────────────────────────────────────────────────────────


def sentences(check: FolderCheck) -> list[str]:
    """The check for a terminal: what there is, what is wrong, how training would read it."""
    count = sum(check.classes.values())
    counts = ", ".join(f"{shown(name)} {number:,}" for name, number in check.classes.items())
    said = [f"{shown(check.folder)}: {_many(count, 'image')} in {_classes(check)}: {counts}."]
    if check.fit is not None:
        said += [_sizes(check), f"Formats: {_list(check.formats)}. Pixels: {_list(_kinds(check))}."]
    problems = list(_problems(check))
    said += problems or ["Nothing is wrong with them."]
    if check.fit is not None:
        said.append(f"For training: {describe(check.fit)}")
    return said


def _problems(check: FolderCheck) -> Iterator[str]:
    if check.unreadable:
        yield f"{_many(len(check.unreadable), 'file')} cannot be read:"
        yield from _named([reason for _, reason in check.unreadable])
    across = [group for group in check.duplicates if len(group.classes) > 1]
    within = [group for group in check.duplicates if len(group.classes) == 1]
    if across:
        yield "The same image lies in several classes, so that at least one label is wrong:"
        yield from _named([_group(group) for group in across])
    if within:
        yield "The same image lies in one class more than once, where one copy will do:"
        yield from _named([_group(group) for group in within])
    if check.odd_sized:
        yield f"{_many(len(check.odd_sized), 'file')} of an odd size or shape:"
        yield from _named([f"{shown(f)} is {w}×{h} pixels" for f, w, h in check.odd_sized])
    for names, what in (
        (check.too_few, f"Too few images to train on, {FEWEST} of a class are needed"),
        (check.few, f"Few images, {FEW} or more of a class are better"),
    ):
        if names:
            yield f"{what}: {', '.join(f'{shown(n)} ({check.classes[n]})' for n in names)}."
    if check.several:
        yield f"{_many(len(check.several), 'file')} with several frames or pages, the first counts:"
        yield from _named([shown(file) for file in check.several])
    if check.others:
        kinds = _list({suffix or "no extension": n for suffix, n in check.others.items()})
        yield f"Not looked at, since their names are not those of images: {kinds}."


def _named(lines: list[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:_NAMED_AT_MOST])
    if len(lines) > _NAMED_AT_MOST:
        yield f"  and {len(lines) - _NAMED_AT_MOST:,} more."


def _group(group: Duplicates) -> str:
    names = ", ".join(shown(file) for file in group.files[:_NAMED_AT_MOST])
    more = len(group.files) - _NAMED_AT_MOST
    note = "" if group.same == "bytes" else " (other files, same pixels)"
    return f"{names}{f' and {more:,} more' if more > 0 else ''}{note}"


def _sizes(check: FolderCheck) -> str:
    assert check.smallest and check.median and check.largest
    small, median, large = (f"{w}×{h}" for w, h in (check.smallest, check.median, check.largest))
    if small == median == large and not check.odd_sized:
        return f"All are {small} pixels."
    return f"Sizes from {small} to {large} pixels, the median is {median}."


def _kinds(check: FolderCheck) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for mode, number in check.modes.items():
        kinds[_KINDS.get(mode, mode)] += number
    return dict(kinds.most_common())


def _classes(check: FolderCheck) -> str:
    return "one class" if len(check.classes) == 1 else f"{len(check.classes)} classes"


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{shown(name)} {number:,}" for name, number in counts.items())


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
