"""Images of the user's own: a folder with one sub-folder per class, or one class in a flat folder.

Pillow is imported inside: whoever only asks for a dataset by name needs none of it.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anocaps.errors import DataError, InputError

if TYPE_CHECKING:
    from anocaps.pictures import Fit, How

FEWEST = 5  # images of a class: one each to train, validate and calibrate with, and two to spare
FEW = 20  # fewer train, but poorly
_NAMED_AT_MOST = 20


class ImageFolder:
    """All images of a folder in one array: `detector.fit(folder.images, folder.labels)`.

    Each sub-folder is a class, with all that lies deeper in it; a folder of files is one class,
    named after it. How the images are fitted to one size is chosen from them (`size`, `how` and
    `channels` change a part of that), or given as `fit`, for example that of a trained model.
    Files that cannot be read are refused by name, or left out with `skip_bad`. Every class needs
    `fewest` images: 1 will do for images that are only scored.
    """

    images: NDArray[np.uint8]  # N×H×W×C, in the order of `files`
    labels: NDArray[np.str_]  # N class names
    class_names: tuple[str, ...]  # sorted
    files: tuple[Path, ...]  # N, sorted within a class
    fit: "Fit"
    skipped: tuple[tuple[Path, str], ...]  # file and reason

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
        progress: Callable[[int, int], None] | None = None,  # files read, files in all
    ) -> None:
        from anocaps.pictures import read_pictures

        if fit is not None and (size, how, channels) != (None, None, None):
            raise InputError("give either a fit, or a size, a way (how) and channels")
        folder = Path(path)
        classes = find_classes(folder)
        _refuse_small({name: len(members) for name, members in classes.items()}, fewest, folder)
        label_of = {file: name for name, members in classes.items() for file in members}
        files = list(label_of)
        reasons: dict[Path, str] = {}  # why a file is bad
        if fit is None:
            fit = _choose(folder, files, reasons, size, how, channels)

        good: list[Path] = []
        images = np.empty((len(files), fit.height, fit.width, fit.channels), dtype=np.uint8)
        readable = [file for file in files if file not in reasons]
        for file, pixels in read_pictures(readable, fit):
            if isinstance(pixels, np.ndarray):
                images[len(good)] = pixels
                good.append(file)
            else:
                reasons[file] = str(pixels)
            if progress is not None:
                progress(len(good) + len(reasons), len(files))
        skipped = tuple((file, reasons[file]) for file in files if file in reasons)
        if skipped and not skip_bad:
            raise _refusal(folder, skipped, len(files))

        self.images = images[: len(good)]
        self.labels = np.array([label_of[file] for file in good], dtype=np.str_)
        self.class_names = tuple(classes)
        self.files = tuple(good)
        self.fit = fit
        self.skipped = skipped
        found = Counter(self.labels.tolist())
        counts = {name: found[name] for name in classes}
        _refuse_small(counts, fewest, folder)
        if fewest > 1:
            _warn_of_few(counts)


def find_classes(folder: Path, others: Counter[str] | None = None) -> dict[str, list[Path]]:
    """Class name → its files, both sorted; `others` counts files that are no images, by extension.

    A link leads nowhere twice: a class is not searched again inside another one.
    """
    from anocaps.pictures import EXTENSIONS, identity, shown, walk

    if not folder.is_dir():
        raise DataError(
            f"{shown(folder)} is not a folder; give one with a sub-folder of images per class."
        )
    root = identity(folder)
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    inner = [entry for entry in entries if entry.is_dir() and identity(entry) != root]
    loose = [e for e in entries if not e.is_dir() and e.suffix.lower() in EXTENSIONS]
    if loose and inner:
        raise DataError(
            f"{shown(folder)} holds both images ({shown(loose[0].name)}) and sub-folders "
            f"({shown(inner[0].name)}); move the images into the sub-folder of their class."
        )
    if loose:
        return {folder.resolve().name or "images": list(walk(folder, set(), others))}
    if not inner:
        raise DataError(
            f"{shown(folder)} holds no images and no sub-folders; put one sub-folder of images "
            "per class into it."
        )
    real: dict[tuple[int, int], Path] = {}
    for entry in inner:
        if (twin := real.setdefault(identity(entry), entry)) is not entry:
            raise DataError(
                f"{shown(twin)} and {shown(entry)} are one folder under two names; remove a link."
            )
    return {
        entry.name: list(walk(entry, {root, *real} - {identity(entry)}, others)) for entry in inner
    }


def _choose(
    folder: Path,
    files: list[Path],
    reasons: dict[Path, str],
    size: int | None,
    how: "How | None",
    channels: int | None,
) -> "Fit":
    """The fit that suits the files; those whose header cannot be read get a reason."""
    from anocaps.data.fitting import choose_fit
    from anocaps.pictures import Seen, look_at

    seen: list[Seen] = []
    for file, found in look_at(files):
        if isinstance(found, Seen):
            seen.append(found)
        else:
            reasons[file] = str(found)
    if not seen:
        raise _refusal(folder, tuple(reasons.items()), len(files))
    return choose_fit(seen, size, how, channels)


def _refusal(folder: Path, bad: tuple[tuple[Path, str], ...], total: int) -> DataError:
    from anocaps.pictures import shown

    named = "; ".join(reason.removesuffix(".") for _, reason in bad[:_NAMED_AT_MOST])
    more = f"; and {len(bad) - _NAMED_AT_MOST} more" if len(bad) > _NAMED_AT_MOST else ""
    hint = " To leave them out, use --skip-bad (in Python: skip_bad=True)." * (len(bad) < total)
    return DataError(
        f"{len(bad)} of {total} images in {shown(folder)} cannot be used: {named}{more}.{hint}"
    )


def _refuse_small(counts: dict[str, int], fewest: int, folder: Path) -> None:
    from anocaps.pictures import shown

    for name, count in counts.items():
        if count < fewest:
            raise DataError(
                f"class {shown(name)} of {shown(folder)} has {count or 'no'} "
                f"image{'' if count == 1 else 's'} that can be used, {fewest} are needed, {FEW} or "
                "more are better; add some or move the class away."
            )


def _warn_of_few(counts: dict[str, int]) -> None:
    from anocaps.pictures import shown

    few = [f"{shown(name)} ({count})" for name, count in counts.items() if count < FEW]
    if few:
        warnings.warn(
            f"few images in {', '.join(few)}: with less than {FEW} of a class, expect little",
            UserWarning,
            stacklevel=3,
        )
