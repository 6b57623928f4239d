"""Images of the user's own: a folder with one sub-folder per class, or one class in a flat folder.

Pillow is imported inside: whoever only asks for a dataset by name needs none of it.
"""

import hashlib
import os
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import DataError, InputError

if TYPE_CHECKING:
    from anocaps.images.decode import Fit, How, Seen
    from anocaps.images.walk import PassedOver

FEWEST = 5  # images of a class: one each to train, validate and calibrate with, and two to spare
FEW = 20  # fewer train, but poorly
_NAMED_AT_MOST = 20
_MEND = "Move them away, or train without them: --skip-bad (in Python: skip_bad=True)."


class ImageFolder:
    """All images of a folder in one array: `detector.fit(folder.images, folder.labels)`.

    Each sub-folder is a class, with all that lies deeper in it; a folder of files is one class,
    named after it. How the images are fitted to one size is chosen from them (`size`, `how` and
    `channels` change a part of that), or given as `fit`, for example that of a trained model.
    Files that cannot be read are refused by name, or left out with `skip_bad`. Every class needs
    `fewest` images: 1 will do for images that are only scored.

    To train on (`fewest` above 1) an image counts once: one that is learned from must not be met
    again among those that set the false-alarm rate. Of copies in one class the first is kept; the
    same image in two classes has a wrong label, and all its copies are bad files.
    """

    images: NDArray[np.uint8]  # N×H×W×C, in the order of `files`
    labels: NDArray[np.str_]  # N class names
    class_names: tuple[str, ...]  # sorted
    files: tuple[Path, ...]  # N, sorted within a class
    fit: "Fit"
    skipped: tuple[tuple[Path, str], ...]  # file and reason
    duplicates: tuple[tuple[Path, Path], ...]  # copy that was left out, file that was kept

    def __init__(
        self,
        path: str | os.PathLike[str],
        size: int | None = None,
        fit: "Fit | None" = None,
        skip_bad: bool = False,
        *,
        how: "How | None" = None,
        channels: int | None = None,
        fewest: int = FEWEST,
        mend: str = _MEND,  # what is advised where files are bad
        progress: Callable[[int, int], None] | None = None,  # files read, files in all
    ) -> None:
        from anocaps.images.decode import read_images

        if fit is not None and (size, how, channels) != (None, None, None):
            raise InputError("give either a fit, or a size, a way (how) and channels")
        folder = Path(path)
        classes = find_classes(folder)
        _refuse_small({name: len(members) for name, members in classes.items()}, fewest, folder)
        label_of = {file: name for name, members in classes.items() for file in members}
        files = list(label_of)
        reasons: dict[Path, str] = {}  # why a file is bad
        if fit is None:
            from anocaps.images.fitting import choose_fit

            seen, reasons = headers(files)
            if not seen:
                raise _refusal(folder, tuple(reasons.items()), len(files), mend)
            fit = choose_fit(seen.values(), size, how, channels)

        good: list[Path] = []
        keys = array("Q")  # of the good ones
        images = np.empty((len(files), fit.height, fit.width, fit.channels), dtype=np.uint8)
        readable = [file for file in files if file not in reasons]
        for file, pixels in read_images(readable, fit):
            if isinstance(pixels, np.ndarray):
                images[len(good)] = pixels
                good.append(file)
                keys.append(fingerprint(pixels))
            else:
                reasons[file] = str(pixels)
            if progress is not None:
                progress(len(good) + len(reasons), len(files))
        copies: dict[Path, Path] = {}  # and what they are copies of
        if fewest > 1:
            copies = _copies(good, keys, label_of, reasons)
        skipped = tuple((file, reasons[file]) for file in files if file in reasons)
        if skipped and not skip_bad:
            raise _refusal(folder, skipped, len(files), mend)
        kept = [k for k, file in enumerate(good) if file not in copies and file not in reasons]
        for place, k in enumerate(kept):  # in place: there may be no room for two such arrays
            images[place] = images[k]
        good = [good[k] for k in kept]

        self.images = images[: len(good)]
        self.labels = np.array([label_of[file] for file in good], dtype=np.str_)
        self.class_names = tuple(classes)
        self.files = tuple(good)
        self.fit = fit
        self.skipped = skipped
        self.duplicates = tuple(copies.items())
        found = Counter(self.labels.tolist())
        counts = {name: found[name] for name in classes}
        _refuse_small(counts, fewest, folder)
        if fewest > 1:
            _warn_of_few(counts)


def find_classes(folder: Path, passed: "PassedOver | None" = None) -> dict[str, list[Path]]:
    """Class name → its files, both sorted; `passed` gets other files and links not followed.

    A link leads nowhere twice: a class is not searched again inside another one.
    """
    from anocaps.base.text import shown
    from anocaps.images.decode import EXTENSIONS
    from anocaps.images.walk import PassedOver, identity, leads_astray, walk

    if not folder.is_dir():
        raise DataError(
            f"{shown(folder)} is not a folder; give one with a sub-folder of images per class."
        )
    passed = PassedOver() if passed is None else passed
    loose, astray, inner = [], [], []
    for entry in sorted(each for each in folder.iterdir() if not each.name.startswith(".")):
        if entry.suffix.lower() in EXTENSIONS and not entry.is_dir():
            loose.append(entry)
        elif leads_astray(entry, [folder]):
            astray.append(entry)
        elif entry.is_dir():
            inner.append(entry)
    if loose and inner:
        raise DataError(
            f"{shown(folder)} holds both images ({shown(loose[0].name)}) and sub-folders "
            f"({shown(inner[0].name)}); move the images into the sub-folder of their class."
        )
    if loose:
        return {folder.resolve().name or "images": list(walk(folder, set(), passed))}
    passed.links.extend(astray)
    if not inner:
        nothing = (
            f"{shown(folder)} holds no images and no sub-folders; put one sub-folder of images "
            "per class into it."
        )
        raise DataError(" ".join([nothing, *passed.sentences()]))
    real: dict[tuple[int, int], Path] = {}
    for entry in inner:
        if (twin := real.setdefault(identity(entry), entry)) is not entry:
            raise DataError(
                f"{shown(twin)} and {shown(entry)} are one folder under two names; remove a link."
            )
    return {
        entry.name: list(walk(entry, set(real) - {identity(entry)}, passed, [folder]))
        for entry in inner
    }


def headers(files: Iterable[Path]) -> tuple[dict[Path, "Seen"], dict[Path, str]]:
    """What the files' headers say, and why some cannot be read."""
    from anocaps.images.decode import Seen, look_at

    seen: dict[Path, Seen] = {}
    reasons: dict[Path, str] = {}
    for file, found in look_at(files):
        if isinstance(found, Seen):
            seen[file] = found
        else:
            reasons[file] = str(found)
    return seen, reasons


def fingerprint(pixels: NDArray[np.uint8]) -> int:
    """64 bits that tell images of one size apart."""
    return int.from_bytes(hashlib.sha256(pixels.data).digest()[:8], "big")


def same_images(fingerprints: Sequence[int]) -> list[list[int]]:
    """Places of equal ones, in groups of two or more, in the order of their first."""
    keys = np.array(fingerprints, np.uint64)
    order = np.argsort(keys, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
    return sorted(run.tolist() for run in runs if len(run) > 1)


def _copies(
    files: list[Path], keys: Sequence[int], label_of: dict[Path, str], reasons: dict[Path, str]
) -> dict[Path, Path]:
    """Copy → the first of its kind; copies in several classes get a reason instead."""
    from anocaps.base.text import shown

    copies: dict[Path, Path] = {}
    for group in same_images(keys):
        first, *others = same = [files[k] for k in group]
        if len({label_of[file] for file in same}) == 1:
            copies |= dict.fromkeys(others, first)
            continue
        for file in same:
            other = next(each for each in same if label_of[each] != label_of[file])
            reasons[file] = (
                f"{shown(file)} shows the same image as {shown(other)}, which lies in another "
                "class, so that at least one label is wrong; remove what does not belong."
            )
    return copies


def _refusal(folder: Path, bad: tuple[tuple[Path, str], ...], total: int, mend: str) -> DataError:
    from anocaps.base.text import shown

    named = "; ".join(reason.removesuffix(".") for _, reason in bad[:_NAMED_AT_MOST])
    more = f"; and {len(bad) - _NAMED_AT_MOST} more" if len(bad) > _NAMED_AT_MOST else ""
    hint = f" {mend}" if len(bad) < total else ""
    return DataError(
        f"{len(bad)} of {total} images in {shown(folder)} cannot be used: {named}{more}.{hint}"
    )


def _refuse_small(counts: dict[str, int], fewest: int, folder: Path) -> None:
    from anocaps.base.text import shown

    for name, count in counts.items():
        if count < fewest:
            raise DataError(
                f"class {shown(name)} of {shown(folder)} has {count or 'no'} "
                f"image{'' if count == 1 else 's'} that can be used, {fewest} are needed, {FEW} or "
                "more are better, copies count once; add some or move the class away."
            )


def _warn_of_few(counts: dict[str, int]) -> None:
    from anocaps.base.text import shown

    few = [f"{shown(name)} ({count})" for name, count in counts.items() if count < FEW]
    if few:
        warnings.warn(
            f"few images in {', '.join(few)}: with less than {FEW} of a class, expect little",
            UserWarning,
            stacklevel=3,
        )
