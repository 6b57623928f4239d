"""Folders of images: one sub-folder per class, or one class in a flat folder.

Pillow is imported inside the functions, because named datasets do not need it.
"""

import hashlib
import os
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import DataError, InputError
from anocaps.base.rows import Rows, first_rows, room_for
from anocaps.base.text import shown

if TYPE_CHECKING:
    from anocaps.images.decode import Fit, Header, How
    from anocaps.images.sizes import Sizes
    from anocaps.images.walk import PassedOver

FEWEST = 5  # images that a class needs to train, validate and calibrate
FEW = 20  # images of a class that give good results
_NAMED_AT_MOST = 20
_MEND = "Move them away, or train without them: --skip-bad (in Python: skip_bad=True)."


@dataclass(frozen=True)
class ClassFolders:
    """The files of a folder, found in one walk."""

    folder: Path
    classes: dict[str, list[Path]]  # class name → its files, both sorted
    passed: "PassedOver"  # other files, and links that were not followed


class ImageFolder:
    """Read all images of a folder into one array.

    Each sub-folder is a class and includes everything below it. A folder of files is one class,
    named after the folder. `detector.fit(ImageFolder(path))` trains on it.

    If `fewest` is above 1, as for training, copies of an image are left out. If training and
    calibration set shared copies, the false-alarm rate would be wrong. The first of several copies
    in one class is kept. If an image is in two classes, one label is wrong, so all its copies are
    bad files.

    Parameters
    ----------
    path : str, PathLike or ClassFolders
        The folder, or the result of `find_classes`.
    size : int, optional
        Side of the square that images are fitted to. With `photo`, the shorter side. By default
        chosen from the files.
    fit : Fit, optional
        How files become images of one size, for example the fit of a trained model. It excludes
        `size`, `how` and `channels`.
    skip_bad : bool, default False
        Leave out files that cannot be used, instead of raising an error.
    how : {"resize", "letterbox", "crop"}, optional
        How an image is fitted to the size. By default chosen from the shapes of the files.
    channels : {1, 3}, optional
        Grey or colour. By default colour, if more than 2 % of the files show colour.
    photo : bool, optional
        Whether the images are for preset "photo", which takes large ones. By default the choice of
        preset "auto".
    fewest : int, default 5
        Images that every class needs. For scoring, 1 is enough.
    mend : str
        Advice at the end of an error that names bad files.
    progress : callable, optional
        Receives the number of files read and the number of all files.
    follow_links : bool, default True
        Follow symbolic links to files and folders.

    Attributes
    ----------
    images : uint8 array of shape (N, H, W, C)
        In the order of `files`. If they take more than 1 GiB, they are in a temporary file. Slices
        are arrays in any case.
    labels : str array of shape (N,)
        Class names.
    class_names : tuple of str
        Sorted.
    files : tuple of Path
        Sorted within a class.
    fit : Fit
        How the files were fitted.
    photo : bool
        Whether they are for preset "photo".
    sizes : Sizes
        Widths and heights of the files. None if `fit` is given.
    skipped : tuple of (Path, str)
        Files that were left out, with the reason.
    duplicates : tuple of (Path, Path)
        Copies that were left out, with the file that was kept.
    passed : PassedOver
        Files that are no images, by extension, and links that were not followed.

    Examples
    --------
    >>> photos = ImageFolder("photos")  # doctest: +SKIP
    >>> detector.fit(photos)  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | ClassFolders,
        size: int | None = None,
        fit: "Fit | None" = None,
        skip_bad: bool = False,
        *,
        how: "How | None" = None,
        channels: int | None = None,
        photo: bool | None = None,
        fewest: int = FEWEST,
        mend: str = _MEND,
        progress: Callable[[int, int], None] | None = None,
        follow_links: bool = True,
    ) -> None:
        from anocaps.images.reading import read_images

        if fit is not None and (size, how, channels) != (None, None, None):
            raise InputError("fit excludes size, how and channels; give one or the other")
        found = path if isinstance(path, ClassFolders) else find_classes(path, follow_links)
        folder, classes = found.folder, found.classes
        _refuse_small({name: len(members) for name, members in classes.items()}, fewest, folder)
        label_of = {file: name for name, members in classes.items() for file in members}
        files = list(label_of)
        reasons: dict[Path, str] = {}  # why a file is bad
        self.sizes: Sizes | None = None
        if fit is None:
            from anocaps.images.fitting import choose_fit, photo_chosen
            from anocaps.images.sizes import sizes_of

            seen, reasons = headers(files)
            if not seen:
                raise _refusal(folder, tuple(reasons.items()), len(files), mend)
            if photo is None:
                photo = photo_chosen(len(classes), seen.values())
            fit = choose_fit(seen.values(), size, how, channels, photo)
            self.sizes = sizes_of(seen.values())

        good: list[Path] = []
        keys = array("Q")  # fingerprints of the good files
        images = room_for((len(files), fit.height, fit.width, fit.channels), np.uint8)
        readable = [file for file in files if file not in reasons]
        for file, pixels in read_images(readable, fit):
            if isinstance(pixels, np.ndarray):
                images[len(good) : len(good) + 1] = pixels[None]
                good.append(file)
                keys.append(fingerprint(pixels))
            else:
                reasons[file] = str(pixels)
            if progress is not None:
                progress(len(good) + len(reasons), len(files))
        copies: dict[Path, Path] = {}  # copy → the file that is kept
        if fewest > 1:
            copies = _copies(good, keys, label_of, reasons)
        skipped = tuple((file, reasons[file]) for file in files if file in reasons)
        if skipped and not skip_bad:
            raise _refusal(folder, skipped, len(files), mend)
        kept = [k for k, file in enumerate(good) if file not in copies and file not in reasons]
        for place, k in enumerate(kept):  # in place: memory may not hold two such arrays
            images[place : place + 1] = images[k : k + 1]
        good = [good[k] for k in kept]

        self.path = folder
        self.images: Rows = first_rows(images, len(good))
        self.labels: NDArray[np.str_] = np.array([label_of[file] for file in good], dtype=np.str_)
        self.class_names = tuple(classes)
        self.files = tuple(good)
        self.fit = fit
        self.photo = bool(photo)
        self.skipped = skipped
        self.duplicates = tuple(copies.items())
        self.passed = found.passed
        number = Counter(self.labels.tolist())
        counts = {name: number[name] for name in classes}
        _refuse_small(counts, fewest, folder)
        if fewest > 1:
            _warn_of_few(counts)

    def __repr__(self) -> str:
        height, width, channels = self.images.shape[1:]
        classes = f"{len(self.class_names)} class{'' if len(self.class_names) == 1 else 'es'}"
        size = f"{len(self.files)} images of {height}×{width}×{channels}"
        return f"ImageFolder({str(self.path)!r}: {size}, {classes}, {len(self.skipped)} skipped)"


def find_classes(path: str | os.PathLike[str], follow_links: bool = True) -> ClassFolders:
    """The classes of a folder and their files. No folder is searched twice."""
    from anocaps.images.decode import EXTENSIONS
    from anocaps.images.walk import PassedOver, identity, is_bad_link, is_hidden, walk

    folder = Path(path)
    if not folder.is_dir():
        raise DataError(
            f"{shown(folder)} is not a folder; give one with a sub-folder of images for each class."
        )
    passed = PassedOver()
    loose, links, inner = [], [], []
    for entry in sorted(each for each in folder.iterdir() if not is_hidden(each.name)):
        if not follow_links and entry.is_symlink():
            links.append(entry)
        elif entry.suffix.lower() in EXTENSIONS and not entry.is_dir():
            loose.append(entry)
        elif is_bad_link(entry, [folder]):
            links.append(entry)
        elif entry.is_dir():
            inner.append(entry)
    if loose and inner:
        raise DataError(
            f"{shown(folder)} contains both images ({shown(loose[0].name)}) and sub-folders "
            f"({shown(inner[0].name)}); move the images into the sub-folder of their class."
        )
    if loose:
        files = list(walk(folder, set(), passed, follow_links=follow_links))
        return ClassFolders(folder, {folder.resolve().name or "images": files}, passed)
    passed.links.extend(links)
    if not inner:
        nothing = (
            f"{shown(folder)} contains no images and no sub-folders; put a sub-folder of images "
            "for each class into it."
        )
        raise DataError(" ".join([nothing, *passed.sentences()]))
    real: dict[tuple[int, int], Path] = {}
    for entry in inner:
        if (twin := real.setdefault(identity(entry), entry)) is not entry:
            raise DataError(
                f"{shown(twin)} and {shown(entry)} are the same folder; remove the link."
            )
    classes = {
        entry.name: list(walk(entry, set(real) - {identity(entry)}, passed, [folder], follow_links))
        for entry in inner
    }
    return ClassFolders(folder, classes, passed)


def headers(files: Iterable[Path]) -> tuple[dict[Path, "Header"], dict[Path, str]]:
    """The headers of the readable files, and the reasons why others are not readable."""
    from anocaps.images.decode import Header
    from anocaps.images.reading import read_headers

    seen: dict[Path, Header] = {}
    reasons: dict[Path, str] = {}
    for file, found in read_headers(files):
        if isinstance(found, Header):
            seen[file] = found
        else:
            reasons[file] = str(found)
    return seen, reasons


def fingerprint(pixels: NDArray[np.uint8]) -> int:
    """64 bits that identify the pixels of an image."""
    return int.from_bytes(hashlib.sha256(pixels.data).digest()[:8], "big")


def same_images(fingerprints: Sequence[int]) -> list[list[int]]:
    """Groups of two or more indices with equal fingerprints, ordered by their first index."""
    keys = np.array(fingerprints, np.uint64)
    order = np.argsort(keys, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
    return sorted(run.tolist() for run in runs if len(run) > 1)


def _copies(
    files: list[Path], keys: Sequence[int], label_of: dict[Path, str], reasons: dict[Path, str]
) -> dict[Path, Path]:
    """Copy → the file that is kept. Copies in several classes are added to `reasons` instead."""
    copies: dict[Path, Path] = {}
    for group in same_images(keys):
        first, *others = same = [files[k] for k in group]
        if len({label_of[file] for file in same}) == 1:
            copies |= dict.fromkeys(others, first)
            continue
        for file in same:
            other = next(each for each in same if label_of[each] != label_of[file])
            reasons[file] = (
                f"{shown(file)} shows the same image as {shown(other)}, which is in another "
                "class; remove the one with the wrong label."
            )
    return copies


def _refusal(folder: Path, bad: tuple[tuple[Path, str], ...], total: int, mend: str) -> DataError:
    named = "; ".join(reason.removesuffix(".") for _, reason in bad[:_NAMED_AT_MOST])
    more = f"; and {len(bad) - _NAMED_AT_MOST} more" if len(bad) > _NAMED_AT_MOST else ""
    hint = f" {mend}" if len(bad) < total else ""
    return DataError(
        f"{len(bad)} of {total} images in {shown(folder)} cannot be used: {named}{more}.{hint}"
    )


def _refuse_small(counts: dict[str, int], fewest: int, folder: Path) -> None:
    for name, count in counts.items():
        if count < fewest:
            raise DataError(
                f"class {shown(name)} of {shown(folder)} has {count or 'no'} usable "
                f"image{'' if count == 1 else 's'} (copies count once); it needs {fewest}, better "
                f"{FEW}: add images or move the class away."
            )


def _warn_of_few(counts: dict[str, int]) -> None:
    few = [f"{shown(name)} ({count})" for name, count in counts.items() if count < FEW]
    if few:
        warnings.warn(
            f"few images in {', '.join(few)}: use {FEW} or more per class for good results",
            UserWarning,
            stacklevel=3,
        )
