"""Check a folder of images before training: counts, sizes and problems.

Files are read as in training, so that check and training refuse the same files. Memory keeps only
the header and a fingerprint of each file.
"""

import filecmp
import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anocaps.base.text import shown
from anocaps.images.decode import Fit, Header, ImageError, describe
from anocaps.images.fitting import choose_fit, photo_chosen
from anocaps.images.folder import (
    FEW,
    FEWEST,
    ClassFolders,
    find_classes,
    fingerprint,
    headers,
    same_images,
)
from anocaps.images.names import name_warnings, one_class
from anocaps.images.reading import read_images
from anocaps.images.sizes import Sizes, describe_size, describe_sizes, sizes_of
from anocaps.images.walk import links_passed_over, passed_over

_NAMED_AT_MOST = 20
_UNUSUAL = 1.25  # a size or aspect ratio within this factor of the median is not unusual

_KINDS = {
    "1": "black and white", "L": "grey", "LA": "grey with transparency", "F": "float grey",
    "I": "32-bit grey", "I;16": "16-bit grey", "I;16B": "16-bit grey", "P": "palette",
    "PA": "palette with transparency", "RGB": "RGB", "RGBA": "RGB with transparency",
}  # fmt: skip


@dataclass(frozen=True)
class Duplicates:
    files: tuple[str, ...]
    classes: tuple[str, ...]  # of these files; several mean a wrong label
    same: str  # "bytes", or "pixels" if only the pixels are the same


@dataclass
class FolderCheck:
    """The findings. `dataclasses.asdict` makes them JSON. Sizes are width and height."""

    folder: str
    classes: dict[str, int] = field(default_factory=dict)  # readable images
    formats: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)  # Pillow's names
    warnings: list[str] = field(default_factory=list)  # on names and number of classes
    sizes: Sizes | None = None  # of the readable images
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # file, reason
    duplicates: list[Duplicates] = field(default_factory=list)
    unusual_sizes: list[tuple[str, int, int]] = field(default_factory=list)  # file, width, height
    several: list[str] = field(default_factory=list)  # files with several frames
    others: dict[str, int] = field(default_factory=dict)  # other files, by extension
    links: list[str] = field(default_factory=list)  # not followed
    fit: Fit | None = None  # how training would read the images
    photo: bool = False  # whether training would choose preset "photo"
    usable: dict[str, int] = field(default_factory=dict)  # without copies and wrong labels
    too_few: list[str] = field(default_factory=list)  # classes with too few images to train on
    few: list[str] = field(default_factory=list)  # classes with few images
    refused: bool = False  # whether training without --skip-bad refuses the folder


def check_folder(
    path: str | os.PathLike[str] | ClassFolders,
    progress: Callable[[int, int], None] | None = None,  # files read, all files
    follow_links: bool = True,
) -> FolderCheck:
    """Check a folder of the kind that `ImageFolder` reads."""
    found = path if isinstance(path, ClassFolders) else find_classes(path, follow_links)
    classes = found.classes
    label_of = {file: name for name, members in classes.items() for file in members}
    check = FolderCheck(str(found.folder), others=dict(found.passed.others.most_common()))
    check.links = [str(link) for link in found.passed.links]
    check.warnings = [*name_warnings(found), *one_class(classes)]
    seen, reasons = headers(label_of)
    good: list[Header] = []
    keys = array("Q")  # fingerprints of the good files
    if seen:
        check.photo = photo_chosen(len(classes), seen.values())
        check.fit = choose_fit(seen.values(), photo=check.photo)
        for file, pixels in read_images(seen, check.fit):
            if isinstance(pixels, ImageError):
                reasons[file] = str(pixels)
            else:
                good.append(seen[file])
                keys.append(fingerprint(pixels))
            if progress is not None:
                progress(len(good) + len(reasons), len(label_of))
    labels = [label_of[one.path] for one in good]
    check.classes = dict.fromkeys(classes, 0) | Counter(labels)
    check.unreadable = [(str(file), reasons[file]) for file in label_of if file in reasons]
    if good:
        _tell_sizes(check, good)
    else:
        check.fit = None
    check.formats = dict(Counter(one.format for one in good))
    check.modes = dict(Counter(one.mode for one in good))
    check.several = [str(one.path) for one in good if one.several]
    _tell_copies(check, good, labels, keys)
    check.too_few = [name for name, count in check.usable.items() if count < FEWEST]
    check.few = [name for name, count in check.usable.items() if FEWEST <= count < FEW]
    contradicted = any(len(group.classes) > 1 for group in check.duplicates)
    check.refused = bool(check.unreadable or contradicted or check.too_few)
    return check


def _tell_sizes(check: FolderCheck, seen: list[Header]) -> None:
    widths, heights = np.array([(one.width, one.height) for one in seen], np.int64).T
    check.sizes = sizes_of(seen)
    unusual = (seen[k] for k in np.flatnonzero(_unusual(widths, heights)))
    check.unusual_sizes = [(str(one.path), one.width, one.height) for one in unusual]


def _tell_copies(
    check: FolderCheck, seen: list[Header], labels: list[str], keys: Sequence[int]
) -> None:
    check.usable = dict(check.classes)
    for group in same_images(keys):
        files = [seen[k].path for k in group]
        names = [labels[k] for k in group]
        same = "bytes" if _same_bytes(files) else "pixels"
        found = Duplicates(tuple(map(str, files)), tuple(sorted(set(names))), same)
        check.duplicates.append(found)
        for name in names if len(found.classes) > 1 else names[1:]:
            check.usable[name] -= 1
    # wrong labels first; the sort is stable
    check.duplicates.sort(key=lambda group: len(group.classes) == 1)


def _same_bytes(files: list[Path]) -> bool:
    try:
        return all(filecmp.cmp(files[0], file, shallow=False) for file in files[1:])
    except OSError:  # a file has been removed
        return False


def _unusual(widths: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a size or shape is far from the median: 4 median deviations and a factor of 1.25."""
    unusual = np.zeros(len(widths), dtype=bool)
    for values in (np.log(widths * heights) / 2, np.log(widths / heights)):
        off = np.abs(values - np.median(values))
        unusual |= off > max(math.log(_UNUSUAL), 4 * float(np.median(off)))
    return unusual


# ── as text ─────────────────────────────────────────────────────────────────────────────────


def sentences(check: FolderCheck) -> list[str]:
    """The check as lines for a terminal: contents, problems, and how training reads the images."""
    count = sum(check.classes.values())
    counts = _list(check.classes)
    said = [f"{shown(check.folder)}: {_many(count, 'image')} in {_classes(check)}: {counts}."]
    if check.sizes is not None:
        kinds = f"Formats: {_list(check.formats)}. Pixels: {_list(_kinds(check))}."
        said += [describe_sizes(check.sizes), kinds]
    said += one_class(check.classes)
    problems = list(_problems(check))
    said += problems or ["No problems found."]
    if check.fit is not None and check.sizes is not None:
        size = describe_size(check.sizes, check.fit, check.photo)
        said.append(f"For training: {describe(check.fit)} {size}")
    if check.refused:
        mend = "" if check.too_few else "; --skip-bad leaves out the bad files"
        said.append(f"Training refuses this folder{mend}.")
    return said


def _problems(check: FolderCheck) -> Iterator[str]:
    if check.unreadable:
        yield f"{_many(len(check.unreadable), 'file')} cannot be read:"
        yield from _named([reason for _, reason in check.unreadable])
    across = [group for group in check.duplicates if len(group.classes) > 1]
    within = [group for group in check.duplicates if len(group.classes) == 1]
    if across:
        yield "The same image is in several classes, so at least one label is wrong:"
        yield from _named([_group(group) for group in across])
    if within:
        yield "The same image is several times in one class; training uses the first:"
        yield from _named([_group(group) for group in within])
    if check.unusual_sizes:
        yield f"{_many(len(check.unusual_sizes), 'file')} of an unusual size or shape:"
        yield from _named([f"{shown(f)} is {w}×{h} pixels" for f, w, h in check.unusual_sizes])
    for names, what in (
        (check.too_few, f"Too few images to train on (a class needs {FEWEST})"),
        (check.few, f"Few images ({FEW} or more per class are better)"),
    ):
        if names:
            yield f"{what}: {', '.join(f'{shown(n)} ({check.usable[n]})' for n in names)}."
    if check.several:
        yield f"{_many(len(check.several), 'file')} with several frames; training reads the first:"
        yield from _named([shown(file) for file in check.several])
    if check.others:
        yield passed_over(check.others)
    if check.links:
        yield links_passed_over(check.links)


def _named(lines: list[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:_NAMED_AT_MOST])
    if len(lines) > _NAMED_AT_MOST:
        yield f"  and {len(lines) - _NAMED_AT_MOST:,} more."


def _group(group: Duplicates) -> str:
    names = ", ".join(shown(file) for file in group.files[:_NAMED_AT_MOST])
    more = len(group.files) - _NAMED_AT_MOST
    note = "" if group.same == "bytes" else " (different files, same pixels)"
    return f"{names}{f' and {more:,} more' if more > 0 else ''}{note}"


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
