"""`anocaps check`: look through a folder before training."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anocaps.cli.options import FollowLinks, Json, own_name
from anocaps.cli.terminal import files_bar, print_json, say

if TYPE_CHECKING:
    from anocaps.images.check import FolderCheck
    from anocaps.images.folder import ClassFolders

CHECK_EXAMPLE = "Example: anocaps check photos/"


def check(
    folder: Annotated[Path, typer.Argument(help="Images, one sub-folder per class, or one class.")],
    follow_links: FollowLinks = True,
    as_json: Json = False,
) -> None:
    """Look through a folder before training: classes, sizes, bad files and copies."""
    from anocaps.base.errors import DataError
    from anocaps.base.text import shown
    from anocaps.images.check import check_folder, sentences
    from anocaps.images.folder import find_classes

    classes = find_classes(folder, follow_links)
    warn_of_names(classes)
    with files_bar("checking", shown=not as_json) as tell:
        found = check_folder(classes, lambda done, total: tell(done, total, done))
    if as_json:
        print_json(**asdict(found), training_seconds=_training_seconds(found))
    else:
        say(*sentences(found))
        if (seconds := _training_seconds(found)) is not None:
            from anocaps.inspect.forecast import about

            say(f"Training and its self-check will take {about(seconds)} here.")
            if advised := _what_to_install(found):
                say(advised)
    if found.fit is None:
        raise DataError(f"{shown(folder)}: no image here can be read; name a folder of images")
    if found.refused:
        raise DataError(f"{shown(folder)}: training would refuse this; correct the problems above")


def _training_seconds(found: "FolderCheck") -> float | None:
    """From a few timed steps; None if training would refuse the folder or is not installed."""
    if found.fit is None or found.refused:
        return None
    try:
        from anocaps.inspect.forecast import seconds_for
    except ImportError:  # checking needs no torch
        return None
    shape = found.fit.height, found.fit.width, found.fit.channels
    return round(seconds_for(sum(found.usable.values()), len(found.usable), shape), 1)


def _what_to_install(found: "FolderCheck") -> str | None:
    from anocaps.detectors.presets import advice, choose_preset

    assert found.fit is not None
    height, width, classes = found.fit.height, found.fit.width, len(found.usable)
    preset = choose_preset(height, width, found.fit.channels, classes)
    return advice(preset, height, width, classes)


def warn_of_names(found: "ClassFolders") -> None:
    """Warn of classes that look like splits or verdicts, before any work."""
    from anocaps.images.names import name_warnings

    for line in name_warnings(found, own_name()):
        print(line if line.startswith(" ") else f"Warning: {line}", file=sys.stderr)
