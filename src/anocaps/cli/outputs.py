"""Refuse outputs that would overwrite inputs, and tell the user where the checkpoint is."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from pathlib import Path

from anocaps.base.errors import InputError
from anocaps.base.signing import signature_path
from anocaps.base.text import shown
from anocaps.cli.terminal import Stopped, stop_kept


def inputs_of(model: Path, public_key: Path | None) -> list[Path]:
    """The model, its signature and the key that checks it."""
    return [path for path in (model, signature_path(model), public_key) if path is not None]


def check_outputs(
    files: Iterable[Path | None],
    inputs: Iterable[Path],
    folders: Iterable[Path | None] = (),
) -> None:
    """Refuse outputs that are also an input or each other, under any name or link.

    `folders` are the outputs that are folders: they must hold no input. No output can be in a file.
    """
    written = [path for path in files if path is not None]
    made = [path for path in folders if path is not None]
    _check_apart(written, made)
    there = {_identity(path): path for path in (*written, *made) if path.exists()}
    real = {Path(os.path.realpath(path)): path for path in made if path.is_dir()}
    if not there:
        return  # a path that does not exist is no input
    for path in inputs:
        try:
            this = _identity(path)
        except OSError:  # reported when the file is read
            continue
        if this in there:
            raise InputError(
                f"{shown(there[this])} is also an input; rename it, or name another file to write"
            )
        for folder in real:
            if _real_folder(path).is_relative_to(folder):
                raise InputError(
                    f"{shown(real[folder])} holds the input {shown(path)}; name another folder"
                )


def _check_apart(files: Sequence[Path], folders: Sequence[Path]) -> None:
    """Refuse two outputs that are one file, and an output inside a file."""
    for file, other in product(files, (*files, *folders)):
        here, there = (Path(os.path.realpath(path)) for path in (file, other))
        if here in there.parents:
            raise InputError(f"{shown(other)} is inside {shown(file)}, which is a file; rename one")
        both = file.exists() and other.exists()
        if other is not file and (here == there or (both and _identity(file) == _identity(other))):
            raise InputError(f"{shown(file)} and {shown(other)} are the same file; rename one")


def folder_links(folder: Path | None, suffixes: Collection[str]) -> list[Path]:
    """The links to folders below an output folder, which are output folders too.

    Refuse links to files with these suffixes: a run that writes their names would replace their
    targets.
    """
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, followlinks=True) if folder is not None else ():
        if _identity(Path(place)) in seen:  # links can lead in circles
            folders.clear()
            continue
        seen.add(_identity(Path(place)))
        for name in files:
            if os.path.splitext(name)[1] in suffixes and os.path.islink(os.path.join(place, name)):
                raise InputError(
                    f"{shown(Path(place, name))} is a link in an output folder; remove it, or name "
                    "another folder"
                )
        found += [Path(place, name) for name in folders if os.path.islink(f"{place}/{name}")]
    return found


def _identity(path: Path) -> tuple[int, int]:
    """A key that is the same for all paths of one file."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _real_folder(path: Path) -> Path:
    """The folder of a file, after all links."""
    return Path(os.path.realpath(path)).parent if path.is_symlink() else _resolved(path.parent)


@lru_cache(maxsize=1024)
def _resolved(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


@contextmanager
def telling_of(checkpoint: Path, resume: bool) -> Iterator[None]:
    """Say whether the checkpoint is replaced, and where it is if training is stopped."""
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
    if resume and before is None:
        print(f"There is no {shown(checkpoint)}: starting from the beginning.", file=sys.stderr)
    if before is not None and not resume:
        print(f"Replacing {shown(checkpoint)} of an earlier run.", file=sys.stderr)
    try:
        with stop_kept():
            yield
    except Stopped:
        written = checkpoint.exists() and (resume or checkpoint.stat().st_mtime_ns != before)
        raise Stopped(
            f"The last finished epoch is in {shown(checkpoint)}; run the same command with "
            "--resume."
            if written
            else "No epoch was finished, so nothing was kept."
        ) from None
