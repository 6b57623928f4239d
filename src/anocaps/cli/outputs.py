"""Refuse outputs that would overwrite inputs, and tell the user where the checkpoint is."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from anocaps.base.errors import InputError
from anocaps.base.signing import signature_path
from anocaps.base.text import shown
from anocaps.cli.terminal import Stopped, stop_kept


def inputs_of(model: Path, public_key: Path | None) -> list[Path]:
    """The model, its signature and the key that checks it."""
    return [path for path in (model, signature_path(model), public_key) if path is not None]


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Refuse an output file that is also an input, under any name or link.

    An output folder must hold no input.
    """
    files: dict[tuple[int, int], Path] = {}
    folders: dict[Path, Path] = {}
    for path in outputs:
        if path is None or not path.exists():
            continue  # a path that does not exist is no input
        if path.is_dir():
            folders[Path(os.path.realpath(path))] = path
            continue
        if (other := files.setdefault(_identity(path), path)) is not path:
            raise InputError(f"{shown(path)} and {shown(other)} are the same file; rename one")
    if not files and not folders:
        return
    for path in inputs:
        try:
            this = _identity(path)
        except OSError:  # reported when the file is read
            continue
        if this in files:
            raise InputError(f"{shown(files[this])} is also an input; name another file to write")
        for folder in folders:
            if _real_folder(path).is_relative_to(folder):
                raise InputError(
                    f"{shown(folders[folder])} holds the input {shown(path)}; name another folder"
                )


def folder_links(folder: Path | None, suffixes: Collection[str]) -> list[Path]:
    """The links to folders below an output folder, which are output folders too.

    Refuse links to files with these suffixes: a run that writes their names would replace their
    targets.
    """
    found: list[Path] = []
    for place, folders, files in os.walk(folder) if folder is not None else ():
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
